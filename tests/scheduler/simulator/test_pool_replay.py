"""The replay of a log through one pool: published schedules of a real log, and conservative backfill, job by job."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from scheduler.core.backfill.backfill import BackfillLimits
from scheduler.core.backfill.timeline import Pool
from scheduler.simulator import predicted_replay
from scheduler.simulator.pool_replay import EASY, Schedule, replay
from scheduler.simulator.predicted_replay import replay_predicted
from scheduler.simulator.report import bounded_slowdown
from scheduler.simulator.workload import Workload, read_swf
from tests.support.traces import trace

SHORTEST_FIRST = BackfillLimits(promises=1, shortest_first=True)


@pytest.fixture(scope="module")
def kth() -> Workload:
    return read_swf(trace("swf-easy-gold", "KTH-SP2.easy.swf.gz"))


def mean_slowdown(workload: Workload, schedule: Schedule) -> float:
    jobs = workload.jobs
    return float(bounded_slowdown(schedule.started_ms - jobs.submitted_ms, jobs.run_ms).mean())


def test_every_job_of_kth_starts_when_the_published_easy_schedule_says(kth: Workload) -> None:
    schedule = replay(kth, EASY)

    waits = schedule.started_ms - kth.jobs.submitted_ms
    assert len(waits) == 28_481
    assert np.flatnonzero(waits != kth.waited_ms).tolist() == []
    assert round(mean_slowdown(kth, schedule), 4) == 92.5765


@pytest.mark.parametrize(
    ("limits", "clairvoyant", "expected"),
    [(EASY, True, 71.7224), (SHORTEST_FIRST, False, 69.4054), (SHORTEST_FIRST, True, 49.8477)],
    ids=["easy clairvoyant", "easy-sjbf", "easy-sjbf clairvoyant"],
)
def test_variants_reach_the_published_slowdown(
    kth: Workload, limits: BackfillLimits, clairvoyant: bool, expected: float
) -> None:
    assert round(mean_slowdown(kth, replay(kth, limits, clairvoyant=clairvoyant)), 4) == expected


def test_easy_plus_plus_reaches_the_published_slowdown(kth: Workload) -> None:
    schedule = replay_predicted(kth)

    waits = schedule.started_ms - kth.jobs.submitted_ms
    assert round(float(bounded_slowdown(waits, kth.jobs.run_ms).mean()), 4) == 63.5007
    assert (schedule.predicted_ms <= kth.jobs.limit_ms).all()


def test_without_corrections_of_predictions_it_does_not(
    kth: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that outlives its prediction is taken for one that runs to its limit: another schedule."""
    some = kth.head(4000)
    as_published = replay_predicted(some)
    monkeypatch.setattr(predicted_replay, "STEPS_MS", (0, 10**12))

    assert (replay_predicted(some).started_ms != as_published.started_ms).any()


def test_a_pass_that_ignores_reserved_starts_is_noticed(kth: Workload) -> None:
    some = kth.head(4000)

    greedy = replay(some, BackfillLimits(promises=0))

    assert (greedy.started_ms - some.jobs.submitted_ms != some.waited_ms).any()


# ---------------------------------------------------------------- conservative backfill


#: A reserved start for every waiting job.
CONSERVATIVE = BackfillLimits(promises=10**9)


def plainly_planned(workload: Workload) -> list[int]:
    """Plan all jobs anew in order of arrival at each arrival and end, in the plainest way: no steps, no caches."""
    jobs = workload.jobs
    came, runs, limits, needs = (
        column.tolist() for column in (jobs.submitted_ms, jobs.run_ms, jobs.limit_ms, jobs.processors)
    )
    started: dict[int, int] = {}
    waiting: list[int] = []
    running: list[tuple[int, int, int]] = []
    arrived = begun = 0

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
                begun += 1
                heapq.heappush(running, (now + runs[row], begun, row))
    return [started[row] for row in range(len(came))]


@pytest.fixture(scope="module")
def some(kth: Workload) -> Workload:
    return kth.head(400)


def test_conservative_backfill_starts_every_job_as_a_plain_plan_of_reservations_does(some: Workload) -> None:
    schedule = replay(some, CONSERVATIVE)

    assert schedule.started_ms.tolist() == plainly_planned(some)
    assert np.count_nonzero(schedule.started_ms > some.jobs.submitted_ms) > 20


def test_a_pool_that_reserves_a_day_too_late_is_noticed(
    some: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Pool.reserve
    monkeypatch.setattr(
        Pool, "reserve", lambda self, row, at_ms, place: real(self, row, at_ms + 86_400_000, place)
    )

    assert replay(some, CONSERVATIVE).started_ms.tolist() != plainly_planned(some)
