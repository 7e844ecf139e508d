"""What the rules of a cycle promise each other: promises, strict queues, budgets, gatherings and suspension."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.snapshot.snapshot import BudgetColumns, JobGate, Snapshot
from tests.support.builders import (
    NOW_MS,
    JobSpec,
    World,
    a_job,
    a_node,
    a_quota,
    a_world,
    running,
)

HIGH_STOPS_LOW = PreemptionPolicy(enabled=True, classes=((0, ()), (50, (0,))), protected_seconds=0)
SUSPENDS = replace(HIGH_STOPS_LOW, mode="suspend")
EASY = Policy(backfill="easy")


def due(world: World, plan: Plan) -> dict[str, tuple[int, list[str]]]:
    """Job name -> minutes from now and nodes of every expected start."""
    job = {number: name for name, number in world.jobs.items()}
    node = {number: name for name, number in world.nodes.items()}
    return {
        job[one.job_id]: ((one.at_ms - NOW_MS) // 60_000, [node[number] for number in one.node_ids])
        for one in plan.expected
    }


def a_node_where_one_stands_still(*pending: JobSpec) -> World:
    return a_world(
        nodes=[a_node("n1", cpus=8)],
        running=[
            running(a_job("still", cpus=2, priority=0), "n1", pause="suspended", started=-60, ends_in=600),
            running(a_job("old", cpus=4, priority=60), "n1", ends_in=60),
        ],
        pending=pending,
    )


def test_while_one_stands_still_a_promise_is_kept_as_ever() -> None:
    world = a_node_where_one_stands_still(
        a_job("head", cpus=8, priority=90, minutes=60, submitted=-9),
        a_job("long", cpus=4, priority=90, minutes=600),
    )

    plan = plan_cycle(world.snapshot, Policy(backfill="easy", preemption=SUSPENDS))

    assert world.starts(plan) == {}
    assert due(world, plan)["head"] == (60, ["n1"])
    assert [one.job_id for one in plan.resumes] == [world.job("still")]


def test_while_one_stands_still_a_strict_queue_keeps_its_order() -> None:
    world = a_node_where_one_stands_still(
        a_job("first", cpus=8, priority=90, submitted=-9),
        a_job("second", cpus=4, priority=90),
    )
    behind_a_lower = a_node_where_one_stands_still(
        a_job("first", cpus=8, priority=10, submitted=-9),
        a_job("second", cpus=4, priority=90),
    )
    policy = Policy(strict_order=True, preemption=SUSPENDS)

    assert world.starts(plan_cycle(world.snapshot, policy)) == {}
    assert behind_a_lower.starts(plan_cycle(behind_a_lower.snapshot, policy)) == {}


def test_what_goes_on_again_is_expected_to_end_in_time() -> None:
    world = a_world(
        nodes=[a_node("n1", cpus=8)],
        running=[running(a_job("still", cpus=4), "n1", pause="suspended", started=-60, ends_in=30)],
        pending=[a_job("head", cpus=8, minutes=60, submitted=-9), a_job("long", cpus=2, minutes=600)],
    )

    plan = plan_cycle(world.snapshot, EASY)

    assert len(plan.resumes) == 1
    assert due(world, plan) == {"head": (30, ["n1"])}
    assert world.starts(plan) == {}


def test_a_gang_gathers_nothing_that_is_promised_to_another() -> None:
    full = {"gpus": 2}
    world = a_world(
        nodes=[a_node(name, gpus=2) for name in ("n1", "n2", "n3")],
        running=[
            running(a_job("a", **full), ("n1", [0, 1]), ends_in=10),
            running(a_job("b", **full), ("n2", [0, 1]), ends_in=12),
            running(a_job("c", **full), ("n3", [0, 1]), ends_in=500),
        ],
        pending=[
            a_job("head", gpus=2, minutes=600, submitted=-9),
            a_job("gang", tasks=2, gpus=2, gathers=600, minutes=60),
        ],
    )

    for backfill in ("easy", "conservative"):
        plan = plan_cycle(world.snapshot, Policy(backfill=backfill))

        assert due(world, plan) == {"head": (10, ["n1"]), "gang": (500, ["n2", "n3"])}


def test_a_gang_gathers_behind_another_only_where_it_cannot_start_before_it() -> None:
    """Of n1 and n2 the first has one for 10 minutes: a gang may have both after it, if they come free one by one."""

    def promised(second_ends_in: int) -> dict[str, tuple[int, list[str]]]:
        world = a_world(
            nodes=[a_node(name, gpus=2) for name in ("n1", "n2", "n3")],
            running=[
                running(a_job("a", gpus=2), ("n1", [0, 1]), ends_in=10),
                running(a_job("b", gpus=2), ("n2", [0, 1]), ends_in=second_ends_in),
                running(a_job("c", gpus=2), ("n3", [0, 1]), ends_in=100),
            ],
            pending=[
                a_job("head", gpus=2, minutes=10, submitted=-9),
                a_job("gang", tasks=2, gpus=2, gathers=600, minutes=60),
            ],
        )
        return due(world, plan_cycle(world.snapshot, EASY))

    assert promised(12) == {"head": (10, ["n1"]), "gang": (20, ["n1", "n2"])}
    assert promised(25) == {"head": (10, ["n1"]), "gang": (25, ["n1", "n2"])}
    assert promised(10) == {"head": (10, ["n1"]), "gang": (100, ["n2", "n3"])}


def test_one_that_can_never_run_does_not_keep_those_behind_it_from_stopping_others() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2)],
        running=[running(a_job("low", gpus=2, priority=0), ("n1", [0, 1]), started=-60)],
        pending=[
            a_job("impossible", gpus=99, priority=90, submitted=-9),
            a_job("urgent", gpus=2, priority=90, submitted=-5),
            a_job("behind", gpus=1, priority=90),
        ],
    )

    plan = plan_cycle(world.snapshot, Policy(strict_order=True, preemption=HIGH_STOPS_LOW))

    assert [(one.job_id, one.for_job_id) for one in plan.preempts] == [
        (world.job("low"), world.job("urgent"))
    ]


# ------------------------------------------------------------------ what the first promise keeps beside room


def with_a_budget(world: World, gpu_hours: int) -> Snapshot:
    """The same world where project vision has so much left to spend."""
    ids = world.snapshot.projects.id
    budget = BudgetColumns(
        id=[1], owner=["Autumn of project vision"], amount=[gpu_hours * 3_600_000], starts_ms=[NOW_MS - 1000],
        ends_ms=[NOW_MS + 30 * 86_400_000], project_ids=[(int(ids[0]),)],
    )  # fmt: skip
    return replace(world.snapshot, budgets=budget)


def a_head_and_one_that_would_pass(**words: Any) -> World:
    return a_world(
        nodes=[a_node("n1", gpus=4), a_node("n2", gpus=4)],
        running=[running(a_job("old", gpus=4), ("n1", [0, 1, 2, 3]), ends_in=60)],
        pending=[
            a_job("head", gpus=4, tasks=2, minutes=60, submitted=-9),
            a_job("passes", gpus=4, minutes=60),
        ],
        **words,
    )


def test_nobody_spends_what_the_first_promise_needs_of_a_budget() -> None:
    world = a_head_and_one_that_would_pass()

    enough = plan_cycle(with_a_budget(world, 12), EASY)
    short = plan_cycle(with_a_budget(world, 11), EASY)

    assert world.starts(enough) == {"passes": ["n2"]}
    assert world.starts(short) == {}
    assert [due(world, plan) for plan in (enough, short)] == [{"head": (60, ["n1", "n2"])}] * 2


def test_what_others_keep_back_of_a_limit_counts_beside_the_promise_too() -> None:
    """Speech keeps 1 of the lab's CPUs whatever happens, and the first is promised 2."""
    lines = [
        a_quota("cpu_millis", 4000, projects=("vision", "speech"), owner="lab"),
        a_quota("cpu_millis", -1, nominal=3000, projects=("vision",), owner="project vision", above="lab"),
        a_quota("cpu_millis", -1, nominal=1000, lending_limit=0, projects=("speech",), owner="project speech",
                above="lab"),
    ]  # fmt: skip

    def passing(cpus: int) -> dict[str, list[str]]:
        world = a_world(
            nodes=[a_node("n1", cpus=2), a_node("n2", cpus=4)],
            running=[running(a_job("old", cpus=2, project="other"), "n1", ends_in=60),
                     running(a_job("older", cpus=2, project="other"), "n2", ends_in=900)],
            pending=[
                a_job("head", cpus=1, tasks=2, nodes=2, minutes=60, submitted=-9),
                a_job("passes", cpus=cpus, minutes=600),
            ],
            quotas=lines,
        )  # fmt: skip
        return world.starts(plan_cycle(world.snapshot, EASY))

    assert passing(1) == {"passes": ["n2"]}
    lines[0] = a_quota("cpu_millis", 3000, projects=("vision", "speech"), owner="lab")
    assert passing(1) == {}


