"""Conservative backfill gives, job by job, the schedule that the obvious plan of reservations gives (B9)."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from scheduler.core.backfill import Turns
from scheduler.simulator.pool import replay
from scheduler.simulator.workload import Workload, read_swf
from tests.support.traces import trace

CONSERVATIVE = Turns(promises=10**9)


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
    monkeypatch.setattr("scheduler.core.timeline._Steps.take", lambda self, begin, end, need: None)

    assert replay(some, CONSERVATIVE).started_ms.tolist() != obvious_starts(some)
