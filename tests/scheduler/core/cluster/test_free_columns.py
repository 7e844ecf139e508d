"""Free columns: after any starts and ends they equal columns that are made anew from what is free."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quotas.core.resources import Resources
from scheduler.core.cluster import free_columns
from scheduler.core.cluster.free_columns import FreeColumns
from scheduler.core.cluster.free_devices import FreeDevices
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import NodeAmounts, Workspace
from scheduler.core.snapshot.request_classes import request_class
from tests.support.builders import a_job, a_node, a_snapshot, running

REQUESTS = [
    request_class(Resources(cpu_millis=1000, memory_mib=512)),
    request_class(Resources(cpu_millis=1000, gpus=2)),
    request_class(Resources(cpu_millis=500, gpus=1, gpu_millis=300)),
    request_class(Resources(cpu_millis=500, gpus=1), gpu_model="A100"),
    request_class(Resources(cpu_millis=500, gpus=1, gpu_millis=500), gpu_model="A100"),
]
PARTS = ("tight_with_gpu", "tight_without_gpu", "gpus_taken")


def a_workspace() -> Workspace:
    """Nodes of two GPU models, of one and two NUMA domains, and one without GPUs."""
    nodes = [
        a_node("n1", gpus=4, numa=2, cpus=16, model="A100"),
        a_node("n2", gpus=4, numa=1, cpus=16, model="H100"),
        a_node("n3", gpus=8, numa=2, cpus=32, model="H100"),
        a_node("n4", gpus=2, numa=1, cpus=8, model="A100"),
        a_node("n5", cpus=16),
    ]
    busy = [running(a_job("r1", gpus=1), ("n1", [2])), running(a_job("r2", gpus=2), ("n3", [0, 5]))]
    return Workspace(ClusterIndex(a_snapshot(nodes=nodes, running=busy)))


def columns_of(columns: FreeColumns) -> list[np.ndarray]:  # type: ignore[type-arg]
    found: list[np.ndarray] = []  # type: ignore[type-arg]
    for request in REQUESTS:
        packed = columns.packed(request)
        assert packed is not None
        if not request.per_task.gpus:
            found.append(packed.column)
            continue
        features = columns.gpu_features(request)
        found += [features.whole, features.numa_best, features.partial, features.room]
        # A node without such devices never meets the request: its other amounts are not kept up to date.
        found.append(np.where(np.array(features.bits) > 0, packed.column, 0))
    for name in PARTS:
        found += [columns.points(name), columns.points(name, flipped=True, weight=3)]
    return found


def anew(workspace: Workspace) -> Workspace:
    """A workspace in which the same is free, made from amounts alone."""
    amounts = NodeAmounts(
        workspace.free_cpu_millis,
        workspace.free_memory_mib,
        workspace.free_storage_mib,
        workspace.devices.used,
    )
    return Workspace(workspace.cluster, amounts)


def start_and_end(workspace: Workspace, dice: random.Random, steps: int) -> None:
    """Start tasks at random wherever one fits, end others, some of it in trials that are not kept."""
    cluster = workspace.cluster
    live: list[tuple[int, Resources, list[int], int]] = []
    for _ in range(steps):
        with workspace.trial() as trial:
            before = list(live)
            if live and dice.random() < 0.4:
                workspace.give_back(*live.pop(dice.randrange(len(live))))
            else:
                request, row = dice.choice(REQUESTS), dice.randrange(cluster.node_count)
                features = workspace.columns.gpu_features(request)
                have = features.room[row] if request.shares_gpu else features.whole[row]
                need = request.per_task.gpu_millis if request.shares_gpu else request.per_task.gpus
                if need and have < need:
                    continue
                devices = workspace.pick_devices(row, request)
                live.append((row, request.per_task, devices, request.device_millis))
                workspace.take(*live[-1])
            if dice.random() < 0.7:
                trial.keep()
            else:
                live = before


def live_columns_hold(seed: int) -> None:
    dice, workspace = random.Random(seed), a_workspace()
    columns_of(workspace.columns)

    start_and_end(workspace, dice, 25)

    fresh = anew(workspace)
    for mine, other in zip(columns_of(workspace.columns), columns_of(fresh.columns), strict=True):
        assert mine.tolist() == other.tolist()
    assert workspace.free_gpu_millis.tolist() == fresh.free_gpu_millis.tolist()
    assert workspace.devices.idle == fresh.devices.idle
    assert workspace.devices.shared == fresh.devices.shared


@given(st.integers(0, 10_000))
@settings(max_examples=80, deadline=None)
def test_live_columns_equal_a_recount(seed: int) -> None:
    live_columns_hold(seed)


def test_devices_are_picked_from_the_domain_they_fill_best() -> None:
    workspace = a_workspace()

    first = workspace.cluster.devices.first
    assert workspace.pick_devices(0, REQUESTS[1]) == [first[0], first[0] + 1]  # r1 is in the other domain
    assert workspace.pick_devices(0, REQUESTS[3]) == [first[0] + 3]  # and leaves one idle there


def test_a_share_goes_to_the_device_that_is_used_most_and_still_has_room() -> None:
    workspace = a_workspace()
    first = workspace.cluster.devices.first[1]
    workspace.take(1, Resources(), [first + 1], 600)
    workspace.take(1, Resources(), [first + 2], 800)

    assert workspace.pick_devices(1, REQUESTS[2]) == [first + 1]


# Mutants: a rule broken on purpose must be noticed.


def _trials_forget_devices(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FreeDevices, "hold_just", lambda self, row, held: None)


def _partial_devices_count_as_idle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FreeDevices, "most_left", lambda self, row, devices: 1000 if devices else 0)


def _packed_amounts_are_never_negative(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(free_columns, "GUARDS", 0)


@pytest.mark.parametrize(
    "mutant",
    [_trials_forget_devices, _partial_devices_count_as_idle, _packed_amounts_are_never_negative],
    ids=lambda mutant: mutant.__name__.removeprefix("_"),
)
def test_a_broken_rule_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)

    def many() -> None:
        for seed in range(30):
            live_columns_hold(seed)

    with pytest.raises((AssertionError, ValueError)):  # or a field of a packed amount overflows
        many()
