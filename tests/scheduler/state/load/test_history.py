"""A cluster's own past as a workload: who came when and ran how long, on the nodes of today."""

from __future__ import annotations

from datetime import datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.core.policy import Policy
from scheduler.models import Job
from scheduler.simulator.cluster_replay import simulate
from scheduler.simulator.compare import as_it_was
from scheduler.state.load.history import load_past
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import AllocationFactory, AttemptFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def now() -> datetime:
    return timezone.now().replace(microsecond=0)


def ran(
    world: SmallWorld, name: str, *, came: datetime, began: datetime, ended: datetime | None, **more: object
) -> Job:
    """A job that has run, or runs, with its one attempt."""
    job = world.job(
        name, created_at=came, eligible_at=came, scheduled_at=began, started_at=began, completed_at=ended, epoch=1,
        state=JobState.COMPLETED if ended else JobState.RUNNING, **more,
    )  # fmt: skip
    AttemptFactory(
        job=job, epoch=1, scheduled_at=began, started_at=began, ended_at=ended,
        state=AttemptState.SUCCEEDED if ended else AttemptState.RUNNING,
    )  # fmt: skip
    return job


def test_what_waited_and_ran_in_the_span_comes_as_it_came_and_runs_as_it_ran(now: datetime) -> None:
    world, hour = SmallWorld(), timedelta(hours=1)
    world.node("n1", cpu_millis=2000)
    since = now - 10 * hour
    before = ran(world, "ran before", came=now - 20 * hour, began=now - 12 * hour, ended=now - 9 * hour)
    plain = ran(world, "plain", came=now - 8 * hour, began=now - 7 * hour, ended=now - 5 * hour)
    still = ran(
        world, "runs on", came=now - 2 * hour, began=now - 2 * hour, ended=None, time_limit_seconds=5 * 3600
    )
    waits = world.job("waits", created_at=now - hour, time_limit_seconds=1800)
    ran(world, "long ago", came=now - 30 * hour, began=now - 30 * hour, ended=now - 29 * hour)
    world.job("given up", created_at=now - hour, state=JobState.CANCELLED, completed_at=now)

    past = load_past(cluster_id=world.cluster.pk, since=since, until=now)

    jobs = past.workload.snapshot.pending
    start_ms = int(since.timestamp() * 1000)
    told = {
        number: ((came - start_ms) / 3_600_000, run / 3_600_000)
        for number, came, run in zip(
            jobs.id.tolist(), jobs.submitted_ms.tolist(), past.workload.run_ms.tolist(), strict=True
        )
    }
    assert told == {
        before.number: (0, 1),  # an hour of it was left
        plain.number: (2, 2),
        still.number: (8, 5),  # its whole limit
        waits.number: (9, 0.5),
    }
    assert past.unfinished == 2


def test_another_policy_is_compared_with_what_happened(now: datetime) -> None:
    world, hour = SmallWorld(), timedelta(hours=1)
    world.node("n1", cpu_millis=1000)
    ran(world, "one", came=now - 9 * hour, began=now - 9 * hour, ended=now - 8 * hour)
    ran(world, "late", came=now - 9 * hour, began=now - 5 * hour, ended=now - 4 * hour)

    workload = load_past(cluster_id=world.cluster.pk, since=now - 10 * hour, until=now).workload
    outcome = simulate(workload, Policy(name="fifo"))

    report = as_it_was(workload).report
    assert report.wait_max_seconds == 4 * 3600
    assert round(report.utilisation_percent) == 40  # two of the five hours from the first to the last
    waited = (outcome.started_ms - workload.snapshot.pending.submitted_ms) / 3_600_000
    assert waited.tolist() == [0, 1]  # it need not have waited longer than for the other


def test_the_command_says_who_would_have_waited_longer(now: datetime) -> None:
    world, hour = SmallWorld(), timedelta(hours=1)
    world.node("n1", cpu_millis=1000)
    ran(
        world,
        "short",
        came=now - 8 * hour,
        began=now - 4 * hour,
        ended=now - 3 * hour,
        time_limit_seconds=3600,
    )
    ran(
        world,
        "long",
        came=now - 9 * hour,
        began=now - 9 * hour,
        ended=now - 5 * hour,
        time_limit_seconds=14400,
    )
    said = StringIO()

    call_command("simulate", "past:1d", "--profile", "fifo", stdout=said, stderr=StringIO())

    assert "as it was" in said.getvalue()
    assert "fifo" in said.getvalue()
    with pytest.raises(CommandError, match="no job waited or ran"):
        call_command("simulate", "past:1h", stdout=said, stderr=StringIO())
    with pytest.raises(CommandError, match="there is no cluster 'nowhere'"):
        call_command("simulate", "past:1d", "--cluster", "nowhere", stdout=said)


def test_time_that_it_stood_still_is_no_run_time_and_more_tasks_are_more_work(now: datetime) -> None:
    world, hour = SmallWorld(), timedelta(hours=1)
    node = world.node("n1", cpu_millis=8000)
    still = ran(world, "stood still", came=now - 9 * hour, began=now - 9 * hour, ended=now - 5 * hour)
    still.attempts.update(suspended_ms=3_600_000)
    gang = ran(
        world, "gang", came=now - 9 * hour, began=now - 9 * hour, ended=now - 6 * hour, tasks=4, min_tasks=2
    )
    for rank, hours in enumerate((3, 3, 3, 1)):  # one of its tasks left after an hour
        AllocationFactory(
            attempt=gang.attempts.get(), rank=rank, node=node,
            held_at=now - 9 * hour, released_at=now - (9 - hours) * hour,
        )  # fmt: skip

    workload = load_past(cluster_id=world.cluster.pk, since=now - 10 * hour, until=now).workload

    hours = dict(
        zip(workload.snapshot.pending.id.tolist(), (workload.run_ms / 3_600_000).tolist(), strict=True)
    )
    assert hours == {still.number: 3, gang.number: 5}
    assert as_it_was(workload).report.makespan_seconds == 4 * 3600
