"""Conservative backfill gives, job by job, the schedule that the obvious plan of reservations gives."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from scheduler.core.backfill.backfill import BackfillLimits
from scheduler.simulator.kept import replay_kept
from scheduler.simulator.pool import Schedule, replay
from scheduler.simulator.report import bounded_slowdown
from scheduler.simulator.workload import JobColumns, Workload, WorkloadError, read_swf
from tests.support.traces import trace

CONSERVATIVE = BackfillLimits(promises=10**9)


def obvious_starts(workload: Workload) -> list[int]:
    """Plan everybody anew in the order they came whenever something comes or ends: no levels, no caches."""
    jobs = workload.jobs
    came, runs, limits, needs = (
        column.tolist() for column in (jobs.submitted_ms, jobs.run_ms, jobs.limit_ms, jobs.processors)
    )
    started: dict[int, int] = {}
    waiting: list[int] = []
    running: list[tuple[int, int, int]] = []
    arrived = turn = 0

    def free_at(moment: int, held: list[tuple[int, int, int]]) -> int:
        return workload.processors - sum(need for begin, end, need in held if begin <= moment < end)

    while arrived < len(came) or running:
        if arrived < len(came) and (not running or came[arrived] <= running[0][0]):
            now = came[arrived]
            waiting.append(arrived)
            arrived += 1
        else:
            now = heapq.heappop(running)[0]
        held = [
            (0, started[row] + limits[row], needs[row])
            for _, _, row in running
            if started[row] + limits[row] > now
        ]
        for row in list(waiting):
            for moment in sorted({now} | {end for _, end, _ in held}):
                begins = {begin for begin, _, _ in held if moment < begin < moment + limits[row]}
                if all(free_at(at, held) >= needs[row] for at in {moment} | begins):
                    break
            held.append((moment, moment + limits[row], needs[row]))
            if moment == now:
                waiting.remove(row)
                started[row] = now
                turn += 1
                heapq.heappush(running, (now + runs[row], turn, row))
    return [started[row] for row in range(len(came))]


@pytest.fixture(scope="module")
def some() -> Workload:
    return read_swf(trace("swf-easy-gold", "KTH-SP2.easy.swf.gz")).head(400)


def test_every_job_starts_when_the_obvious_plan_says(some: Workload) -> None:
    schedule = replay(some, CONSERVATIVE)

    assert schedule.started_ms.tolist() == obvious_starts(some)
    assert np.count_nonzero(schedule.started_ms > some.jobs.submitted_ms) > 20


def test_a_pool_that_forgets_what_it_promised_is_noticed(
    some: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.core.backfill.timeline._Steps.take", lambda self, begin, end, need: None)

    assert replay(some, CONSERVATIVE).started_ms.tolist() != obvious_starts(some)


# ---------------------------------------------------------------- planned from nothing, or reservations kept


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


def test_planning_from_nothing_may_make_one_later_than_it_was_told() -> None:
    """The worked example of docs/explanation/conservative.md: D was told minute 10."""
    anew = replay(four_jobs(), CONSERVATIVE).started_ms // 60_000
    kept = replay_kept(four_jobs()).started_ms // 60_000

    assert anew.tolist() == [0, 0, 10, 20]
    assert kept.tolist() == [0, 0, 15, 5]


def test_with_limits_that_are_kept_to_the_second_both_are_one_schedule(some: Workload) -> None:
    anew = replay(some, CONSERVATIVE, clairvoyant=True)

    assert replay_kept(some, clairvoyant=True).started_ms.tolist() == anew.started_ms.tolist()


def test_nobody_starts_later_than_first_told_where_reservations_are_kept(some: Workload) -> None:
    """What somebody is told first is where it starts if all before it use their whole limits from then on."""
    found = replay_kept(some).started_ms
    ran = some.jobs.run_ms
    for row in range(20, len(some.jobs), 40):
        at = int(some.jobs.submitted_ms[row])
        ended = (found >= 0) & (found + ran <= at)
        jobs = some.head(row + 1).jobs
        limits = np.where(ended[: row + 1], ran[: row + 1], jobs.limit_ms)
        told = replay_kept(
            Workload("told", some.processors, JobColumns(
                id=jobs.id, submitted_ms=jobs.submitted_ms, run_ms=limits, limit_ms=jobs.limit_ms,
                processors=jobs.processors,
            ))
        ).started_ms[row]  # fmt: skip
        assert found[row] <= told


def test_the_figure_of_the_published_table_is_reached_with_reservations_kept() -> None:
    workload = read_swf(trace("swf-easy-gold", "KTH-SP2.easy.swf.gz"))

    assert round(mean_slowdown(workload, replay_kept(workload)), 4) == 89.0371


def test_a_job_larger_than_the_machine_is_named() -> None:
    with pytest.raises(WorkloadError, match="more than its 2 processors"):
        replay_kept(Workload("large", 2, JobColumns(id=[1], run_ms=[1000], limit_ms=[1000], processors=[3])))
