"""What must never happen, in many small crowded worlds; and that the properties notice when it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quotas.core import limits
from scheduler.core import cycle
from scheduler.core.cluster import affinity as company
from scheduler.core.cluster import free_devices, limits_ledger
from scheduler.core.cycle import plan_cycle
from scheduler.core.placement import candidates as placement
from scheduler.core.placement import equivalence as groups
from scheduler.core.placement import filters as feasibility
from scheduler.core.placement import gang_layout
from scheduler.core.plan import Plan
from scheduler.core.policy import Policy
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons.messages import sentence
from scheduler.core.revalidate import find_conflicts
from scheduler.core.snapshot.codec import (
    decode_plan,
    decode_policy,
    decode_snapshot,
    encode_plan,
    encode_policy,
    encode_snapshot,
)
from scheduler.core.snapshot.snapshot import GROUPS, ReservationColumns, Snapshot
from scheduler.core.whatif.explain import explain, node_table
from tests.support import reference_planner
from tests.support.applied import applied
from tests.support.builders import World
from tests.support.strategies import a_random_world, policies, worlds

FEW = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


@given(worlds(), policies())
@settings(FEW, max_examples=200)
def test_t25_every_job_gets_what_an_obvious_planner_would_give_it(world: World, policy: Policy) -> None:
    plan = plan_cycle(world.snapshot, policy)

    reference_planner.check(world.snapshot, policy, plan)


@given(worlds(), policies(), st.randoms(use_true_random=False))
@FEW
def test_t26_the_order_rows_arrive_in_changes_nothing(world: World, policy: Policy, dice: Any) -> None:
    shuffled = {}
    for name in GROUPS:
        table = getattr(world.snapshot, name)
        rows = list(range(len(table)))
        dice.shuffle(rows)
        shuffled[name] = table.take(np.array(rows, dtype=np.int64))

    again = Snapshot.build(now_ms=world.snapshot.now_ms, classes=world.snapshot.classes, **shuffled)

    assert again == world.snapshot
    assert plan_cycle(again, policy) == plan_cycle(world.snapshot, policy)


@given(worlds(), policies())
@FEW
def test_a_plan_has_no_conflicts_with_its_own_snapshot(world: World, policy: Policy) -> None:
    plan = plan_cycle(world.snapshot, policy)

    assert find_conflicts(plan, world.snapshot, policy) == ()


@given(worlds(), policies())
@FEW
def test_planning_again_on_the_applied_result_starts_nothing_more(world: World, policy: Policy) -> None:
    plan = plan_cycle(world.snapshot, policy)

    again = plan_cycle(applied(world.snapshot, plan), policy)

    if policy.strict_order or any(own.strict_order for _, own in policy.queues):
        return  # a strict queue goes on: the job that stopped it may be stopped by another now
    if any(not term.apart for request in world.snapshot.classes for term in request.job_terms):
        return  # a job that wants to be near one that has just started may start now
    assert again.starts == ()
    assert again.reasons == plan.reasons


@given(worlds(), policies())
@FEW
def test_recordings_replay_byte_for_byte(world: World, policy: Policy) -> None:
    plan = plan_cycle(world.snapshot, policy)
    kept = encode_snapshot(world.snapshot), encode_policy(policy), encode_plan(plan)

    snapshot, knobs = decode_snapshot(kept[0]), decode_policy(kept[1])

    assert (snapshot, knobs, decode_plan(kept[2])) == (world.snapshot, policy, plan)
    assert encode_snapshot(snapshot) == kept[0]
    assert encode_plan(plan_cycle(snapshot, knobs)) == kept[2]


@given(worlds(), policies())
@settings(FEW, max_examples=40)
def test_t36_every_explanation_agrees_with_the_plan_and_can_be_read(world: World, policy: Policy) -> None:
    plan = plan_cycle(world.snapshot, policy)

    for job_id, reason in plan.reasons.items():
        found = explain(world.snapshot, policy, job_id, plan)
        assert found.headline is not None
        assert found.blockers[0].reason is reason
        assert sentence(reason, found.headline.facts, ahead_jobs=found.ahead_jobs).endswith(".")
    for job_id in list(plan.reasons)[:1]:
        assert len(node_table(world.snapshot, policy, job_id, plan)) == len(world.snapshot.nodes)


@given(worlds(), policies())
@FEW
def test_t24_freeing_everything_never_takes_a_chance_away(world: World, policy: Policy) -> None:
    first = plan_cycle(world.snapshot, policy)
    snapshot = world.snapshot
    idle = replace(
        snapshot,
        nodes=replace(
            snapshot.nodes,
            used_cpu_millis=snapshot.nodes.used_cpu_millis * 0,
            used_memory_mib=snapshot.nodes.used_memory_mib * 0,
            bound=((),) * len(snapshot.nodes),
        ),
        devices=replace(snapshot.devices, used_millis=snapshot.devices.used_millis * 0),
    )

    if first.starts:
        assert plan_cycle(idle, policy).starts
    opened = replace(
        idle.nodes,
        state=("up",) * len(idle.nodes),
        cordoned=idle.nodes.cordoned & False,
        draining=idle.nodes.draining & False,
    )
    devices = replace(idle.devices, healthy=idle.devices.healthy | True)
    empty = reference_planner.State(
        replace(idle, nodes=opened, devices=devices, reservations=ReservationColumns()), alone=True
    )
    hopeless = _hopeless(first)
    for number, job in empty.jobs.items():
        enough = all(
            empty.pools[name]["capacity"] >= amount * job["tasks"]
            for name, amount in empty.request(job).per_task.extras
        )
        assert (number in hopeless) == (not enough or not empty.can_place(job))
    assert hopeless == _hopeless(plan_cycle(idle, policy))


def _hopeless(plan: Plan) -> set[int]:
    """The jobs that no other job's end and no node that comes back lets start."""
    never = {ReasonCode.INVALID_SPEC, ReasonCode.NO_MATCHING_NODE, ReasonCode.NODES_UNAVAILABLE}
    return {job for job, reason in plan.reasons.items() if reason in never}


