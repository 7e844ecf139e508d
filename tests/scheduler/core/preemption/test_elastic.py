"""Elastic gangs: who gives up which tasks for whom, and who starts again larger, against every way there is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quotas.core.limits import LimitTree
from scheduler.core import cycle, decision_table
from scheduler.core.context import running_jobs as seats
from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.virtual_cluster import VirtualCluster
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.preemption import elastic, preemption
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.snapshot.codec import decode_plan, decode_policy, encode_plan, encode_policy
from scheduler.core.snapshot.snapshot import Snapshot
from tests.support.builders import NodeSpec, RunningSpec, World, a_job, a_node, a_quota, a_world, running

CLASSES = ((0, ()), (25, (0,)), (75, (0, 25)))
RULES = PreemptionPolicy(enabled=True, classes=CLASSES, protected_seconds=0)
POLICY = Policy(name="priority", preemption=RULES, resize_seconds=600)
GROWING = Policy(resize_seconds=600)
SEEDS = 40


def a_sweep(name: str, most: int, *on: tuple[str, tuple[int, ...]], **words: Any) -> RunningSpec:
    job = {"gpus": 1, "priority": 25, "tasks": words.get("least", 1), "most": most}
    job |= {key: words.pop(key) for key in ("gpus", "priority", "project", "cpus") if key in words}
    return running(a_job(name, **job), *on, **{"least": 1, "started": -60} | words)


def an_elastic_world(seed: int) -> World:
    """Nodes full of elastic jobs of every standing, one job that waits, and a limit now and then."""
    dice = random.Random(seed)
    nodes = [a_node(f"n{i}", gpus=dice.choice([2, 3, 4])) for i in range(dice.randint(1, 2))]
    places = [(node.name, (device,)) for node in nodes for device in range(node.gpus)]
    dice.shuffle(places)
    runs = []
    while places and len(runs) < 3:
        count = dice.randint(1, min(4, len(places)))
        on, places = places[:count], places[count:]
        runs.append(
            a_sweep(
                f"r{len(runs)}", count + dice.choice([0, 0, 2]), *on, least=dice.randint(1, max(count - 1, 1)),
                priority=dice.choice([0, 25, 25, 75]), resized=dice.choice([None, None, -20, -5]),
                preemptible=dice.random() < 0.9,
            )
        )  # fmt: skip
    for name, devices in places[: dice.choice([0, 0, len(places)])]:
        runs.append(running(a_job(f"s{name}{devices[0]}", gpus=1, priority=75), (name, devices), started=-60))
    wanted = a_job("p", gpus=dice.choice([1, 1, 2]), tasks=dice.choice([1, 1, 2, 3]), priority=75)
    held = sum(len(run.on) for run in runs)
    quotas = (a_quota("gpu_millis", held * 1000, used=held * 1000),) if dice.random() < 0.3 else ()
    return a_world(nodes=nodes, running=runs, pending=[wanted], quotas=quotas)


def smaller(snapshot: Snapshot, leaving: dict[int, int]) -> Snapshot:
    """The world in which the last so many tasks of each of these jobs are not there."""
    allocations, devices, nodes = snapshot.allocations, snapshot.devices, snapshot.nodes
    gone = np.zeros(len(allocations), dtype=np.bool_)
    for job, count in leaving.items():
        mine = np.flatnonzero(allocations.job_id == job)
        gone[mine[np.argsort(allocations.rank[mine])][len(mine) - count :]] = True
    used = {name: getattr(nodes, f"used_{name}").copy() for name in ("cpu_millis", "memory_mib")}
    device_used, quota_used = devices.used_millis.copy(), snapshot.quotas.used.copy()
    for row in np.flatnonzero(gone).tolist():
        for name, column in used.items():
            column[nodes.id.tolist().index(allocations.node_id[row])] -= getattr(allocations, name)[row]
        for device in allocations.device_ids[row]:
            device_used[devices.id.tolist().index(device)] -= 1000
            quota_used -= 1000
    return replace(
        snapshot,
        nodes=replace(nodes, **{f"used_{name}": column for name, column in used.items()}),
        devices=replace(devices, used_millis=device_used),
        quotas=replace(snapshot.quotas, used=quota_used),
        allocations=allocations.take(~gone),
    )


def starts(snapshot: Snapshot) -> bool:
    return bool(plan_cycle(snapshot, Policy()).starts)


def check(world: World) -> int:
    """Whoever gives up tasks may be asked to, gives up no task in vain, and is found where anybody can."""
    snapshot, rows = world.snapshot, world.snapshot.running
    plan = plan_cycle(snapshot, POLICY)
    held = {job: int((snapshot.allocations.job_id == job).sum()) for job in rows.id.tolist()}
    may = {
        job: held[job] - int(rows.least_tasks[row])
        for row, job in enumerate(rows.id.tolist())
        if rows.preemptible[row] and RULES.may_stop(75, int(rows.priority[row])) and rows.least_tasks[row]
        and snapshot.now_ms - max(rows.resized_ms[row], rows.started_ms[row]) >= 600_000
    }  # fmt: skip
    may = {job: most for job, most in may.items() if most > 0}
    given = {one.job_id: len(one.ranks) for one in plan.resizes}
    for one in plan.resizes:
        assert 0 < given[one.job_id] <= may.get(one.job_id, 0), "it may not be made so small, or not now"
        assert one.ranks == tuple(range(one.tasks, one.before))
        assert one.before == held[one.job_id]
        assert one.for_job_id == world.job("p")
    ways = [
        dict(zip(may, counts, strict=True))
        for counts in itertools.product(*(range(most + 1) for most in may.values()))
    ]
    can = not starts(snapshot) and any(starts(smaller(snapshot, way)) for way in ways)
    if plan.preempts:
        assert not can, "tasks would have been enough"
        return 0
    assert bool(given) == can, "a way is there and was not found, or none is"
    if given:
        assert (plan.preempts, plan.starts) == ((), ())
        assert starts(smaller(snapshot, given)), "in vain"
        for job in given:
            assert not starts(smaller(snapshot, given | {job: given[job] - 1})), "a task too many"
    return len(given)


def test_as_few_tasks_as_are_needed_end_and_only_where_that_is_enough() -> None:
    assert sum(check(an_elastic_world(seed)) for seed in range(SEEDS)) > SEEDS / 6


def test_a_task_that_would_end_in_vain_is_spared() -> None:
    """The cheaper job has its last task beside one that stays: only the other can make room for a pair."""
    world = a_world(
        nodes=[a_node("n1", gpus=2), a_node("n2", gpus=3)],
        running=[
            a_sweep("cheap", 2, ("n1", (0,)), ("n1", (1,)), priority=0),
            a_sweep("dear", 3, ("n2", (0,)), ("n2", (1,)), ("n2", (2,)), priority=25),
        ],
        pending=[a_job("p", gpus=2, priority=75)],
    )

    assert [(one.job_id, one.ranks) for one in plan_cycle(world.snapshot, POLICY).resizes] == [
        (world.job("dear"), (1, 2))
    ]


# ------------------------------------------------------------------ larger


def a_half_empty_world(seed: int) -> tuple[World, int, int]:
    """An elastic job beside idle room; answers how many tasks it has, and would have if it waited instead."""
    dice = random.Random(seed)
    nodes: list[NodeSpec] = [a_node(f"n{i}", gpus=dice.choice([2, 4])) for i in range(2)]
    held = dice.randint(1, 2)
    most = dice.choice([held, held + 1, 6])
    saved = dice.choice([-2, -2, -2, -2, -30, None])
    quota = dice.choice([0, 0, 3])
    quotas = (a_quota("gpu_millis", quota * 1000, used=held * 1000),) if quota else ()
    on = [(nodes[0].name, (device,)) for device in range(held)]
    licences = dice.choice([None, {"matlab": (4, held)}])
    extras = {"matlab": 1} if licences else {}
    job = a_job("r", gpus=1, tasks=1, most=most, extras=extras)
    now = a_world(
        nodes=nodes, quotas=quotas, licences=licences,
        running=[running(job, *on, least=1, started=-60, saved=saved)],
    )  # fmt: skip
    idle = a_world(
        nodes=nodes, quotas=tuple(replace(one, used=0) for one in quotas), pending=[job],
        licences=licences and {"matlab": (4, 0)},
    )  # fmt: skip
    most = len(plan_cycle(idle.snapshot, Policy()).starts[0].placements)
    return now, held, most if saved == -2 else held


def check_growth(seed: int) -> int:
    world, held, due = a_half_empty_world(seed)
    plan = plan_cycle(world.snapshot, GROWING)
    assert [(one.before, one.tasks, one.ranks) for one in plan.resizes] == (
        [(held, due, ())] if due > held else []
    )
    return len(plan.resizes)


def test_it_starts_again_with_as_many_as_it_would_have_had_it_waited() -> None:
    assert sum(check_growth(seed) for seed in range(SEEDS)) > SEEDS / 6


def a_calm_world(**words: Any) -> World:
    sweep = a_sweep("r", 4, ("n1", (0,)), saved=-2, **words)
    other = a_sweep("q", 4, ("n1", (1,)), saved=-2, priority=50)
    return a_world(nodes=[a_node("n1", gpus=4)], running=[sweep, other])


def test_one_at_a_time_the_higher_first_and_nobody_while_something_moves() -> None:
    calm, moving = a_calm_world(), a_calm_world(stop_by=1)

    assert [one.job_id for one in plan_cycle(calm.snapshot, GROWING).resizes] == [calm.job("q")]
    assert plan_cycle(moving.snapshot, GROWING).resizes == ()


def test_who_waits_for_room_comes_first_and_who_waits_for_a_person_does_not() -> None:
    world = a_calm_world()

    def with_one(**words: Any) -> Plan:
        return plan_cycle(
            a_world(
                nodes=[a_node("n1", gpus=4)],
                running=[a_sweep("r", 4, ("n1", (0,)), saved=-2)],
                pending=[a_job("p", **words)],
            ).snapshot,
            GROWING,
        )

    assert plan_cycle(world.snapshot, replace(GROWING, resize_seconds=0)).resizes == ()
    assert with_one(gpus=4).resizes == ()
    assert with_one(gpus=1).resizes == ()  # it starts, and the next cycle sees what is left
    assert len(with_one(gpus=16).resizes) == 1  # it can never start here


def test_what_was_decided_is_recorded_as_it_is() -> None:
    plan = plan_cycle(a_calm_world().snapshot, GROWING)
    fewer = plan_cycle(an_elastic_world(_one_that_shrinks()).snapshot, POLICY)

    assert decode_plan(encode_plan(plan)) == plan
    assert decode_plan(encode_plan(fewer)).resizes == fewer.resizes
    assert decode_policy(encode_policy(POLICY)) == POLICY


def test_a_forecast_lets_tasks_end_and_the_job_start() -> None:
    world = an_elastic_world(_one_that_shrinks())
    plan = plan_cycle(world.snapshot, POLICY)
    ahead = VirtualCluster(world.snapshot)

    ahead.apply(plan, world.snapshot.now_ms)

    later = ahead.snapshot_at(world.snapshot.now_ms + 1, np.arange(1))
    assert [start.job_id for start in plan_cycle(later, POLICY).starts] == [world.job("p")]


def _one_that_shrinks() -> int:
    return next(seed for seed in range(SEEDS) if plan_cycle(an_elastic_world(seed).snapshot, POLICY).resizes)


# ------------------------------------------------------------------ a rule broken on purpose is noticed


def _nobody_spared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elastic.Shrinking, "without_needless", lambda self, wanted, by, given: given)


def _any_time(patch: pytest.MonkeyPatch) -> None:
    real = elastic.settled_for
    patch.setattr(elastic, "settled_for", lambda world, jobs, seconds: real(world, jobs, 0))


def _below_the_least(patch: pytest.MonkeyPatch) -> None:
    real = elastic.Shrinking.__init__

    def to_nothing(self: Any, answers: Any, jobs: Any, seconds: int) -> None:
        real(self, answers, jobs, seconds)
        rows = answers.cluster.snapshot.running
        self._open = (rows.least_tasks > 0) & (jobs.tasks > 0)
        rows.least_tasks.flags.writeable or rows.least_tasks.setflags(write=True)
        rows.least_tasks[:] = 0

    patch.setattr(elastic.Shrinking, "__init__", to_nothing)


def _quota_stays(patch: pytest.MonkeyPatch) -> None:
    real = seats.RunningJobs.give_up

    def nodes_only(self: Any, *words: Any, **more: Any) -> None:
        patched = pytest.MonkeyPatch()
        patched.setattr(LimitTree, "take", lambda self, charges, sign=1: None)
        real(self, *words, **more)
        patched.undo()

    patch.setattr(seats.RunningJobs, "give_up", nodes_only)


def _no_rights(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "scheduler.core.preemption.victim_search.VictimSearch.allowed",
        lambda self, wanted, priority: np.ones(len(self._open), np.bool_),
    )


def _stopped_all_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(preemption, "Shrinking", lambda *words: None)


def _grows_unsaved(patch: pytest.MonkeyPatch) -> None:
    real = elastic.grow

    def saved_just_now(answers: Any, policy: Any, plan_of: Any) -> Any:
        rows = answers.cluster.snapshot.running
        rows.saved_ms.setflags(write=True)
        rows.saved_ms[:] = answers.cluster.snapshot.now_ms
        return real(answers, policy, plan_of)

    patch.setattr(cycle, "grow", saved_just_now)


def _keeps_its_seats(patch: pytest.MonkeyPatch) -> None:
    real = elastic.as_pending_again

    def still_held(answers: Any, jobs: Any, row: int) -> Snapshot:
        return replace(real(answers, jobs, row), devices=answers.cluster.snapshot.devices)

    patch.setattr(elastic, "as_pending_again", still_held)


def _grows_beside_who_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        decision_table.DecisionTable, "wait_for_people", lambda self, rows: np.ones(len(rows), np.bool_)
    )


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    _nobody_spared, _any_time, _below_the_least, _quota_stays, _no_rights, _stopped_all_the_same, _grows_unsaved,
    _keeps_its_seats, _grows_beside_who_waits,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.removeprefix("_"))
def test_a_broken_rule_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)

    def plan_many_worlds() -> None:
        test_a_task_that_would_end_in_vain_is_spared()
        test_who_waits_for_room_comes_first_and_who_waits_for_a_person_does_not()
        for seed in range(SEEDS):
            check_growth(seed)
            check(an_elastic_world(seed))

    with pytest.raises((AssertionError, ValueError)):
        plan_many_worlds()
