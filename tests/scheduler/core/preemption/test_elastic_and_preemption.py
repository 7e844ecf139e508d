"""One plan that makes elastic jobs smaller and stops others, against every way there is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.preemption import preemption
from scheduler.core.preemption.elastic import Shrinking
from scheduler.core.reasons.messages import sentence
from tests.scheduler.core.preemption.test_elastic import POLICY, RULES, a_sweep, smaller, starts
from tests.support.builders import World, a_job, a_node, a_quota, a_world, running

SEEDS = 30


def a_mixed_world(seed: int) -> World:
    """Full nodes: elastic jobs, rigid ones, and one job that waits for more than either alone may free."""
    dice = random.Random(seed)
    nodes = [a_node(f"n{i}", gpus=dice.choice([2, 2, 3])) for i in range(2)]
    places = [(node.name, (device,)) for node in nodes for device in range(node.gpus)]
    dice.shuffle(places)
    runs = []
    for number in range(dice.choice([1, 1, 2])):
        count = min(dice.randint(2, 3), len(places))
        on, places = places[:count], places[count:]
        if count > 1:
            runs.append(
                a_sweep(
                    f"e{number}", count, *on, least=dice.randint(1, count - 1), priority=dice.choice([0, 25]),
                    resized=dice.choice([None, None, -5]), started=-dice.choice([20, 60]),
                )
            )  # fmt: skip
    for name, devices in places:
        job = a_job(f"s{name}{devices[0]}", gpus=1, priority=dice.choice([0, 25, 25, 75]))
        runs.append(running(job, (name, devices), started=-dice.choice([20, 60])))
    wanted = a_job("p", gpus=dice.choice([1, 2, 2]), tasks=dice.choice([1, 1, 2]), priority=75)
    held = sum(len(run.on) for run in runs)
    quotas = (a_quota("gpu_millis", held * 1000, used=held * 1000),) if dice.random() < 0.3 else ()
    return a_world(nodes=nodes, running=runs, pending=[wanted], quotas=quotas)


def check(world: World) -> tuple[bool, bool]:
    """Whether anybody gave up tasks, and whether anybody was stopped; never too much, and found where it can be."""
    snapshot, rows = world.snapshot, world.snapshot.running
    plan = plan_cycle(snapshot, POLICY)
    held = {job: int((snapshot.allocations.job_id == job).sum()) for job in rows.id.tolist()}
    choices: dict[int, list[int]] = {}
    priority = dict(zip(rows.id.tolist(), rows.priority.tolist(), strict=True))
    for row, job in enumerate(rows.id.tolist()):
        if RULES.may_stop(75, priority[job]):
            changed_ms = max(rows.resized_ms[row], rows.started_ms[row])
            settled = rows.least_tasks[row] and snapshot.now_ms - changed_ms >= 600_000
            fewer = range(1, held[job] - int(rows.least_tasks[row]) + 1) if settled else ()
            choices[job] = [0, *fewer, held[job]]
    given = {one.job_id: len(one.ranks) for one in plan.resizes}
    given |= {one.job_id: held[one.job_id] for one in plan.preempts}
    assert all(count in choices.get(job, []) for job, count in given.items()), "it may not be made to"
    assert len(given) == len(plan.resizes) + len(plan.preempts), "smaller and stopped"
    ways = []
    if not starts(snapshot):
        for counts in itertools.product(*choices.values()):
            way = {job: count for job, count in zip(choices, counts, strict=True) if count}
            if starts(smaller(snapshot, way)):
                ways.append({job for job, count in way.items() if count == held[job]})
    assert bool(given) == bool(ways), "a way is there and was not found, or none is"
    if given:
        assert starts(smaller(snapshot, given)), "in vain"
        for job, count in given.items():
            fewer_still = given | {job: 0 if count == held[job] else count - 1}
            assert not starts(smaller(snapshot, fewer_still)), "more than is needed"
        stopped = {one.job_id for one in plan.preempts}
        if any(not victims for victims in ways):
            assert not stopped, "tasks would have been enough"
        worst = [max((priority[job] for job in victims), default=-1) for victims in ways]
        assert max((priority[job] for job in stopped), default=-1) == min(worst), (
            "somebody higher than needed"
        )
        assert not any(victims < stopped for victims in ways), "with tasks of others it had been fewer"
    return bool(plan.resizes), bool(plan.preempts)


def test_neither_more_jobs_nor_more_tasks_end_than_are_needed() -> None:
    found = [check(a_mixed_world(seed)) for seed in range(SEEDS)]

    assert found.count((True, True)) > SEEDS / 12
    assert found.count((True, False)) > SEEDS / 12
    assert found.count((False, True)) > SEEDS / 12


def two_and_one(**words: Any) -> World:
    return a_world(
        nodes=[a_node("n1", gpus=4)],
        running=[
            a_sweep("sweep", 3, ("n1", (0,)), ("n1", (1,)), ("n1", (2,)), least=2, priority=25, **words),
            running(a_job("rigid", gpus=1, priority=25), ("n1", (3,)), started=-60),
        ],
        pending=[a_job("p", gpus=2, priority=75)],
    )


def test_one_task_and_one_job_make_room_for_two_gpus_and_the_other_two_go_on() -> None:
    world = two_and_one()

    plan = plan_cycle(world.snapshot, POLICY)

    assert [(one.job_id, one.ranks, one.for_job_id) for one in plan.resizes] == [
        (world.job("sweep"), (2,), world.job("p"))
    ]
    assert [(one.job_id, one.for_job_id) for one in plan.preempts] == [(world.job("rigid"), world.job("p"))]
    decision = plan.decision_of(world.job("p"))
    assert sentence(decision.reason, decision.facts).endswith(
        f"to end. Job {world.job('sweep')} also releases tasks."
    )


def test_a_task_that_would_end_in_vain_beside_a_victim_is_spared() -> None:
    """The last task and the rigid job make room for a pair; the last but one is on another node."""
    world = a_world(
        nodes=[a_node("n1", gpus=3), a_node("n2", gpus=1)],
        running=[
            a_sweep("sweep", 3, ("n1", (0,)), ("n2", (0,)), ("n1", (1,)), least=1, priority=25),
            running(a_job("rigid", gpus=1, priority=25), ("n1", (2,)), started=-60),
        ],
        pending=[a_job("p", gpus=2, priority=75)],
    )

    plan = plan_cycle(world.snapshot, POLICY)

    assert [(one.job_id, one.ranks) for one in plan.resizes] == [(world.job("sweep"), (2,))]
    assert [one.job_id for one in plan.preempts] == [world.job("rigid")]


def test_what_a_task_gave_up_is_not_free_twice_when_its_job_is_stopped() -> None:
    world = a_world(
        nodes=[a_node("n1", cpus=6)],
        running=[
            a_sweep("sweep", 2, "n1", "n1", least=1, priority=25, gpus=0, cpus=2),
            running(a_job("rigid", cpus=2, priority=25), "n1", started=-60),
        ],
        pending=[a_job("p", cpus=5, priority=75)],
    )

    plan = plan_cycle(world.snapshot, POLICY)

    assert plan.resizes == ()
    assert [one.job_id for one in plan.preempts] == [world.job("sweep"), world.job("rigid")]


def test_a_size_that_may_not_change_now_is_left_and_the_job_stopped_whole() -> None:
    world = two_and_one(resized=-5)

    plan = plan_cycle(world.snapshot, POLICY)

    assert plan.resizes == ()
    assert [one.job_id for one in plan.preempts] == [world.job("sweep")]


# ------------------------------------------------------------------ a rule broken on purpose is noticed


def _only_one_or_the_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shrinking, "beside", lambda self, wanted, by, priority, most: ({}, []))


def _needless_tasks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shrinking, "without_needless", lambda self, wanted, by, given: given)


def _tasks_stay(patch: pytest.MonkeyPatch) -> None:
    real = Shrinking.beside
    patch.setattr(Shrinking, "beside", lambda self, *words: ({}, real(self, *words)[1]))


def _always_beside(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shrinking, "alone", lambda self, wanted, by, priority, most: {})


def _gives_up_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(preemption.RunningJobs, "remaining_tasks", lambda self, victim: self.seats(victim))


@pytest.mark.parametrize(
    "mutant",
    [_only_one_or_the_other, _needless_tasks, _tasks_stay, _always_beside, _gives_up_twice],
    ids=lambda mutant: mutant.__name__.removeprefix("_"),
)
def test_a_broken_rule_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)

    def plan_many_worlds() -> None:
        test_one_task_and_one_job_make_room_for_two_gpus_and_the_other_two_go_on()
        test_a_task_that_would_end_in_vain_beside_a_victim_is_spared()
        test_what_a_task_gave_up_is_not_free_twice_when_its_job_is_stopped()
        for seed in range(SEEDS):
            check(a_mixed_world(seed))

    with pytest.raises((AssertionError, ValueError, IndexError)):
        plan_many_worlds()