def test_who_was_promised_a_start_keeps_it_while_those_that_passed_use_up_a_limit() -> None:
    """What `short` holds of the limit is free again before the first can start."""

    def one_cycle_later(short_ends_in: int, *, told: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        world = a_world(
            nodes=[a_node("n1", cpus=4), a_node("n2", cpus=4)],
            running=[
                running(a_job("old", cpus=4, project="other"), "n1", ends_in=30),
                running(a_job("short", cpus=2), "n2", ends_in=short_ends_in),
            ],
            pending=[
                a_job("head", cpus=4, tasks=2, minutes=60, submitted=-9),
                a_job("long", cpus=1, minutes=600),
            ],
            quotas=[a_quota("cpu_millis", 9000, used=2000)],
        )
        pending = world.snapshot.pending
        promised = [NOW_MS + 30 * 60_000 if told and job == world.job("head") else 0 for job in pending.id]
        snapshot = replace(world.snapshot, pending=replace(pending, promised_ms=promised))
        plan = plan_cycle(snapshot, EASY)
        return due(world, plan), world.starts(plan)

    assert one_cycle_later(10, told=True) == ({"head": (30, ["n1", "n2"])}, {})
    assert one_cycle_later(10, told=False) == ({}, {"long": ["n2"]})
    assert one_cycle_later(0, told=True) == ({}, {"long": ["n2"]})


def test_a_member_of_an_array_leaves_the_first_its_turn() -> None:
    def passing(array: int) -> dict[str, list[str]]:
        world = a_world(
            nodes=[a_node("n1", cpus=4), a_node("n2", cpus=4)],
            running=[running(a_job("old", cpus=3), "n1", ends_in=30)],
            pending=[
                a_job(
                    "head", cpus=2, tasks=3, nodes=2, minutes=60, submitted=-9, array=7, array_max_running=1
                ),
                a_job("other", cpus=1, minutes=600, array=array, array_max_running=1),
            ],
        )
        return world.starts(plan_cycle(world.snapshot, EASY))

    assert passing(8) == {"other": ["n1"]} or passing(8) == {"other": ["n2"]}
    assert passing(7) == {}


def test_turns_of_a_tenant_are_not_taken_by_what_is_held() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2)],
        pending=[
            *(
                a_job(f"held {n}", gpus=4, project="a", submitted=-90, gate=JobGate.HELD_BY_USER)
                for n in range(3)
            ),
            a_job("ready", gpus=1, project="a", submitted=-50),
            *(a_job(f"other {n}", gpus=1, project="b", submitted=-10) for n in range(3)),
        ],
    )

    assert set(world.starts(plan_cycle(world.snapshot, Policy(name="fair_queue")))) == {"ready", "other 0"}
