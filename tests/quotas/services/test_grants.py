"""Grants: a lead asks, operators decide, the clock begins and ends them; limits follow and nothing is lost."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import override_settings
from django.utils import timezone

from accounts.errors import Conflict, InvalidInput, NotAllowed, NotFound
from accounts.models import AuditEvent
from quotas.models import Alert, Grant, GrantState, Notice, Quota
from quotas.services.grants import (
    approve_grant,
    ask_for_quota,
    begin_and_end,
    decline_grant,
    impact_of_grant,
    second_grant,
    withdraw_grant,
)
from tests.support.factories import Cast, DeviceFactory, NodeFactory, OperatorFactory, QuotaFactory, the_cast

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    cast = the_cast()
    QuotaFactory(
        project=cast.project, resource="gpu_millis", nominal=4_000, soft=7_000, hard=8_000, used=6_000
    )
    return cast


def ask(cast: Cast, amount: int = 4_000, **words: object) -> Grant:
    return ask_for_quota(
        project=cast.project, resource="gpu_millis", amount=amount, reason="a paper",
        by=words.pop("by", cast.lead), **words,
    )  # fmt: skip


def bounds(cast: Cast) -> tuple[int | None, int | None, int | None]:
    line = Quota.objects.plain().get(project=cast.project, resource="gpu_millis")
    return line.nominal, line.soft, line.hard


def told(person: object) -> list[str]:
    return [alert.text for notice in Notice.objects.filter(user=person) for alert in notice.alerts.all()]


def test_a_request_carries_its_evidence_and_the_operators_are_told(cast: Cast) -> None:
    grant = ask(cast)

    assert (grant.state, grant.evidence["bound"], grant.evidence["used"]) == (GrantState.ASKED, 8_000, 6_000)
    assert grant.evidence["lately"]["days"] == 30
    assert told(cast.operator) == ["Vision asks for 4 GPUs more."]
    assert told(cast.lead) == []
    assert bounds(cast) == (4_000, 7_000, 8_000)


def test_part_of_it_raises_the_limit_by_that_part_and_who_asked_is_told(cast: Cast) -> None:
    grant = approve_grant(grant=ask(cast), granted=2_000, by=cast.operator, reason="half for now")

    assert (grant.state, bounds(cast)) == (GrantState.ACTIVE, (6_000, 7_000, 10_000))
    assert told(cast.lead) == [
        "Vision: the request for 4 GPUs more was approved in part (2 GPUs) and is in force."
    ]
    trail = AuditEvent.objects.filter(project=cast.project).order_by("id")
    assert [event.action for event in trail] == ["grant.ask", "grant.approve", "quota.set", "grant.begin"]
    assert trail.get(action="grant.approve").actor == cast.operator


def test_it_ends_by_the_clock_and_takes_back_what_it_gave(cast: Cast) -> None:
    ends_at = timezone.now() + timedelta(days=3)
    grant = approve_grant(grant=ask(cast, ends_at=ends_at), by=cast.operator, reason="until the deadline")
    Quota.objects.filter(resource="gpu_millis").update(hard=13_000, used=12_000)  # an edit and use meanwhile

    assert begin_and_end(now=timezone.now()) == (0, 0)
    assert begin_and_end(now=ends_at) == (0, 1)
    assert begin_and_end(now=ends_at) == (0, 0)

    grant.refresh_from_db()
    assert (grant.state, bounds(cast)) == (GrantState.ENDED, (4_000, 7_000, 9_000))
    line = Quota.objects.get(resource="gpu_millis")
    assert line.used > (line.hard or 0)  # over, grandfathered: nothing was stopped
    assert any("ends on" in text for text in told(cast.lead))  # told beforehand, once
    assert any("has ended" in text for text in told(cast.lead))


def test_it_begins_on_its_day_and_not_before(cast: Cast) -> None:
    starts_at = timezone.now() + timedelta(days=2)
    grant = approve_grant(grant=ask(cast, starts_at=starts_at), by=cast.operator, reason="next week")

    assert (grant.state, bounds(cast)) == (GrantState.APPROVED, (4_000, 7_000, 8_000))
    assert begin_and_end(now=starts_at) == (1, 0)
    assert bounds(cast) == (8_000, 7_000, 12_000)


def test_more_than_twice_needs_a_second_person(cast: Cast) -> None:
    grant = approve_grant(grant=ask(cast, amount=9_000), by=cast.operator, reason="large")
    assert (grant.state, bounds(cast)) == (GrantState.SECONDING, (4_000, 7_000, 8_000))

    with pytest.raises(NotAllowed, match="second person"):
        second_grant(grant=grant, by=cast.operator, reason="me again")
    grant = second_grant(grant=grant, by=OperatorFactory(username="other"), reason="agreed")

    assert (grant.state, bounds(cast)) == (GrantState.ACTIVE, (13_000, 7_000, 17_000))


@override_settings(QUOTA_SECOND_APPROVER_PERCENT=0)
def test_the_second_person_can_be_done_without(cast: Cast) -> None:
    assert (
        approve_grant(grant=ask(cast, amount=9_000), by=cast.operator, reason="x").state == GrantState.ACTIVE
    )


def test_nobody_decides_what_they_asked_for(cast: Cast) -> None:
    grant = ask(cast, by=cast.admin)

    with pytest.raises(NotAllowed, match="yourself"):
        approve_grant(grant=grant, by=cast.admin, reason="why not")


def test_who_may(cast: Cast) -> None:
    for person in (cast.owner, cast.viewer, cast.operator):
        with pytest.raises(NotAllowed):
            ask(cast, by=person)
    with pytest.raises(NotFound):
        ask(cast, by=cast.stranger)
    grant = ask(cast)
    for verb in (approve_grant, decline_grant):
        with pytest.raises(NotAllowed):
            verb(grant=grant, by=cast.lead, reason="please")
    with pytest.raises(NotAllowed):
        withdraw_grant(grant=grant, by=cast.owner)


def test_one_decision_is_enough_and_a_stale_page_is_told(cast: Cast) -> None:
    grant = ask(cast)
    with pytest.raises(Conflict, match="looking at it"):
        approve_grant(grant=grant, by=cast.operator, reason="x", expected_generation=grant.generation + 1)
    decline_grant(grant=grant, by=cast.operator, reason="no room")

    with pytest.raises(Conflict, match="declined"):
        approve_grant(grant=grant, by=cast.operator, reason="x")
    assert bounds(cast) == (4_000, 7_000, 8_000)
    assert told(cast.lead)[-1].endswith("was declined: no room.")


def test_one_request_a_limit_at_a_time_and_a_withdrawn_one_makes_room(cast: Cast) -> None:
    first = ask(cast)
    with pytest.raises(Conflict, match="already asks"):
        ask(cast)
    withdraw_grant(grant=first, by=cast.lead)

    assert ask(cast).pk != first.pk


def test_what_was_given_may_be_given_back(cast: Cast) -> None:
    grant = approve_grant(grant=ask(cast), by=cast.operator, reason="ok")
    withdraw_grant(grant=grant, by=cast.lead, reason="done early")

    assert bounds(cast) == (4_000, 7_000, 8_000)
    assert Grant.objects.get().state == GrantState.ENDED


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"amount": 0}, "above 0"),
        ({"amount": 4_000, "gpu_model": "H100"}, "no limit of H100 GPUs"),
        ({"ends_at": timezone.now() - timedelta(days=1)}, "before it begins"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_whole(cast: Cast, words: dict, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ask(cast, **words)
    assert not Grant.objects.exists()
    assert not Alert.objects.exists()


def test_the_impact_counts_capacity_and_headroom(cast: Cast) -> None:
    node = NodeFactory(state="up")
    for index in range(12):
        DeviceFactory(node=node, index=index)
    grant = ask(cast)

    impact = impact_of_grant(grant)
    part = impact_of_grant(grant, 2_000)

    assert (impact.bound_before, impact.bound_after, impact.used) == (8_000, 12_000, 6_000)
    assert (impact.sum_before, impact.sum_after, impact.capacity, impact.usable) == (
        8_000,
        12_000,
        12_000,
        10_200,
    )
    assert impact.over_headroom
    assert not part.over_headroom
    assert "10.2 GPUs, which leaves 15 % headroom" in impact.sentences[-1]
