"""Grants: a lead asks, operators decide, the clock begins and ends them; limits follow and nothing is lost."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import override_settings
from django.utils import timezone

from accounts.models import AuditEvent
from infra.errors import Conflict, InvalidInput, NotAllowed, NotFound
from quotas.models import Alert, Budget, Grant, GrantState, Notice, Quota
from quotas.services.budgets import change_budget, make_budget
from quotas.services.grants import (
    approve_grant,
    ask_for_quota,
    begin_and_end,
    decline_grant,
    impact_of_grant,
    second_grant,
    withdraw_grant,
)
from tests.support.factories import (
    AdminFactory,
    Cast,
    DeviceFactory,
    NodeFactory,
    OperatorFactory,
    OrganizationFactory,
    QuotaFactory,
    the_cast,
)
from tests.support.roles import as_owner

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


def notices_of(person: object) -> list[str]:
    return [alert.text for notice in Notice.objects.filter(user=person) for alert in notice.alerts.all()]


def test_a_request_carries_its_evidence_and_the_operators_get_a_notice(cast: Cast) -> None:
    grant = ask(cast)

    assert (grant.state, grant.evidence["bound"], grant.evidence["used"]) == (GrantState.ASKED, 8_000, 6_000)
    assert grant.evidence["lately"]["days"] == 30
    assert notices_of(cast.operator) == ["Vision requests an increase by 4 GPUs."]
    assert notices_of(cast.lead) == []
    assert bounds(cast) == (4_000, 7_000, 8_000)


def test_part_of_it_raises_the_limit_by_that_part_and_who_asked_gets_a_notice(cast: Cast) -> None:
    grant = approve_grant(grant=ask(cast), granted=2_000, by=cast.operator, reason="half for now")

    assert (grant.state, bounds(cast)) == (GrantState.ACTIVE, (6_000, 7_000, 10_000))
    assert notices_of(cast.lead) == [
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
    assert any("ends at" in text for text in notices_of(cast.lead))  # one notice before the end
    assert any("has ended" in text for text in notices_of(cast.lead))


def test_it_begins_on_its_day_and_not_before(cast: Cast) -> None:
    starts_at = timezone.now() + timedelta(days=2)
    grant = approve_grant(grant=ask(cast, starts_at=starts_at), by=cast.operator, reason="next week")

    assert (grant.state, bounds(cast)) == (GrantState.APPROVED, (4_000, 7_000, 8_000))
    assert begin_and_end(now=starts_at) == (1, 0)
    assert bounds(cast) == (8_000, 7_000, 12_000)


def test_more_than_twice_needs_a_second_person(cast: Cast) -> None:
    grant = approve_grant(grant=ask(cast, amount=9_000), by=cast.operator, reason="large")
    assert (grant.state, bounds(cast)) == (GrantState.SECONDING, (4_000, 7_000, 8_000))

    with pytest.raises(NotAllowed, match="first approval"):
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

    with pytest.raises(NotAllowed, match="You made this request"):
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
    with pytest.raises(Conflict, match="since you read it"):
        approve_grant(grant=grant, by=cast.operator, reason="x", expected_generation=grant.generation + 1)
    decline_grant(grant=grant, by=cast.operator, reason="no room")

    with pytest.raises(Conflict, match="declined"):
        approve_grant(grant=grant, by=cast.operator, reason="x")
    assert bounds(cast) == (4_000, 7_000, 8_000)
    assert notices_of(cast.lead)[-1].endswith("was declined: no room.")


def test_one_request_a_limit_at_a_time_and_a_withdrawn_one_makes_room(cast: Cast) -> None:
    first = ask(cast)
    with pytest.raises(Conflict, match="already requests"):
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
        ({"ends_at": timezone.now() - timedelta(days=1)}, "end would be before the beginning"),
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


# ------------------------------------------------------------------ more of a budget


HOUR = 3_600_000  # thousandths of a GPU, seconds


def a_budget(subject: object, **words: object) -> Budget:
    values = {
        "name": "Autumn",
        "resource": "gpu_milli_seconds",
        "amount": 100 * HOUR,
        "period": "month",
    } | words
    return make_budget(subject=subject, by=AdminFactory(), reason="the year", **values)  # type: ignore[arg-type]


def ask_budget(cast: Cast, budget: Budget, hours: int = 50, **words: object) -> Grant:
    return ask_for_quota(
        project=cast.project, resource=budget.resource, budget=budget, amount=hours * HOUR, reason="a paper",
        by=words.pop("by", cast.lead), **words,
    )  # fmt: skip


def allowed(budget: Budget) -> set[int]:
    """GPU-hours of the budget and of each of its periods that are or come."""
    budget.refresh_from_db()
    rows = budget.periods.filter(ends_at__gt=timezone.now()).values_list("amount", flat=True)
    return {amount // HOUR for amount in (budget.amount, *rows)}


def test_a_budget_is_raised_for_a_time_and_lowered_again_whatever_happened_meanwhile(cast: Cast) -> None:
    budget = a_budget(cast.project)
    grant = ask_budget(cast, budget, ends_at=timezone.now() + timedelta(days=3))
    assert (grant.evidence["bound"], grant.evidence["used"]) == (100 * HOUR, 0)
    assert notices_of(cast.operator) == [
        "Vision requests an increase by 50.0 GPU-hours of the budget Autumn."
    ]
    assert allowed(budget) == {100}

    grant = approve_grant(grant=grant, granted=40 * HOUR, by=cast.operator, reason="most of it")
    assert (grant.state, allowed(budget)) == (GrantState.ACTIVE, {140})
    assert notices_of(cast.lead)[0].endswith("was approved in part (40.0 GPU-hours) and is in force.")
    change_budget(budget=budget, changes={"amount": 160 * HOUR}, by=AdminFactory(), reason="more for all")
    period = budget.periods.filter(starts_at__lte=timezone.now()).get(ends_at__gt=timezone.now())
    budget.periods.filter(pk=period.pk).update(charged=150 * HOUR)

    assert begin_and_end(now=grant.ends_at) == (0, 1)

    assert allowed(budget) == {120}
    period.refresh_from_db()
    assert (period.charged, period.left) == (150 * HOUR, 0)  # what was used stays used: new jobs wait
    trail = AuditEvent.objects.filter(action="budget.change").order_by("id")
    assert [event.actor for event in trail if "request" in event.reason] == [None, None]


def test_a_budget_is_raised_on_its_day_and_given_back_early(cast: Cast) -> None:
    budget = a_budget(cast.project)
    starts_at = timezone.now() + timedelta(days=2)
    grant = approve_grant(
        grant=ask_budget(cast, budget, starts_at=starts_at), by=cast.operator, reason="next week"
    )
    assert (grant.state, allowed(budget)) == (GrantState.APPROVED, {100})

    assert begin_and_end(now=starts_at) == (1, 0)
    assert allowed(budget) == {150}
    withdraw_grant(grant=grant, by=cast.lead)
    assert allowed(budget) == {100}


def test_a_large_raise_of_a_budget_needs_a_second_person_too(cast: Cast) -> None:
    budget = a_budget(cast.project)

    grant = approve_grant(grant=ask_budget(cast, budget, 201), by=cast.operator, reason="a lot")

    assert (grant.state, allowed(budget)) == (GrantState.SECONDING, {100})


def test_only_a_budget_of_the_project_alone_that_is_not_over(cast: Cast) -> None:
    own, others = a_budget(cast.project), a_budget(OrganizationFactory(), name="All")

    with pytest.raises(InvalidInput, match="not one of Vision alone"):
        ask_budget(cast, others)
    with pytest.raises(InvalidInput, match="counts gpu_milli_seconds"):
        ask_for_quota(
            project=cast.project, resource="money_micros", budget=own, amount=1, reason="x", by=cast.lead
        )
    ask_budget(cast, own)
    with pytest.raises(Conflict, match="already requests more of the budget Autumn"):
        ask_budget(cast, own)
    assert ask(cast).pk  # a limit is another thing
    today = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    Budget.objects.filter(pk=own.pk).update(starts_at=today - timedelta(days=30), ends_at=today)
    with as_owner():
        Grant.objects.all().delete()
    own.refresh_from_db()
    with pytest.raises(InvalidInput, match="has ended"):
        ask_budget(cast, own)


def test_the_impact_of_more_of_a_budget_is_that_of_the_budget(cast: Cast) -> None:
    budget = a_budget(cast.project)
    impact = impact_of_grant(ask_budget(cast, budget))

    assert impact.amount == 150 * HOUR  # type: ignore[union-attr]
    assert "of 150.0 GPU-hours are used or reserved in the current period." in impact.sentences[1]
