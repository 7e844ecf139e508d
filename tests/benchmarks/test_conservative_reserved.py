"""Conservative backfill with reservations that jobs keep, beside the one that plans anew in each pass."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.replays.conservative_reserved import replay_reserved
from scheduler.core.backfill.backfill import BackfillLimits
from scheduler.simulator.pool_replay import Schedule, replay
from scheduler.simulator.report import bounded_slowdown
from scheduler.simulator.workload import JobColumns, Workload, WorkloadError, read_swf
from tests.support.traces import trace

#: A reserved start for every waiting job.
CONSERVATIVE = BackfillLimits(promises=10**9)


def mean_slowdown(workload: Workload, schedule: Schedule) -> float:
    jobs = workload.jobs
    return float(bounded_slowdown(schedule.started_ms - jobs.submitted_ms, jobs.run_ms).mean())


def four_jobs() -> Workload:
    """Two processors; all come at once. A asked for 40 minutes and ends after 5; the others keep to 10."""
    return Workload(
        "four jobs",
        2,
        JobColumns(
            id=[1, 2, 3, 4],
            run_ms=[minutes * 60_000 for minutes in (5, 10, 10, 10)],
            limit_ms=[minutes * 60_000 for minutes in (40, 10, 10, 10)],
            processors=[1, 1, 2, 1],
        ),
    )


def test_planning_anew_may_start_a_job_later_than_its_first_expected_start() -> None:
    """The worked example of docs/explanation/conservative.md: the first expected start of D is minute 10."""
    anew = replay(four_jobs(), CONSERVATIVE).started_ms // 60_000
    reserved = replay_reserved(four_jobs()).started_ms // 60_000

    assert anew.tolist() == [0, 0, 10, 20]
    assert reserved.tolist() == [0, 0, 15, 5]


@pytest.fixture(scope="module")
def some() -> Workload:
    return read_swf(trace("swf-easy-gold", "KTH-SP2.easy.swf.gz")).head(400)


def test_with_exact_limits_both_give_the_same_schedule(some: Workload) -> None:
    anew = replay(some, CONSERVATIVE, clairvoyant=True)

    assert replay_reserved(some, clairvoyant=True).started_ms.tolist() == anew.started_ms.tolist()


def test_no_job_starts_later_than_its_first_reservation(some: Workload) -> None:
    """The first reservation is the start if all earlier jobs use their whole limits from then on."""
    found = replay_reserved(some).started_ms
    ran = some.jobs.run_ms
    for row in range(20, len(some.jobs), 40):
        at = int(some.jobs.submitted_ms[row])
        ended = (found >= 0) & (found + ran <= at)
        jobs = some.head(row + 1).jobs
        limits = np.where(ended[: row + 1], ran[: row + 1], jobs.limit_ms)
        first = replay_reserved(
            Workload("first", some.processors, JobColumns(
                id=jobs.id, submitted_ms=jobs.submitted_ms, run_ms=limits, limit_ms=jobs.limit_ms,
                processors=jobs.processors,
            ))
        ).started_ms[row]  # fmt: skip
        assert found[row] <= first


def test_the_published_slowdown_is_reached() -> None:
    workload = read_swf(trace("swf-easy-gold", "KTH-SP2.easy.swf.gz"))

    assert round(mean_slowdown(workload, replay_reserved(workload)), 4) == 89.0371


def test_a_job_larger_than_the_machine_is_named() -> None:
    with pytest.raises(WorkloadError, match="more than its 2 processors"):
        replay_reserved(
            Workload("large", 2, JobColumns(id=[1], run_ms=[1000], limit_ms=[1000], processors=[3]))
        )