# Mutants: a rule broken on purpose must make the first property fail.


def _break_node_room(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(
        feasibility.BUILT_IN,
        "cpu_millis",
        replace(feasibility.BUILT_IN["cpu_millis"], free=lambda q, w: None),
    )


def _break_cordon(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(
        feasibility.BUILT_IN, "cordoned", replace(feasibility.BUILT_IN["cordoned"], keep=lambda q, w: None)
    )


def _break_taints(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(
        feasibility.BUILT_IN, "taints", replace(feasibility.BUILT_IN["taints"], keep=lambda q, w: None)
    )


def _break_reservations(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(
        feasibility.BUILT_IN, "reserved", replace(feasibility.BUILT_IN["reserved"], keep=lambda q, w: None)
    )


def _break_quota(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(limits.LimitTree, "short", lambda self, charges: None)


def _break_gang(patch: pytest.MonkeyPatch) -> None:
    whole = gang_layout.lay_out
    patch.setattr(
        gang_layout,
        "lay_out",
        lambda slots, scores, shape: whole(
            slots, scores, replace(shape, tasks=max(shape.tasks - 1, 1), nodes=0)
        ),
    )


def _break_device_choice(patch: pytest.MonkeyPatch) -> None:
    def first_ones(self: Any, row: int, request: Any, *_: Any) -> list[int]:
        begin = self.index.first[row]
        return list(range(begin, begin + request.per_task.gpus))

    patch.setattr(free_devices.FreeDevices, "pick", first_ones)


def _break_array_bound(patch: pytest.MonkeyPatch) -> None:
    real = limits_ledger.LimitsLedger.take
    patch.setattr(
        limits_ledger.LimitsLedger, "take", lambda self, **words: real(self, **words | {"array_id": 0})
    )


def _break_refresh(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(placement.Candidates, "refresh", lambda self: self.scores)


def _break_memo(patch: pytest.MonkeyPatch) -> None:
    """Groups that forget the shape: the first that fails takes the others down."""
    real = groups.number_together
    patch.setattr(
        groups,
        "number_together",
        lambda count, *keys, **words: real(count, *keys[: 0 if words and len(keys) == 5 else None], **words),
    )


def _break_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cycle, "job_reasons", lambda cluster: iter(()))


def _break_company(patch: pytest.MonkeyPatch) -> None:
    """Whom others keep away does not know it."""
    real = company.AffinityState.refusals
    patch.setattr(
        company.AffinityState,
        "refusals",
        lambda self, who: (one for one in real(self, who) if one[0] != "kept_away"),
    )


def _break_whereabouts(patch: pytest.MonkeyPatch) -> None:
    """Only those that ran before the cycle count."""
    patch.setattr(company.AffinityState, "count", lambda self, row, who, sign: [])


def _break_spread(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(groups, "spread_of", lambda world, request, tasks: None)


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    _break_node_room, _break_cordon, _break_taints, _break_reservations, _break_quota, _break_gang,
    _break_device_choice, _break_array_bound, _break_refresh, _break_memo, _break_held, _break_company,
    _break_whereabouts, _break_spread,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.removeprefix("_break_"))
def test_a_broken_rule_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)

    def plan_many_worlds() -> None:
        for seed in range(400):
            world = a_random_world(seed, node_count=4, job_count=10)
            policy = Policy(
                name=("fifo", "priority")[seed % 2], placement=("best_fit", "spread")[seed // 2 % 2]
            )
            reference_planner.check(world.snapshot, policy, plan_cycle(world.snapshot, policy))

    with pytest.raises(Exception):  # noqa: B017 - an assertion of the check, or the core stumbling
        plan_many_worlds()
