"""The scratch state of a cycle: what a trial leaves, and what a cache may keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quotas.core.resources import Resources
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.columns import Columns
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.plugins import resolve
from scheduler.core.snapshot.request_classes import request_class
from scheduler.core.snapshot.snapshot import NodeColumns, PendingColumns, Snapshot
from tests.support.builders import a_job, a_node, a_policy, a_snapshot, running

REQUESTS = [
    request_class(Resources(cpu_millis=1000, gpus=2)),
    request_class(Resources(cpu_millis=1000, gpus=1, gpu_millis=400)),
    request_class(Resources(cpu_millis=3000, memory_mib=1024)),
]


def a_workspace() -> Workspace:
    nodes = [a_node(f"n{i}", gpus=4, numa=2, cpus=16) for i in range(6)]
    busy = [running(a_job(f"r{i}", gpus=1), (f"n{i}", [i % 4])) for i in range(4)]
    return Workspace(ClusterIndex(a_snapshot(nodes=nodes, running=busy)))


def take(workspace: Workspace, candidates: Candidates) -> bool:
    row = candidates.best()
    if row < 0:
        return False
    request = candidates.query.request
    devices = workspace.pick_devices(row, request)
    workspace.take(row, request.per_task, devices, (request.per_task.gpu_millis or 1000) if devices else 0)
    return True


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40))
@settings(max_examples=60, deadline=None)
def test_what_is_cached_equals_what_is_worked_out_anew(steps: list[tuple[int, bool]]) -> None:
    workspace, rules = a_workspace(), resolve(a_policy())
    cached = [Candidates(FilterQuery(request), workspace, rules) for request in REQUESTS]

    for which, keep in steps:
        with workspace.trial() as trial:
            take(workspace, cached[which])
            if keep:
                trial.keep()

    for candidates in cached:
        fresh = Candidates(candidates.query, workspace, rules)
        assert np.array_equal(candidates.refresh(), fresh.scores)


def test_a_trial_that_is_not_kept_leaves_no_trace() -> None:
    workspace, rules = a_workspace(), resolve(a_policy())
    candidates = Candidates(FilterQuery(REQUESTS[0]), workspace, rules)
    before = candidates.refresh().copy(), workspace.devices.used.copy(), workspace.free_cpu_millis.copy()

    with workspace.trial():
        while take(workspace, candidates):
            pass
        assert candidates.best() == -1

    after = candidates.refresh(), workspace.devices.used, workspace.free_cpu_millis
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


def test_an_error_inside_a_trial_undoes_it_too() -> None:
    workspace = a_workspace()
    free = workspace.free_cpu_millis.copy()

    def take_and_stumble() -> None:
        with workspace.trial():
            workspace.take(0, Resources(cpu_millis=500), [], 0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        take_and_stumble()

    assert np.array_equal(workspace.free_cpu_millis, free)


# Columns.


def test_columns_of_unequal_length_and_doubled_keys_are_refused() -> None:
    with pytest.raises(ValueError, match=r"NodeColumns\.name has 1 rows, not 2"):
        NodeColumns(id=[1, 2], name=["a"])
    with pytest.raises(ValueError, match="the key 3 twice"):
        Snapshot.build(now_ms=0, nodes=NodeColumns(id=[3, 3], name=["a", "b"]))
    with pytest.raises(ValueError, match="the column class_index is missing"):
        PendingColumns(id=[1])


def test_a_snapshot_names_the_row_that_is_missing() -> None:
    request = request_class(Resources())

    with pytest.raises(KeyError, match="no queue with id 8"):
        Snapshot.build(
            now_ms=0,
            classes=[request],
            pending=PendingColumns(id=[1], class_index=[0], queue_id=[8], project_id=[1]),
        )


def test_columns_cannot_be_written_to() -> None:
    columns: Columns = NodeColumns(id=[1], name=["a"])

    with pytest.raises(ValueError, match="read-only"):
        columns.id[0] = 2  # type: ignore[attr-defined]


def test_rows_given_as_tuples_become_columns() -> None:
    table = PendingColumns.from_rows(
        [(1, 0, 2, 3), (4, 0, 2, 3)], columns=("id", "class_index", "queue_id", "project_id")
    )

    assert (table.id.tolist(), table.queue_id.tolist(), table.priority.tolist()) == ([1, 4], [2, 2], [50, 50])
    assert len(PendingColumns.from_rows([])) == 0
