"""The backfill of the core gives, job by job, the schedules that others published for a real log."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.core.backfill.backfill import BackfillLimits
from scheduler.simulator.pool import EASY, Schedule, replay
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
    ("turns", "clairvoyant", "expected"),
    [(EASY, True, 71.7224), (SHORTEST_FIRST, False, 69.4054), (SHORTEST_FIRST, True, 49.8477)],
    ids=["easy clairvoyant", "easy-sjbf", "easy-sjbf clairvoyant"],
)
def test_variants_reach_the_published_slowdown(
    kth: Workload, turns: BackfillLimits, clairvoyant: bool, expected: float
) -> None:
    assert round(mean_slowdown(kth, replay(kth, turns, clairvoyant=clairvoyant)), 4) == expected


def test_a_pass_that_breaks_its_promise_is_noticed(kth: Workload) -> None:
    some = kth.head(4000)

    greedy = replay(some, BackfillLimits(promises=0))

    assert (greedy.started_ms - some.jobs.submitted_ms != some.waited_ms).any()
