"""Strategies and profiles: which of the nodes that can take a task gets it, and how its points are made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quotas.core.gpu_models import model_matches
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.cycle import plan_cycle
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.node_view import NodeView
from scheduler.core.placement.plugins import resolve
from scheduler.core.placement.scoring import BUILT_IN, STRATEGIES
from scheduler.core.policy import PLACEMENTS, Policy
from scheduler.core.snapshot.constraints import Preference, Requirement, Taint
from tests.support.builders import a_job, a_node, a_policy, a_world, running
from tests.support.strategies import a_random_world


def places(placement: str, **words: Any) -> dict[str, list[str]]:
    world = a_world(**words)
    return world.starts(plan_cycle(world.snapshot, a_policy(placement=placement)))


def test_every_strategy_has_weights_and_every_weight_a_scorer() -> None:
    assert set(STRATEGIES) == set(PLACEMENTS)
    assert {name for weights in STRATEGIES.values() for name, _ in weights} <= set(BUILT_IN)


def test_the_profiles_weigh_as_the_documents_say() -> None:
    assert dict(STRATEGIES["balanced"]) == {
        "fit": 30,
        "affinity": 20,
        "load": 20,
        "data_locality": 20,
        "cost": 10,
    }
    assert dict(STRATEGIES["k8s"]) == {"fit": 40, "load": 30, "affinity": 20, "network": 10}
    assert sum(dict(STRATEGIES["multi-criteria"]).values()) == 100


@pytest.mark.parametrize("seed", range(12))
def test_every_part_is_0_to_100_and_kept(seed: int) -> None:
    world = ClusterIndex(a_random_world(seed, 6, 8).snapshot)
    workspace = Workspace(world)

    for request in world.snapshot.classes:
        for name, scorer in BUILT_IN.items():
            given = scorer.score(FilterQuery(request), NodeView(workspace))
            open_ = Candidates(FilterQuery(request), workspace, resolve(Policy())).refresh() >= 0
            if given is not None and open_.any():
                assert given.shape == (world.node_count,)
                assert 0.0 <= given[open_].min() <= given[open_].max() <= 100.0, name


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_scores_brought_up_to_date_are_scores_made_anew(placement: str) -> None:
    for seed in range(8):
        snapshot = a_random_world(seed, 6, 12).snapshot
        context = CycleContext(ClusterIndex(snapshot), resolve(Policy(placement=placement)))
        for number in range(len(context.job_classes)):
            context.candidates(context.job_classes[number])
        for start in plan_cycle(snapshot, Policy(placement=placement)).starts:
            for place in start.placements:
                devices = [context.cluster.devices.row[device] for device in place.device_ids]
                context.workspace.take(
                    context.cluster.nodes.row[place.node_id], start.per_task, devices, place.gpu_millis
                )
                for number in range(len(context.job_classes)):
                    known = context.candidates(context.job_classes[number])
                    fresh = Candidates(known.query, context.workspace, known.rules)
                    assert np.array_equal(known.refresh(), fresh.scores)


def test_least_loaded_takes_the_idlest_and_best_fit_the_fullest() -> None:
    words: dict[str, Any] = {
        "nodes": [a_node("busy", cpus=8), a_node("idle", cpus=8)],
        "running": [running(a_job("old", cpus=4), "busy")],
        "pending": [a_job("new")],
    }

    assert places("least_loaded", **words) == {"new": ["idle"]}
    assert places("best_fit", **words) == {"new": ["busy"]}


def test_round_robin_gives_each_node_one_before_any_gets_two() -> None:
    nodes = [a_node("n1"), a_node("n2"), a_node("n3")]

    found = places(
        "round_robin",
        nodes=nodes,
        running=[running(a_job("old"), "n1")],
        pending=[a_job(f"j{number}") for number in range(5)],
    )

    assert [found[f"j{number}"][0] for number in range(5)] == ["n2", "n3", "n1", "n2", "n3"]


def test_resource_balance_puts_memory_where_cpus_are_used() -> None:
    found = places(
        "resource_balance",
        nodes=[a_node("cpu-used", cpus=8, memory_gib=8), a_node("empty", cpus=8, memory_gib=8)],
        running=[running(a_job("old", cpus=6, memory_gib=1), "cpu-used")],
        pending=[a_job("memory", cpus=1, memory_gib=5)],
    )

    assert found == {"memory": ["cpu-used"]}


@pytest.mark.parametrize("placement", ["best_fit", "frag", "balanced", "k8s"])
def test_a_preferred_label_decides_among_equal_nodes_and_stops_nobody(placement: str) -> None:
    wish = [Preference(50, (Requirement("disk", "In", ("fast",)),))]

    found = places(
        placement,
        nodes=[a_node("slow", cpus=2), a_node("fast", cpus=2, labels={"disk": "fast"})],
        pending=[a_job("first", cpus=2, prefers=wish), a_job("second", cpus=2, prefers=wish)],
    )

    assert found == {"first": ["fast"], "second": ["slow"]}


def test_the_heavier_wish_wins() -> None:
    found = places(
        "best_fit",
        nodes=[a_node("a", labels={"disk": "fast"}), a_node("b", labels={"net": "ib"})],
        pending=[
            a_job(
                "one",
                prefers=[
                    Preference(10, (Requirement("disk", "Exists"),)),
                    Preference(90, (Requirement("net", "Exists"),)),
                ],
            )
        ],
    )

    assert found == {"one": ["b"]}


def test_cost_reliability_and_distance_are_read_from_labels() -> None:
    cheap = {"muster.io/cost-per-hour": "1.5", "muster.io/reliability": "90", "muster.io/latency-ms": "1"}
    dear = {"muster.io/cost-per-hour": "4", "muster.io/reliability": "99", "muster.io/latency-ms": "9"}

    words: dict[str, Any] = {
        "nodes": [a_node("dear", labels=dear), a_node("cheap", labels=cheap), a_node("unknown")],
        "pending": [a_job("one")],
    }

    assert places("multi-criteria", **words) == {"one": ["cheap"]}
    world = a_world(**words)
    (start,) = plan_cycle(world.snapshot, a_policy(placement="multi-criteria")).starts
    assert dict(start.scores) == {"cost": 100, "reliability": 0, "network": 100, "total": 67}


def test_data_near_the_node_counts_in_the_balanced_profile() -> None:
    found = places(
        "balanced",
        nodes=[a_node("far"), a_node("near", labels={"data/imagenet": "here"})],
        pending=[a_job("train", prefers=[Preference(1, (Requirement("data/imagenet", "Exists"),))])],
    )

    assert found == {"train": ["near"]}


def test_a_soft_taint_lowers_the_profile_score_and_closes_nothing() -> None:
    nodes = [
        a_node("tainted", cpus=2, taints=(Taint("old", "", "PreferNoSchedule"),)),
        a_node("clean", cpus=2),
    ]

    found = places("k8s", nodes=nodes, pending=[a_job("a", cpus=2), a_job("b", cpus=2)])

    assert found == {"a": ["clean"], "b": ["tainted"]}


def test_a_request_may_name_several_models() -> None:
    assert model_matches("A100|H100", "NVIDIA H100 80GB HBM3")
    assert not model_matches("A100|H100", "V100")
    found = places(
        "best_fit",
        nodes=[a_node("v", gpus=1, model="V100"), a_node("a", gpus=1, model="A100-40GB")],
        pending=[a_job("one", gpus=1, model="H100 | A100")],
    )

    assert found == {"one": ["a"]}


def test_frag_keeps_gpus_usable_where_best_fit_strands_them() -> None:
    """A GPU job that eats all CPUs of a 4-GPU node strands three GPUs; on the 1-GPU node it strands none."""
    found = places(
        "frag",
        nodes=[a_node("wide", cpus=16, gpus=4), a_node("narrow", cpus=32, gpus=1)],
        pending=[a_job("hungry", cpus=16, gpus=1), *[a_job(f"usual-{n}", cpus=4, gpus=1) for n in range(4)]],
    )

    assert found["hungry"] == ["narrow"]
    assert len(found) == 5


def test_frag_plans_where_slices_are_wanted_and_no_node_has_a_device() -> None:
    found = places(
        "frag",
        nodes=[a_node("plain", cpus=16)],
        pending=[a_job("small", slice="1g.10gb"), a_job("cpus", cpus=4)],
    )

    assert found == {"cpus": ["plain"]}
