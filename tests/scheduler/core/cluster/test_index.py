"""The parts of the cluster index: rows, masks and answers that are kept."""

from __future__ import annotations

import numpy as np

from scheduler.core.cluster.column_answers import ColumnAnswers
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.snapshot.snapshot import DeviceColumns, NodeColumns, Snapshot
from tests.support.builders import a_job, a_node, a_snapshot, running


def test_devices_are_in_the_order_of_their_nodes_and_positions() -> None:
    snapshot = Snapshot.build(
        now_ms=0,
        nodes=NodeColumns(id=[1, 2], name=["n1", "n2"]),
        devices=DeviceColumns(
            id=[10, 11, 12, 13],
            node_id=[2, 1, 1, 2],
            position=[1, 1, 0, 0],
            numa=[0, 1, 0, 0],
            model=["A100", "H100", "H100", "A100"],
            memory_mib=[80, 80, 40, 80],
        ),
    )

    devices = ClusterIndex(snapshot).devices

    assert (devices.ids.tolist(), devices.first) == ([12, 11, 13, 10], [0, 2, 4])
    assert devices.counts("H100", 0).tolist() == [2, 0]
    assert devices.counts("", 80).tolist() == [1, 2]
    assert devices.usable_bits("H100", 80) == [0b10, 0]
    assert devices.node_domains == [(0b01, 0b10), (0b11,)]
    assert (devices.numa_of([0, 1]), devices.numa_of([2, 3]), devices.numa_of([])) == (-1, 0, -1)
    assert [devices.model_of(row) for row in range(4)] == ["H100", "H100", "A100", "A100"]


def test_allocations_release_in_the_order_of_their_ends() -> None:
    nodes = [a_node("n1", gpus=4), a_node("n2", gpus=4)]
    busy = [
        running(a_job("late", gpus=1), ("n1", [0]), ends_in=300),
        running(a_job("soon", gpus=2), ("n1", [1, 2]), ends_in=100),
        running(a_job("elsewhere", gpus=1), ("n2", [0]), ends_in=200),
    ]
    cluster = ClusterIndex(a_snapshot(nodes=nodes, running=busy))
    held = cluster.allocations.gpus_held("", 0)

    _, both = cluster.allocations.released(np.array([True, True]), held, 3)
    _, first_node = cluster.allocations.released(np.array([True, False]), held, 3)
    _, first_two = cluster.allocations.released(np.array([True, False]), held, 2)

    assert (both.tolist(), first_node.tolist(), first_two.tolist()) == ([2, 3, 4], [2, 3], [2])


def test_an_answer_is_kept_by_the_column_itself_and_not_by_its_values() -> None:
    answers = ColumnAnswers()
    column = np.array([1, 5, 3])

    first = answers.reaches(column, 3)
    column[0] = 9

    assert answers.reaches(column, 3) is first
    assert answers.reaches(column.copy(), 3).tolist() == [True, True, True]
    answers.forget()
    assert answers.reaches(column, 3).tolist() == [True, True, True]


def test_masks_that_hold_everywhere_close_nothing() -> None:
    answers, everywhere = ColumnAnswers(), np.array([True, True])
    some = np.array([True, False])

    assert answers.where((everywhere,)) == (None, None)
    keep, close = answers.where((everywhere, some))
    assert keep is not None
    assert close is not None
    assert (keep.tolist(), close.tolist()) == ([True, False], [False, True])


def test_nodes_are_of_one_kind_where_their_devices_are_alike_one_by_one() -> None:
    """Of 12 kinds, more than are compared with every node, and of nodes with fewer devices than others."""
    nodes = [a_node(f"n{row:02}", gpus=row % 12) for row in range(30)]

    kinds = ClusterIndex(a_snapshot(nodes=nodes)).devices.node_kinds

    assert len(set(kinds)) == 12
    assert all(
        (kinds[one] == kinds[other]) == (one % 12 == other % 12) for one in range(30) for other in range(30)
    )
