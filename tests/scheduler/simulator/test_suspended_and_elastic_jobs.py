"""Suspended and elastic jobs, as forecasts and the simulator play them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler.core.forecast.forecast import Course, RunTimes, play_forward
from scheduler.core.forecast.progress import Progress, speed_of
from scheduler.core.forecast.virtual_allocations import VirtualAllocations
from scheduler.core.forecast.virtual_cluster import VirtualCluster
from scheduler.core.forecast.virtual_runs import VirtualRuns
from scheduler.core.policy import Policy
from scheduler.core.snapshot.constraints import JobSelector, JobTerm
from scheduler.simulator.cluster_replay import Outcome, simulate
from scheduler.simulator.cluster_workload import ClusterWorkload
from scheduler.simulator.compare import PREEMPT, run
from tests.support.builders import NOW_MS, World, a_job, a_node, a_quota, a_world, running

MINUTE_MS = 60_000
QUICK = replace(PREEMPT, grace_seconds=0, protected_seconds=0)
SUSPENDING = Policy(name="priority", preemption=replace(QUICK, mode="suspend"))
ELASTIC = Policy(name="priority", preemption=QUICK, resize_seconds=600)


def simulated(
    world: World, minutes: list[int], policy: Policy, **words: Any
) -> tuple[dict[str, int], Outcome]:
    """Job -> in which minute it ended."""
    pending = world.snapshot.pending
    count = len(pending)
    workload = ClusterWorkload(
        "made", world.snapshot, np.array(minutes) * MINUTE_MS, np.full(count, 1000), 1000, **words
    )
    outcome = simulate(workload, policy)
    names = {number: name for name, number in world.jobs.items()}
    ends = (outcome.ended_ms - NOW_MS) // MINUTE_MS
    return {
        names[number]: end for number, end in zip(pending.id.tolist(), ends.tolist(), strict=True)
    }, outcome


def forecast_starts(world: World, policy: Policy) -> dict[str, int]:
    """Job -> in which minute it starts, if all run to their limits."""
    ids = world.snapshot.pending.id.tolist()
    future = play_forward(world.snapshot, policy, RunTimes(), Course.LIMITS, ids)
    names = {number: name for name, number in world.jobs.items()}
    return {names[one]: (at - NOW_MS) // MINUTE_MS for one, at in future.started_ms.items()}


# ------------------------------------------------------------------ suspended jobs


def a_low_and_a_high_one(**low: Any) -> World:
    return a_world(
        nodes=[a_node("n1", cpus=4, memory_gib=8, gpus=1)],
        pending=[
            a_job("low", cpus=4, memory_gib=2, priority=10, minutes=60, **low),
            a_job("high", cpus=4, memory_gib=2, priority=90, minutes=10, submitted=20),
        ],
    )


def test_a_suspended_job_resumes_where_it_was() -> None:
    still, outcome = simulated(a_low_and_a_high_one(), [60, 10], SUSPENDING)
    again, lost = simulated(a_low_and_a_high_one(), [60, 10], replace(SUSPENDING, preemption=QUICK))

    assert (still, again) == ({"low": 70, "high": 30}, {"low": 90, "high": 30})
    assert (outcome.suspensions, outcome.preemptions, outcome.lost_ms) == (1, 0, 0)
    assert (lost.suspensions, lost.preemptions, lost.lost_ms // MINUTE_MS) == (0, 1, 20)


def test_a_suspended_job_keeps_its_memory_and_is_requeued_for_a_job_that_needs_that() -> None:
    world = a_world(
        nodes=[a_node("n1", cpus=4, memory_gib=8)],
        pending=[
            a_job("low", cpus=4, memory_gib=5, priority=10, minutes=60),
            a_job("high", cpus=3, memory_gib=2, priority=90, minutes=10, submitted=20),
            a_job("middle", cpus=1, memory_gib=2, priority=10, minutes=10, submitted=21),
        ],
    )
    large = a_world(
        nodes=[a_node("n1", cpus=4, memory_gib=8)],
        pending=[
            a_job("low", cpus=4, memory_gib=5, priority=10, minutes=60),
            a_job("high", cpus=1, memory_gib=4, priority=90, minutes=10, submitted=20),
        ],
    )

    # A core is free in between, but only a GiB of memory: the third waits until the first is over.
    assert simulated(world, [60, 10, 10], SUSPENDING)[0] == {"low": 70, "high": 30, "middle": 80}
    ends, outcome = simulated(large, [60, 10], SUSPENDING)
    assert (ends, outcome.preemptions, outcome.suspensions) == ({"low": 90, "high": 30}, 1, 0)


def test_a_job_with_gpus_is_requeued_and_not_suspended() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=1)],
        pending=[
            a_job("low", gpus=1, priority=10, minutes=60),
            a_job("high", gpus=1, priority=90, minutes=10, submitted=20),
        ],
    )

    ends, outcome = simulated(world, [60, 10], SUSPENDING)

    assert (ends, outcome.preemptions, outcome.suspensions) == ({"low": 90, "high": 30}, 1, 0)


@pytest.mark.parametrize("pause", ["", "asked", "suspended"])
def test_a_forecast_counts_the_time_that_a_suspended_job_needs(pause: str) -> None:
    """The last job starts when the low one ends: 40 minutes of it are left, whichever job runs in between."""
    low = running(
        a_job("low", cpus=4, priority=10), "n1", started=-20, ends_in=40, pause=pause,
        stop_by=1 if pause == "asked" else 0, stopped_for="high" if pause == "asked" else "",
    )  # fmt: skip
    world = a_world(
        nodes=[a_node("n1", cpus=4)],
        running=[low],
        pending=[
            a_job("high", cpus=4, priority=90, minutes=10),
            a_job("last", cpus=4, priority=10, minutes=10),
        ],
        quotas=[a_quota("cpu_millis", 4000, used=0 if pause == "suspended" else 4000)],
    )

    assert forecast_starts(world, SUSPENDING) == {"high": 0, "last": 50}


def test_a_time_limit_does_not_run_during_a_suspension() -> None:
    world = a_low_and_a_high_one()
    policy = replace(SUSPENDING, backfill="easy")

    ends, _ = simulated(world, [60, 10], policy)

    assert ends["low"] == 70


# ------------------------------------------------------------------ elastic jobs


def an_elastic_one_and(*others: Any, gpus: int = 4, **words: Any) -> World:
    sweep = {"gpus": 1, "priority": 10, "tasks": 1, "most": 4, "elastic": True, "minutes": 600} | words
    return a_world(nodes=[a_node("n1", gpus=gpus)], pending=[a_job("sweep", **sweep), *others])


def test_an_elastic_job_works_as_fast_as_it_is_large() -> None:
    """80 minutes of one task are 20 of four; a high job takes three of these for ten minutes."""
    high = a_job("high", gpus=3, priority=90, minutes=10, submitted=15)

    alone, _ = simulated(an_elastic_one_and(), [80], ELASTIC)
    ends, outcome = simulated(an_elastic_one_and(high), [80, 10], ELASTIC)

    assert alone == {"sweep": 20}
    # 15 minutes of four are 60; ten of one are 10, of the last ten four tasks make two and a half.
    assert ends["high"] == 25
    assert ends["sweep"] == 27
    assert (outcome.resizes, outcome.preemptions, outcome.lost_ms) == (2, 0, 0)


def test_without_the_option_an_elastic_job_is_preempted() -> None:
    high = a_job("high", gpus=3, priority=90, minutes=10, submitted=15)

    ends, outcome = simulated(an_elastic_one_and(high), [80, 10], replace(ELASTIC, resize_seconds=0))

    # 15 minutes are lost; it starts again on the GPU that is left.
    assert (outcome.resizes, outcome.preemptions) == (0, 1)
    assert ends == {"high": 25, "sweep": 95}


def test_an_elastic_job_grows_into_free_capacity_and_waits_between_two_changes() -> None:
    first = a_job("first", gpus=3, priority=50, minutes=5)
    calm, hasty = (
        simulated(an_elastic_one_and(first), [80, 5], replace(ELASTIC, resize_seconds=seconds))[0]
        for seconds in (600, 300)
    )

    # After 10 (or 5) minutes of one task it has four: 70 (75) minutes of one are left.
    assert calm["sweep"] == 10 + 17
    assert hasty["sweep"] == 5 + 18


def test_the_serial_part_of_work_is_not_sped_up_by_more_tasks() -> None:
    half, _ = simulated(an_elastic_one_and(), [80], ELASTIC, serial_millis=np.array([500]))

    assert half == {"sweep": 50}  # half of it at once, half of it four times as fast
    assert [speed_of(4), speed_of(4, 500), speed_of(4, 1000), speed_of(1, 500)] == [4000, 1600, 1000, 1000]


def test_a_forecast_lets_an_elastic_job_grow_while_no_job_waits_for_capacity() -> None:
    """The other begins in an hour. Four tasks are through by then; one would be half way."""
    world = a_world(
        nodes=[a_node("n1", gpus=4)],
        running=[
            running(a_job("sweep", gpus=1, tasks=1, most=4), ("n1", [0]), least=1, started=-60, ends_in=120, saved=-1)
        ],
        pending=[a_job("later", gpus=4, begin=60, minutes=10)],
    )  # fmt: skip

    assert forecast_starts(world, Policy(name="priority", resize_seconds=600)) == {"later": 60}
    assert forecast_starts(world, Policy(name="priority")) == {"later": 120}


def test_a_forecast_does_not_resize_a_job_that_has_never_saved_its_work() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=4)],
        running=[
            running(a_job("sweep", gpus=1, tasks=1, most=4), ("n1", [0]), least=1, started=-60, ends_in=120)
        ],
        pending=[a_job("later", gpus=4, begin=60, minutes=10)],
    )

    assert forecast_starts(world, Policy(name="priority", resize_seconds=600)) == {"later": 120}


def test_tasks_that_were_asked_to_end_are_gone_at_once() -> None:
    sweep = a_job("sweep", gpus=1, tasks=1, most=2, priority=10)
    world = a_world(
        nodes=[a_node("n1", gpus=2)],
        running=[
            running(
                sweep, ("n1", [0]), ("n1", [1]), least=1, started=-60, ends_in=120, resized=-1, leaving=(1,),
                resized_for="high",
            )
        ],
        pending=[a_job("high", gpus=1, priority=90, minutes=10), a_job("other", gpus=1, minutes=5, priority=5)],
    )  # fmt: skip

    assert forecast_starts(world, ELASTIC) == {"high": 0, "other": 10}


def test_a_preempted_job_goes_on_from_its_checkpoint_and_ends_when_that_work_is_done() -> None:
    """Ten minutes are lost of twenty: of sixty fifty are left. An end that was foreseen before means nothing."""
    world = a_world(
        nodes=[a_node("n1", gpus=1)],
        running=[running(a_job("low", gpus=1, priority=10), ("n1", [0]), started=-20, ends_in=40, saved=-10)],
        pending=[
            a_job("high", gpus=1, priority=90, minutes=10),
            a_job("last", gpus=1, priority=5, minutes=10),
        ],
    )

    assert forecast_starts(world, Policy(name="priority", preemption=QUICK)) == {"high": 0, "last": 60}


def test_a_job_that_starts_in_a_forecast_keeps_its_name_and_its_protection() -> None:
    apart = JobTerm("node", JobSelector(name="web"), apart=True)
    world = a_world(
        nodes=[a_node("n1", cpus=4, gpus=1)],
        pending=[
            a_job("web", cpus=1, minutes=30, preemptible=False, priority=10),
            a_job("shy", cpus=1, minutes=10, terms=[apart], priority=5),
            a_job("high", cpus=4, minutes=10, priority=90, submitted=5),
        ],
    )

    assert forecast_starts(world, SUSPENDING)["shy"] == 40
    assert simulated(world, [30, 10, 10], SUSPENDING)[0] == {"web": 30, "high": 40, "shy": 50}


def test_the_report_counts_a_suspension_as_waiting() -> None:
    world = a_low_and_a_high_one()
    workload = ClusterWorkload(
        "made", world.snapshot, np.array([60, 10]) * MINUTE_MS, np.full(2, 4000), 4000, users={}
    )

    report = run(workload, "suspending", SUSPENDING).report

    assert (report.suspensions, report.resizes, report.lost_gpu_hours) == (1, 0, 0)
    assert report.bounded_slowdown_mean == pytest.approx((70 / 60 + 1) / 2, abs=0.001)
    assert report.makespan_seconds == pytest.approx(70 * 60, abs=5)


# ------------------------------------------------------------------ a rule broken on purpose is noticed


def _works_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "change", lambda self, job_id, now_ms, speed: None)


def _keeps_its_cpus(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VirtualAllocations, "set_cpus", lambda self, job_id, cpu_millis: None)


def _gives_its_memory(patch: pytest.MonkeyPatch) -> None:
    real = VirtualAllocations.set_cpus

    def all_of_it(self: Any, job_id: int, cpu_millis: int) -> None:
        real(self, job_id, cpu_millis)
        self.used["memory_mib"][:] = 0

    patch.setattr(VirtualAllocations, "set_cpus", all_of_it)


def _forgets_its_work(patch: pytest.MonkeyPatch) -> None:
    real = Progress.end
    patch.setattr(Progress, "end", lambda self, job_id, now_ms, *, lost=None: real(self, job_id, now_ms))


def _never_saves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VirtualRuns, "save_always", lambda self, job_id: None)


def _an_old_end_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VirtualCluster, "due_ms", lambda self, job_id: 0 if job_id in self.running else None)


@pytest.mark.parametrize(
    "mutant",
    [_works_on, _keeps_its_cpus, _gives_its_memory, _forgets_its_work, _never_saves, _an_old_end_counts],
    ids=lambda mutant: mutant.__name__.removeprefix("_"),
)
def test_a_broken_rule_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)

    def all_stories() -> None:
        test_a_suspended_job_resumes_where_it_was()
        test_a_suspended_job_keeps_its_memory_and_is_requeued_for_a_job_that_needs_that()
        test_an_elastic_job_works_as_fast_as_it_is_large()
        test_an_elastic_job_grows_into_free_capacity_and_waits_between_two_changes()
        test_a_preempted_job_goes_on_from_its_checkpoint_and_ends_when_that_work_is_done()

    with pytest.raises((AssertionError, ValueError)):
        all_stories()
