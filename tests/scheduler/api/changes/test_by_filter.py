"""`POST /jobs:act`: one verb on all jobs that a filter finds, each judged by itself."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.models import AuditEvent
from scheduler.core.lifecycle import JobState
from scheduler.models import Job, JobEvent
from scheduler.services.changes import by_filter
from tests.scheduler.api.conftest import Api
from tests.scheduler.api.test_jobs import running
from tests.scheduler.portal import Portal

ACT = "/api/v1/jobs:act"


def states(*jobs: Job) -> list[str]:
    return [Job.objects.get(pk=job.pk).state for job in jobs]


def test_a_verb_is_for_all_that_match_and_each_is_judged(api: Api, portal: Portal, monkeypatch: Any) -> None:
    monkeypatch.setattr(by_filter, "BATCH", 2)
    mine = [portal.submit(name="mine") for _ in range(3)]
    theirs = portal.submit(by=portal.cast.colleague, name="theirs")
    busy = running(portal, name="busy")
    client = api(portal.cast.owner)

    asked = {"verb": "hold", "filter": {"project": "vision"}, "reason": "wait", "dry_run": True}
    dry = client.post(ACT, asked).json()
    assert (dry["matched"], dry["done"], dry["refused"], dry["dry_run"]) == (4, 3, 1, True)
    assert dry["refusals"] == [
        {
            "number": theirs.number,
            "job_id": str(theirs.number),
            "detail": "You do not have permission to hold it.",
        }
    ]
    assert states(*mine, theirs, busy) == ["queued"] * 4 + ["running"]
    assert not JobEvent.objects.filter(kind="job.held").exists()

    done = client.post(ACT, asked | {"dry_run": False}).json()
    assert {**done, "dry_run": True} == dry
    assert states(*mine, theirs, busy) == ["held"] * 3 + ["queued", "running"]
    assert JobEvent.objects.filter(kind="job.held", because="held by owner: wait").count() == 3
    rows = AuditEvent.objects.filter(action="job.hold").order_by("pk")
    assert [row.after["numbers"] for row in rows] == [[j.number for j in mine[:2]], [mine[2].number]]

    # A bounded call says what is left, and the next goes on behind it.
    first = client.post(ACT, {"verb": "release", "filter": {"user": "me"}, "most": 2}).json()
    assert (first["done"], first["left"], first["last"]) == (2, 1, mine[1].number)
    rest = {"verb": "release", "filter": {"user": "me"}, "most": 2, "after": first["last"]}
    assert client.post(ACT, rest).json()["done"] == 1
    assert states(*mine) == ["queued"] * 3

    ranked = {"verb": "reprioritise", "filter": {"name": "mine"}, "priority": 10}
    assert client.post(ACT, ranked | {"dry_run": True}).json()["done"] == 3
    assert {job.priority for job in Job.objects.filter(name="mine")} == {50}
    assert client.post(ACT, ranked).json()["done"] == 3
    assert client.post(ACT, ranked).json()["unchanged"] == 3
    high = client.post(ACT, ranked | {"priority": "CRITICAL"}).json()
    assert (high["refused"], high["done"]) == (3, 0)
    assert {job.priority for job in Job.objects.filter(name="mine")} == {10}

    requeued = client.post(ACT, {"verb": "requeue", "filter": {"project": "vision"}}).json()
    assert (requeued["matched"], requeued["done"], states(busy)) == (1, 1, ["preempting"])
    cancelled = client.post(ACT, {"verb": "cancel", "filter": {"user": "me", "name": "mine"}}).json()
    assert (cancelled["done"], states(*mine)) == (3, ["cancelled"] * 3)
    assert client.post(ACT, {"verb": "cancel", "filter": {"name": "mine"}}).json()["matched"] == 0


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"verb", "filter"}),
        ({"verb": "hold", "filter": {}}, {"filter"}),
        ({"verb": "start", "filter": {"user": "me"}}, {"verb"}),
        (
            {"verb": "hold", "filter": {"colour": "red", "state": "waiting"}},
            {"filter/colour", "filter/state"},
        ),
        ({"verb": "hold", "filter": {"user": True}}, {"filter/user"}),
        ({"verb": "reprioritise", "filter": {"user": "me"}}, {"priority"}),
        (
            {"verb": "hold", "filter": {"user": "me"}, "priority": 1, "most": 0, "x": 1},
            {"priority", "most", "x"},
        ),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_whole(
    api: Api, portal: Portal, body: dict[str, Any], fields: set[str]
) -> None:
    job = portal.submit()

    answer = api(portal.cast.owner).post(ACT, body)

    assert (answer.status_code, {one["field"] for one in answer.json()["errors"]}) == (422, fields)
    assert states(job) == [JobState.QUEUED]


@pytest.mark.parametrize(("who", "done", "refused"), [
    ("owner", 1, 0), ("lead", 1, 0), ("operator", 1, 0), ("colleague", 0, 1), ("viewer", 0, 1), ("auditor", 0, 1),
    ("stranger", 0, 0),
])  # fmt: skip
def test_each_job_is_acted_on_with_the_callers_rights(
    api: Api, portal: Portal, who: str, done: int, refused: int
) -> None:
    job = portal.submit(name="one")

    answer = api(getattr(portal.cast, who)).post(ACT, {"verb": "cancel", "filter": {"name": "one"}}).json()

    assert (answer["done"], answer["refused"]) == (done, refused)
    assert states(job) == [JobState.CANCELLED if done else JobState.QUEUED]


def test_what_an_operator_holds_stays_held_and_what_waits_for_others_goes_on_waiting(
    api: Api, portal: Portal
) -> None:
    first = portal.submit(name="first")
    waiting = portal.submit(name="mine", depends_on=[first.number])
    free, held = portal.submit(name="mine"), portal.submit(name="mine")
    owner, operator = api(portal.cast.owner), api(portal.cast.operator)
    operator.post(f"/api/v1/jobs/{held.number}/hold")
    owner.post(ACT, {"verb": "hold", "filter": {"name": "mine"}})

    answer = owner.post(ACT, {"verb": "release", "filter": {"name": "mine"}}).json()

    assert (answer["done"], answer["refused"]) == (2, 1)
    assert "operator" in answer["refusals"][0]["detail"]
    assert states(waiting, free, held) == ["blocked", "queued", "held"]
