"""A job may demand one NUMA domain for all of a task: its CPUs, memory and devices (R11, R12, N18, N19)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from scheduler.core.backfill import future_use
from scheduler.core.cluster import numa
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.running_jobs import Preemptor, RunningJobs, place_preemptor
from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.forecast import forecast
from scheduler.core.placement import candidates as placement
from scheduler.core.placement.plugins import resolve
from scheduler.core.plan import Plan
from scheduler.core.policy import PLACEMENTS, Policy
from scheduler.core.preemption.victim_search import VictimSearch
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.reasons import numa_fit as crossing
from scheduler.core.reasons.messages import sentence
from scheduler.core.revalidate import find_conflicts
from scheduler.core.snapshot.codec import decode_snapshot, encode_snapshot
from scheduler.core.whatif.explain import context_after, explain, node_table
from scheduler.core.whatif.smallest_change import smallest_change
from tests.support import reference_backfill, reference_planner
from tests.support.applied import applied
from tests.support.builders import MINUTE_MS, RunningSpec, World, a_job, a_node, a_snapshot, a_world, running

RULES = PreemptionPolicy(enabled=True, classes=((0, ()), (50, (0,))), protected_seconds=0)


def said(world: World, plan: Plan, name: str) -> str:
    decision = plan.decision_of(world.job(name))
    return sentence(decision.reason, decision.facts)


def a_world_of_domains(seed: int) -> World:
    """Two machines of two domains, and little that matters but how their domains fill."""
    dice = random.Random(seed)
    nodes = [a_node(f"n{n}", cpus=8, memory_gib=16, gpus=dice.choice([0, 4]), numa=2) for n in (1, 2)]
    held = [
        running(
            a_job(f"r{n}", cpus=dice.choice([1, 2]), numa=dice.choice(["one", "one", "prefer"])),
            node.name,
            ends_in=dice.choice([0, 10, 20]),
        )
        for n, node in enumerate(nodes * 2)
    ]
    held = [
        replace(one, domains=(dice.choice([0, 1]),)) if one.job.request.one_domain else one for one in held
    ]
    kinds: list[dict[str, Any]] = [
        {
            "cpus": dice.choice([0, 1, 2, 3]),
            "memory_gib": dice.choice([0, 1, 3, 7]),
            "gpus": (gpus := dice.choice([0, 0, 1, 1, 2])),
            "share": dice.choice([0, 300]) if gpus == 1 else 0,
            "tasks": dice.choice([1, 1, 2]),
            "minutes": dice.choice([5, 15, 90]),
            "numa": dice.choice(["one", "one", "one", "prefer"]),
        }
        for _ in range(4)
    ]
    pending = [a_job(f"j{n}", **dice.choice(kinds)) for n in range(9)]
    return a_world(nodes=nodes, running=held, pending=pending)


def plan_many_worlds(seeds: range = range(25)) -> None:
    """Against a planner that is easy to believe; what it planned holds, and leaves nothing to do."""
    for seed in seeds:
        world = a_world_of_domains(seed)
        policy = Policy(placement=PLACEMENTS[seed % len(PLACEMENTS)])
        plan = plan_cycle(world.snapshot, policy)
        reference_planner.check(world.snapshot, policy, plan)
        assert find_conflicts(plan, world.snapshot, policy) == ()
        assert plan_cycle(applied(world.snapshot, plan), policy).starts == ()
        if seed % 3 == 0:
            easy = Policy(backfill="easy")
            reference_backfill.check(world.snapshot, easy, plan_cycle(world.snapshot, easy))


def test_every_job_gets_what_an_obvious_planner_would_give_it() -> None:
    plan_many_worlds()


def test_devices_that_are_free_in_two_domains_are_not_enough() -> None:
    words: dict[str, Any] = {
        "nodes": [a_node("node-3", gpus=4, numa=2)],
        "running": [
            running(a_job("a", gpus=1), ("node-3", [0]), ends_in=10),
            running(a_job("b", gpus=1), ("node-3", [2]), ends_in=20),
        ],
    }
    strict = a_world(**words, pending=[a_job("pair", gpus=2, numa="one")])
    relaxed = a_world(**words, pending=[a_job("pair", gpus=2)])

    plan = plan_cycle(strict.snapshot, Policy())

    assert set(relaxed.starts(plan_cycle(relaxed.snapshot, Policy()))) == {"pair"}
    assert strict.reasons(plan) == {"pair": "TopologyFragmented"}
    assert said(strict, plan, "pair") == ("Needs one NUMA domain; fits node-3 only across 2 NUMA domains.")
    (gate,) = explain(strict.snapshot, Policy(), strict.job("pair"), plan).blockers[0].gates
    assert (gate.gate, gate.first, gate.alone) == ("numa", 1, 1)
    (node,) = node_table(strict.snapshot, Policy(), strict.job("pair"), plan)
    assert (node.gate, node.sentence) == (
        "numa",
        "has 2 NUMA domains; the most free in one is 32 CPUs, 128 GiB of memory and 1 GPU",
    )
    change = smallest_change(
        strict.snapshot, Policy(), strict.job("pair"), context_after(strict.snapshot, Policy(), plan)
    )
    assert change is not None
    assert change.sentence(strict.snapshot) == (
        "Without the demand for one NUMA domain the job would start now, on node-3."
    )


def test_cpus_and_memory_are_counted_in_each_domain_and_others_take_what_is_left_over() -> None:
    world = a_world(
        nodes=[a_node("n", cpus=8, memory_gib=32, numa=2)],
        pending=[
            a_job("a", cpus=3, memory_gib=2, numa="one"),
            a_job("b", cpus=3, memory_gib=2, numa="one"),
            a_job("across", cpus=2, memory_gib=1, numa="one"),  # one CPU is left in each
            a_job("floats", cpus=2, memory_gib=1),
        ],
    )

    plan = plan_cycle(world.snapshot, Policy())

    assert {start.job_id: start.placements[0].numa for start in plan.starts} == {
        world.job("a"): 0, world.job("b"): 1, world.job("floats"): -1,
    }  # fmt: skip
    assert world.reasons(plan) == {"across": "WaitingForResources"}  # once others float over what is left
    alone = a_world(
        nodes=[a_node("n", cpus=8, memory_gib=32, numa=2)],
        running=[
            running(a_job("a", cpus=3, numa="one"), "n", domains=(0,)),
            running(a_job("b", cpus=3, numa="one"), "n", domains=(1,)),
        ],
        pending=[a_job("across", cpus=2, numa="one")],
    )
    assert alone.reasons(plan_cycle(alone.snapshot, Policy())) == {"across": "TopologyFragmented"}


def test_memory_alone_may_be_what_no_domain_has() -> None:
    world = a_world(
        nodes=[a_node("n", cpus=8, memory_gib=32, numa=2)],
        running=[
            running(a_job("a", memory_gib=10, numa="one"), "n", domains=(0,)),
            running(a_job("b", memory_gib=10, numa="one"), "n", domains=(1,)),
        ],
        pending=[a_job("wide", memory_gib=7, numa="one"), a_job("narrow", memory_gib=6, numa="one")],
    )

    plan = plan_cycle(world.snapshot, Policy())

    assert set(world.starts(plan)) == {"narrow"}


def test_each_task_of_a_gang_is_in_one_domain_and_they_may_be_in_several() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=6, numa=2), a_node("n2", gpus=6, numa=2)],
        pending=[a_job("gang", tasks=4, gpus=2, numa="one"), a_job("more", gpus=2, numa="one")],
    )

    plan = plan_cycle(world.snapshot, Policy())

    (start,) = plan.starts
    assert [(one.node_id, one.numa) for one in start.placements] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(device % 100 // 3 == one.numa for one in start.placements for device in one.device_ids)
    assert said(world, plan, "more") == (
        "Needs one NUMA domain; fits n1 only across 2 NUMA domains, as does 1 more node."
    )


def test_what_no_domain_ever_has_is_said_at_once() -> None:
    world = a_world(
        nodes=[a_node("n", cpus=64, gpus=8, numa=2)],
        pending=[a_job("wide", cpus=40, gpus=1, numa="one"), a_job("many", tasks=3, cpus=20, numa="one")],
    )

    plan = plan_cycle(world.snapshot, Policy())

    assert said(world, plan, "wide") == (
        "Requests one NUMA domain; on the matching nodes no domain has more than "
        "32 CPUs, 128 GiB of memory and 4 GPUs. The job can never start as written."
    )
    assert said(world, plan, "many") == (
        "Requests 3 tasks at once, each in one NUMA domain; all matching nodes, idle, hold 2. "
        "The job can never start as written."
    )


def test_a_node_that_does_not_say_what_its_domains_have_promises_nothing() -> None:
    world = a_world(
        nodes=[a_node("silent", gpus=4, numa=2, domains=False)],
        pending=[a_job("one", gpus=1, numa="one"), a_job("any", gpus=1)],
    )

    plan = plan_cycle(world.snapshot, Policy())

    assert set(world.starts(plan)) == {"any"}
    assert said(world, plan, "one") == (
        "Requests one NUMA domain; no matching node reports the size of its domains. "
        "The job can never start as written."
    )
    (node,) = node_table(world.snapshot, Policy(), world.job("one"), plan)
    assert node.sentence == "reports no size of its NUMA domains"


def test_a_machine_of_one_domain_is_that_domain() -> None:
    world = a_world(
        nodes=[a_node("n", cpus=4, gpus=2)], pending=[a_job("all", cpus=4, gpus=2, numa="one"), a_job("no")]
    )

    plan = plan_cycle(world.snapshot, Policy())

    assert [(start.job_id, start.placements[0].numa) for start in plan.starts] == [(world.job("all"), 0)]


def test_more_may_be_bound_where_more_is_given_away_but_no_task_is_larger_than_its_domain() -> None:
    world = a_world(
        nodes=[a_node("n", cpus=8, numa=2, overcommit=2)],
        pending=[
            a_job("large", cpus=5, numa="one"),
            *(a_job(f"j{number}", cpus=4, numa="one") for number in range(5)),
        ],
    )

    plan = plan_cycle(world.snapshot, Policy())

    assert [start.placements[0].numa for start in plan.starts] == [0, 0, 1, 1]
    assert set(world.reasons(plan)) == {"large", "j4"}


@pytest.mark.parametrize("backfill", ["none", "easy", "conservative"])
def test_the_start_that_is_foretold_is_when_one_domain_has_room(backfill: str) -> None:
    world = a_world(
        nodes=[a_node("n", cpus=8, gpus=4, numa=2)],
        running=[
            running(a_job("a", gpus=1), ("n", [0]), ends_in=10),
            running(a_job("b", gpus=1), ("n", [2]), ends_in=20),
            running(a_job("c", gpus=1), ("n", [1]), ends_in=40),
        ],
        pending=[a_job("pair", gpus=2, numa="one", minutes=5)],
    )
    policy = Policy(backfill=backfill)

    found = forecast(world.snapshot, policy)[world.job("pair")]

    assert (found.p90_ms or 0) - world.snapshot.now_ms == 20 * MINUTE_MS
    if backfill != "none":
        (promised,) = plan_cycle(world.snapshot, policy).expected
        assert promised.at_ms == world.snapshot.now_ms + 20 * MINUTE_MS


def test_bound_cpus_come_free_with_their_job_and_a_later_one_keeps_the_promise() -> None:
    world = a_world(
        nodes=[a_node("n", cpus=8, memory_gib=64, numa=2)],
        running=[
            running(a_job("a", cpus=2, numa="one"), "n", domains=(0,), ends_in=30),
            running(a_job("b", cpus=2, numa="one"), "n", domains=(1,), ends_in=60),
        ],
        pending=[
            a_job("first", cpus=3, numa="one", minutes=60, priority=90),
            a_job("long", cpus=2, numa="one", minutes=90),  # in domain 1 it is beside the promise
            a_job("longer", cpus=2, numa="one", minutes=90),  # and in domain 0 in its way
            a_job("short", cpus=2, numa="one", minutes=20),
        ],
    )

    plan = plan_cycle(world.snapshot, Policy(name="priority", backfill="easy"))

    assert [(one.job_id, (one.at_ms - world.snapshot.now_ms) // MINUTE_MS) for one in plan.expected] == [
        (world.job("first"), 30)
    ]
    assert {world._job_name(start.job_id): start.placements[0].numa for start in plan.starts} == {
        "long": 1,
        "short": 0,
    }


def test_victims_are_those_of_one_domain() -> None:
    world = a_world(
        nodes=[a_node("n", cpus=8, gpus=4, numa=2)],
        running=[
            running(a_job(f"r{place}", gpus=1, priority=10), ("n", [place]), started=-started)
            for place, started in enumerate((90, 9, 80, 8))  # the cheapest two are in different domains
        ],
        pending=[a_job("pair", gpus=2, numa="one", priority=75)],
    )

    plan = plan_cycle(world.snapshot, Policy(preemption=RULES))

    stopped = {preempt.job_id for preempt in plan.preempts}
    assert stopped == {world.job("r2"), world.job("r3")}


def a_crowded_machine(seed: int) -> World:
    """Two machines of two domains full of small jobs, some of them bound, and one that wants a domain."""
    dice, held = random.Random(seed), []
    nodes = [a_node(f"n{n}", cpus=8, memory_gib=16, gpus=4, numa=2) for n in (1, 2)]
    for node in nodes:
        left = [4, 4]
        for place in range(4):
            cpus, domain = dice.choice([1, 2]), place // 2
            bound = dice.random() < 0.6 and left[domain] >= cpus
            left[domain] -= cpus * bound
            words: dict[str, Any] = {
                "priority": dice.choice([0, 10, 25, 50]),
                "numa": "one" if bound else "prefer",
            }
            job = a_job(f"{node.name} {place}", cpus=cpus, gpus=1, **words)
            if dice.random() < 0.8:
                held.append(
                    running(
                        job,
                        (node.name, [place]),
                        started=-dice.randint(1, 200),
                        domains=(domain,) if bound else (),
                    )
                )
    wanted = a_job("p", cpus=dice.choice([1, 2, 4]), gpus=dice.choice([0, 1, 2, 2]), numa="one", priority=75)
    return a_world(nodes=nodes, running=held, pending=[wanted])


def test_victims_that_clear_a_domain_are_found_where_there_are_any_and_mostly_the_cheapest() -> None:
    """Against every set of up to four."""
    rules = replace(
        RULES, classes=((0, ()), (10, (0,)), (25, (0,)), (50, (0, 10, 25)), (75, (0, 10, 25, 50)))
    )
    found = best = 0
    for seed in range(30):
        snapshot, policy = a_crowded_machine(seed).snapshot, Policy(preemption=rules)
        plan = plan_cycle(snapshot, policy)
        if plan.starts:
            continue
        context = CycleContext(ClusterIndex(snapshot), resolve(policy))
        wanted = Preemptor(0, context.job_classes.of(0))
        worths = []
        with context.workspace.trial():
            jobs = RunningJobs(context)
            search = VictimSearch(context, jobs, rules)
            for size in range(1, 5):
                for some in combinations(np.flatnonzero(search.may_stop(75)).tolist(), size):
                    for one in some:
                        jobs.release(one)
                    if place_preemptor(context, wanted) is not None:
                        worths.append(search.worth(list(some)))
                    for one in some:
                        jobs.release(one, back=True)
        assert bool(worths) == bool(plan.preempts), "a set is there and was not found, or none is"
        if worths:
            rows = [snapshot.running.id.tolist().index(one.job_id) for one in plan.preempts]
            found, best = found + 1, best + (search.worth(rows)[:2] == min(worths)[:2])
    assert found >= 12
    assert best >= 0.9 * found


def test_an_elastic_job_grows_where_another_domain_has_room_and_only_there() -> None:
    def sizes(*others: RunningSpec) -> list[int]:
        job = a_job("open", cpus=3, tasks=1, most=2, numa="one")
        open_ = running(job, "n", domains=(0,), least=1, started=-90, saved=0)
        world = a_world(nodes=[a_node("n", cpus=8, numa=2)], running=[open_, *others])
        return [one.tasks for one in plan_cycle(world.snapshot, Policy(resize_seconds=600)).resizes]

    assert sizes() == [2]
    assert sizes(running(a_job("other", cpus=2), "n")) == [2]  # it floats
    assert sizes(running(a_job("other", cpus=2, numa="one"), "n", domains=(1,))) == []


def test_cpus_of_a_bound_victim_come_back_in_its_domain_and_everything_is_as_before_after_a_trial() -> None:
    world = a_world(
        nodes=[a_node("n", cpus=8, numa=2)],
        running=[
            running(a_job("a", cpus=3, numa="one", priority=10), "n", domains=(0,), started=-9),
            running(a_job("b", cpus=4, numa="one", priority=90), "n", domains=(1,), started=-9),
        ],
        pending=[
            a_job("wide", cpus=4, numa="one", priority=75),
            a_job("thin", cpus=1, numa="one", priority=70),
        ],
    )

    plan = plan_cycle(world.snapshot, Policy(name="priority", preemption=RULES))

    assert [(start.job_id, start.placements[0].numa) for start in plan.starts] == [(world.job("thin"), 0)]
    core = ClusterIndex(world.snapshot)
    workspace = CycleContext(core, resolve(Policy())).workspace
    before = list(workspace.numa.free)
    with workspace.trial():
        workspace.take(0, world.snapshot.job_class(world.job("wide")).per_task, [], 0, domain=0)
        assert workspace.numa.free != before
    assert workspace.numa.free == before


def test_a_domain_that_somebody_took_meanwhile_is_a_conflict() -> None:
    words: dict[str, Any] = {"nodes": [a_node("n", cpus=8, numa=2)]}
    before = a_world(**words, pending=[a_job("s", cpus=3, numa="one", id=7)])
    plan = plan_cycle(before.snapshot, Policy())
    held = running(a_job("r", cpus=2, numa="one"), "n", domains=(0,))
    after = a_world(**words, pending=[a_job("s", cpus=3, numa="one", id=7)], running=[held])

    (conflict,) = find_conflicts(plan, after.snapshot, Policy())

    assert dict(conflict.facts) == {"gate": "numa", "node": "n", "numa": 0}


def test_one_that_stands_still_goes_on_only_where_its_own_domain_has_cpus() -> None:
    def resumed(domain: int) -> int:
        world = a_world(
            nodes=[a_node("n", cpus=8, numa=2)],
            running=[
                running(a_job("still", cpus=3, numa="one"), "n", domains=(0,), pause="suspended", started=-9),
                running(a_job("other", cpus=3, numa="one"), "n", domains=(domain,), started=-5),
            ],
        )
        return len(plan_cycle(world.snapshot, Policy(preemption=RULES)).resumes)

    assert (resumed(0), resumed(1)) == (0, 1)


def test_the_demand_is_kept_in_recordings_and_absent_where_there_is_none() -> None:
    plain = a_snapshot(nodes=[a_node("n")], pending=[a_job("a")])
    bound = a_snapshot(
        nodes=[a_node("n", numa=2)],
        running=[running(a_job("r", numa="one"), "n", domains=(1,))],
        pending=[a_job("a", numa="one")],
    )

    assert decode_snapshot(encode_snapshot(bound)) == bound
    assert (bound.nodes.bound, bound.allocations.numa.tolist()) == ((((1, 1000, 1024),),), [1])
    assert decode_snapshot(encode_snapshot(plain)) == plain
    assert ClusterIndex(bound).asks_one_domain
    assert not ClusterIndex(plain).asks_one_domain
    assert CycleContext(ClusterIndex(plain), resolve(Policy())).workspace.numa is None


# ------------------------------------------------------------------ broken on purpose


def _nothing_is_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(numa.DomainCapacity, "hold", lambda self, domain, per_task, sign=1: None)


def _what_was_bound_before_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(numa.Domains, "free", property(lambda self: self.capacity))


def _any_device_of_the_node(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(numa.DomainCapacity, "within", lambda self, domain: -1)


def _the_first_domain_whatever_it_has(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(numa.DomainCapacity, "pick", lambda self, request, row: self.domains.first[row])


def _live_columns_stay_as_they_were(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(numa.DomainCapacity, "update", lambda self, row: None)


def _promises_hold_nothing_of_domains(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(future_use.FutureUse, "bound", lambda self, places: ())


def _what_ends_stays_bound(patch: pytest.MonkeyPatch) -> None:
    real = numa.Domains.of_allocations
    patch.setattr(numa.Domains, "of_allocations", lambda self: [-1] * len(real(self)))


@pytest.mark.parametrize(
    "mutant",
    [
        _promises_hold_nothing_of_domains,
        _what_ends_stays_bound,
        _nothing_is_bound,
        _what_was_bound_before_is_forgotten,
        _any_device_of_the_node,
        _the_first_domain_whatever_it_has,
        _live_columns_stay_as_they_were,
    ],
)
def test_a_broken_rule_about_domains_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)

    with pytest.raises((AssertionError, ValueError, IndexError)):
        plan_many_worlds()


def test_a_check_before_writing_that_forgets_domains_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement.Candidates, "numa", property(lambda self: None))

    with pytest.raises((AssertionError, ValueError)):
        test_a_domain_that_somebody_took_meanwhile_is_a_conflict()


def test_a_sentence_that_forgets_domains_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossing, "domains_of", lambda candidates, node: 7)

    with pytest.raises(AssertionError):
        test_devices_that_are_free_in_two_domains_are_not_enough()
