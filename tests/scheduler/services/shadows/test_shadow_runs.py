"""A draft is planned beside the profile in force: it differs where it should, starts nothing, and ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import AuditEvent, User
from scheduler.models import Cycle, Job, ProfileVersion, SchedulerProfile, ShadowCycle, ShadowJob, ShadowRun
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.planning.replay import replay
from scheduler.services.shadows import compare
from scheduler.state.records import recordings
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import Cast, SchedulerProfileFactory, bearer, the_cast

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> SmallWorld:
    """One node with room for one of two jobs: the long one came first."""
    recordings.forget_bases()
    world = SmallWorld()
    world.cluster.profile = SchedulerProfileFactory(name="day", policy="fifo")
    world.cluster.save()
    world.node("only", cpu_millis=4_000)
    world.job("long", cpu_millis=4_000, time_limit_seconds=7200)
    world.job("short", cpu_millis=4_000, time_limit_seconds=60)
    return world


@pytest.fixture
def cast() -> Cast:
    return the_cast()


def call(client: Client, by: User, path: str, body: Any) -> Any:
    return client.post(
        f"/api/v1/shadow-runs{path}", body, content_type="application/json", headers=bearer(by, "admin")
    )


def start(client: Client, by: User, world: SmallWorld, **more: Any) -> Any:
    body = {"cluster": world.cluster.slug, "draft": {"policy": "sjf"}, "reason": "shorter waits", **more}
    return call(client, by, "", body)


def plan(world: SmallWorld) -> Cycle:
    run_cycle(cluster_id=world.cluster.pk, trigger="test")
    return Cycle.objects.latest("id")


def test_a_draft_is_compared_published_and_changes_nothing_before(
    client: Client, cast: Cast, world: SmallWorld
) -> None:
    made = start(client, cast.operator, world)
    assert made.status_code == 201, made.json()
    assert made.json()["changes"] == [{"field": "policy", "before": "fifo", "after": "sjf"}]
    number = made.json()["id"]
    cycle = plan(world)

    assert compare.compare_all() == 1

    long, short = Job.objects.get(name="long"), Job.objects.get(name="short")
    assert (long.attempts.exists(), short.attempts.exists()) == (True, False)
    shown = client.get(f"/api/v1/shadow-runs/{number}", headers=bearer(cast.auditor, "nodes:read")).json()
    [found] = shown["newest_cycles"]
    counts = ("cycle", "starts", "shadow_starts", "only_real", "only_shadow", "waiting")
    assert [found[name] for name in counts] == [cycle.pk, 1, 1, 1, 1, 1]
    assert [one["job"] for one in shown["later"]] == [long.number]
    assert [one["job"] for one in shown["earlier"]] == [short.number]
    assert replay(cycle_id=cycle.pk).identical
    assert SchedulerProfile.objects.get(name="day").policy == "fifo"

    assert call(client, cast.operator, f"/{number}/publish", {"reason": "less waiting"}).status_code == 403
    done = call(client, cast.admin, f"/{number}/publish", {"reason": "less waiting"})
    assert (done.status_code, done.json()["state"]) == (200, "published")
    newest = ProfileVersion.objects.latest("id")
    assert (newest.content["policy"], newest.origin, newest.origin_number) == ("sjf", "publish", number)
    assert AuditEvent.objects.filter(action="schedulerprofile.publish", reason="less waiting").count() == 1
    assert call(client, cast.admin, f"/{number}/publish", {"reason": "again"}).status_code in (409, 412)


def test_a_draft_of_an_older_version_is_published_only_by_force(
    client: Client, cast: Cast, world: SmallWorld
) -> None:
    number = start(client, cast.admin, world).json()["id"]
    SchedulerProfile.objects.filter(name="day").update(version=5)

    refused = call(client, cast.admin, f"/{number}/publish", {"reason": "x"})

    assert (refused.status_code, "which is now version 5" in refused.json()["detail"]) == (412, True)
    assert call(client, cast.admin, f"/{number}/publish", {"reason": "x", "force": True}).status_code == 200


def test_only_operators_start_and_stop(client: Client, cast: Cast, world: SmallWorld) -> None:
    number = start(client, cast.operator, world).json()["id"]
    for name, person in cast.people().items():
        operates = person in (cast.operator, cast.admin)
        assert start(client, person, world).status_code == (409 if operates else 403), name
        reads = client.get(f"/api/v1/shadow-runs/{number}", headers=bearer(person, "nodes:read")).status_code
        assert reads == (200 if operates or person == cast.auditor else 403), name
    for name, person in cast.people().items():
        operates = person in (cast.operator, cast.admin)
        stopped = call(client, person, f"/{number}/stop", {"reason": "x"}).status_code
        assert stopped == (200 if operates else 403), name


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"draft": {"policy": "nosuch"}}, "not one of the available choices"),
        ({"draft": {"policy": "fifo"}}, "The draft is what the profile day says now"),
        ({"draft": {"policy": "fair_queue"}}, "cannot follow fair queueing"),
        ({"draft": {"name": "night"}}, "a draft keeps the name of its profile"),
        ({"draft": None}, "Give the fields that differ"),
        ({"minutes": 100_000}, "in the next 14 days"),
        ({"every": 0}, "every: Must be"),
        ({"cluster": "nowhere"}, "There is no cluster 'nowhere'"),
        ({"hours": 3}, "There is no such field"),
    ],
)
def test_what_cannot_be_drafted_is_refused(
    client: Client, cast: Cast, world: SmallWorld, more: Any, says: str
) -> None:
    refused = start(client, cast.operator, world, **more)

    assert refused.status_code == 422, refused.json()
    assert says in refused.json()["detail"]
    assert not ShadowRun.objects.exists()


def test_a_draft_that_cannot_be_planned_is_set_aside_with_its_cause(
    client: Client, cast: Cast, world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(client, cast.operator, world)
    plan(world)

    def broken(*args: Any, **words: Any) -> Any:
        raise ValueError("no such column")

    monkeypatch.setattr(compare, "plan_cycle", broken)
    assert compare.compare_all() == 0

    run = ShadowRun.objects.get()
    assert (run.state, run.cause) == ("failed", "ValueError: no such column")
    assert start(client, cast.operator, world).status_code == 201


def test_fair_share_of_a_draft_reads_the_shares_that_the_recording_does_not_have(
    client: Client, cast: Cast, world: SmallWorld
) -> None:
    start(client, cast.operator, world, draft={"policy": "fairshare"})
    plan(world)

    assert compare.compare_all() == 1
    assert ShadowRun.objects.get().state == "running"


def test_rows_and_time_are_bounded(
    client: Client, cast: Cast, world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "MOST_JOBS", 1)
    monkeypatch.setattr(compare, "MOST_CYCLES", 1)
    start(client, cast.operator, world)
    plan(world)
    compare.compare_all()

    run = ShadowRun.objects.get()
    assert (ShadowJob.objects.count(), run.jobs_left_out) == (1, 1)
    assert (run.state, "the most of one run" in run.cause) == ("ended", True)

    start(client, cast.operator, world)
    ShadowRun.objects.filter(state="running").update(
        made_at=timezone.now() - timedelta(hours=1), until=timezone.now() - timedelta(seconds=1)
    )
    compare.compare_all()
    assert not ShadowRun.objects.filter(state="running").exists()
    assert ShadowCycle.objects.count() == 1
