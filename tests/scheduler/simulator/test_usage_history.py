"""Fair share in the simulator: on a saturated cluster every project converges to its share."""

from __future__ import annotations

import numpy as np
import pytest

from quotas.core.resources import Resources
from quotas.core.share_tree import build_tree
from scheduler.core.policy import Policy
from scheduler.core.snapshot.request_classes import ClassTable, request_class
from scheduler.core.snapshot.snapshot import (
    DeviceColumns,
    NodeColumns,
    PendingColumns,
    ProjectColumns,
    QueueColumns,
    Snapshot,
)
from scheduler.simulator.cluster_replay import simulate
from scheduler.simulator.cluster_workload import ClusterWorkload

GPUS = 4
HOUR_MS = 3_600_000


def saturated(
    people: dict[tuple[int, int], int], tree=None, weights: dict[int, int] | None = None
) -> ClusterWorkload:
    """So many jobs of each (project, person), all there from the beginning, of one GPU for about an hour each."""
    table = ClassTable()
    number = table.intern(request_class(Resources(cpu_millis=1000, gpus=1)))
    rows = [pair for pair, count in people.items() for _ in range(count)]
    count, projects = len(rows), sorted({project for project, _ in people})
    snapshot = Snapshot.build(
        now_ms=0,
        nodes=NodeColumns(id=[1], name=["n1"], cpu_millis=[64_000], memory_mib=[1 << 20]),
        devices=DeviceColumns(id=range(1, GPUS + 1), node_id=[1] * GPUS, position=range(GPUS)),
        classes=table.classes,
        pending=PendingColumns(
            id=range(1, count + 1), class_index=[number] * count, queue_id=[1] * count,
            project_id=[project for project, _ in rows], user_id=[user for _, user in rows],
            submitted_ms=range(count), time_limit_seconds=[7200] * count,
        ),
        queues=QueueColumns(id=[1], name=["main"]),
        projects=ProjectColumns(id=projects, share_weight=[(weights or {}).get(one, 1) for one in projects]),
    )  # fmt: skip
    run_ms = HOUR_MS + 60_000 * (np.arange(count) % 7)
    return ClusterWorkload("saturated", snapshot, run_ms, np.full(count, 1000), GPUS * 1000, tree)


def hours(
    workload: ClusterWorkload, until_hours: int, policy: Policy | None = None
) -> dict[tuple[int, int], int]:
    """Jobs of an hour that everybody has started by then, everybody still having some that wait."""
    outcome = simulate(workload, policy or Policy(name="fairshare"))
    early = (outcome.started_ms >= 0) & (outcome.started_ms < until_hours * HOUR_MS)
    pending = workload.snapshot.pending
    pairs = list(zip(pending.project_id.tolist(), pending.user_id.tolist(), strict=True))
    return {
        pair: sum(bool(early[row]) for row, one in enumerate(pairs) if one == pair)
        for pair in dict.fromkeys(pairs)
    }


def test_two_people_of_weights_two_and_one_get_two_of_three_gpu_hours() -> None:
    tree = build_tree([(1, "site", None, 1, None, None)], [(1, "vision", 1, 1, None, None)],
                      [(1, 1, "ada", 2), (1, 2, "bob", 1)])  # fmt: skip

    got = hours(saturated({(1, 1): 60, (1, 2): 32}, tree), 20)

    assert got[1, 1] == pytest.approx(2 / 3 * sum(got.values()), abs=2)


def test_projects_side_by_side_converge_by_the_flat_formula() -> None:
    got = hours(saturated({(1, 1): 60, (2, 2): 32}, weights={1: 2, 2: 1}), 20)

    assert got[1, 1] == pytest.approx(2 / 3 * sum(got.values()), abs=2)


def test_an_organization_keeps_its_share_however_many_people_the_other_has() -> None:
    tree = build_tree(
        [(1, "small", None, 1, None, None), (2, "large", None, 1, None, None)],
        [(1, "one", 1, 1, None, None), (2, "many", 2, 1, None, None)],
        [(1, 1, "ada", 1), *((2, user, f"p{user}", 1) for user in (2, 3, 4))],
    )

    got = hours(saturated({(1, 1): 30, (2, 2): 12, (2, 3): 12, (2, 4): 12}, tree), 12)

    large = [got[2, user] for user in (2, 3, 4)]
    assert got[1, 1] / sum(large) == pytest.approx(1, abs=0.2)
    assert max(large) - min(large) <= 3


def test_without_fair_share_who_came_first_takes_all() -> None:
    got = hours(saturated({(1, 1): 42, (2, 2): 6}), 9, Policy(name="fifo"))

    assert got[2, 2] == 0
