"""A start is written only while it still holds: by the planner's own predicates, on fresh rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import Plan
from scheduler.core.revalidate import find_conflicts
from scheduler.core.snapshot.snapshot import JobGate, Snapshot
from tests.support.builders import World, a_job, a_node, a_policy, a_queue, a_quota, a_world


def a_planned_world() -> tuple[World, Plan]:
    world = a_world(
        nodes=[a_node("n1", gpus=4, cpus=8), a_node("n2", gpus=4, cpus=8)],
        pending=[a_job("gang", tasks=2, gpus=4, cpus=4), a_job("after", cpus=4)],
        queues=[a_queue(max_concurrent_jobs=5)],
        quotas=[a_quota("gpu_millis", 8000)],
    )
    return world, plan_cycle(world.snapshot, a_policy())


def _cordon_one(s: Snapshot) -> Snapshot:
    return replace(s, nodes=replace(s.nodes, cordoned=np.array([False, True])))


def _fill_a_device(s: Snapshot) -> Snapshot:
    used = s.devices.used_millis.copy()
    used[5] = 1
    return replace(s, devices=replace(s.devices, used_millis=used))


def _break_a_device(s: Snapshot) -> Snapshot:
    healthy = s.devices.healthy.copy()
    healthy[0] = False
    return replace(s, devices=replace(s.devices, healthy=healthy))


def _take_cpus(s: Snapshot) -> Snapshot:
    return replace(s, nodes=replace(s.nodes, used_cpu_millis=np.array([0, 5000])))


def _use_quota(s: Snapshot) -> Snapshot:
    return replace(s, quotas=replace(s.quotas, used=np.array([1000])))


def _hold(s: Snapshot) -> Snapshot:
    return replace(s, pending=replace(s.pending, gate=np.array([JobGate.HELD_BY_USER, 0])))


def _change(s: Snapshot) -> Snapshot:
    return replace(s, pending=replace(s.pending, generation=s.pending.generation + 1))


def _cancel(s: Snapshot) -> Snapshot:
    return replace(s, pending=s.pending.take(np.array([False, True])))


def _pause(s: Snapshot) -> Snapshot:
    return replace(s, queues=replace(s.queues, paused=np.array([True])))


def _lose_the_provider(s: Snapshot) -> Snapshot:
    return replace(s, projects=replace(s.projects, away_text=("Slurm cannot be reached.",) * len(s.projects)))


def _fill_the_queue(s: Snapshot) -> Snapshot:
    return replace(s, queues=replace(s.queues, running_jobs=np.array([5])))


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (_cordon_one, "WaitingForResources"),
        (_fill_a_device, "WaitingForResources"),
        (_break_a_device, "WaitingForResources"),
        (_take_cpus, "WaitingForResources"),
        (_use_quota, "WaitingForQuota"),
        (_hold, "HeldByUser"),
        (_change, "NotEvaluatedYet"),
        (_cancel, "NotEvaluatedYet"),
        (_pause, "QueueStopped"),
        (_lose_the_provider, "QuotaProviderAway"),
        (_fill_the_queue, "RateLimited"),
    ],
)
def test_what_happened_in_between_stops_the_start(
    happens: Callable[[Snapshot], Snapshot], reason: str
) -> None:
    world, plan = a_planned_world()
    assert [start.job_id for start in plan.starts] == [1, 2]

    conflicts = find_conflicts(plan, happens(world.snapshot), a_policy())

    assert conflicts[0].job_id == 1
    assert conflicts[0].reason.value == reason


def test_a_gang_that_lost_one_node_leaves_the_other_to_the_next_start() -> None:
    world, plan = a_planned_world()
    later = plan.starts[1]
    crowded = replace(
        plan, starts=(plan.starts[0], later._replace(placements=(later.placements[0]._replace(node_id=1),)))
    )

    conflicts = find_conflicts(crowded, _cordon_one(world.snapshot), a_policy())

    assert [conflict.job_id for conflict in conflicts] == [1]  # nothing of it was kept on n1


def test_two_starts_that_take_the_same_room_conflict_in_plan_order() -> None:
    world = a_world(nodes=[a_node("n1", gpus=1)], pending=[a_job("a", gpus=1), a_job("b", gpus=1)])
    start = plan_cycle(world.snapshot, a_policy()).starts[0]

    conflicts = find_conflicts(Plan(starts=(start, start._replace(job_id=2))), world.snapshot, a_policy())

    assert [(conflict.job_id, conflict.reason.value) for conflict in conflicts] == [
        (2, "WaitingForResources")
    ]


def test_a_few_fresh_rows_are_enough() -> None:
    world = a_world(nodes=[a_node("n1", gpus=1), a_node("n2")], pending=[a_job("a", gpus=1), a_job("b")])
    plan = plan_cycle(world.snapshot, a_policy())
    whole = world.snapshot
    only = replace(
        whole,
        nodes=whole.nodes.take(whole.nodes.id == 1),
        devices=whole.devices.take(whole.devices.node_id == 1),
        pending=whole.pending.take(whole.pending.id == 1),
    )

    assert find_conflicts(replace(plan, starts=plan.starts[:1]), only, a_policy()) == ()
