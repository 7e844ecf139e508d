"""The forecast in a pool is that of the planner, and jobs without limits run beside the reserved start."""

from __future__ import annotations

import random

import numpy as np
import pytest

from quotas.core.resources import Resources
from scheduler.core.backfill.backfill import FOREVER_MS
from scheduler.core.forecast.forecast import RunTimes, forecast
from scheduler.core.policy import Policy
from scheduler.core.snapshot.request_classes import ClassTable, request_class
from scheduler.core.snapshot.snapshot import (
    AllocationColumns,
    NodeColumns,
    PendingColumns,
    ProjectColumns,
    QueueColumns,
    RunningColumns,
    Snapshot,
)
from scheduler.simulator.pool_forecast import PoolState, pool_range
from scheduler.simulator.predicted_replay import replay_unlimited
from scheduler.simulator.workload import JobColumns

NOW_MS = 1_000_000_000
SIZE = 16


def a_state(dice: random.Random) -> PoolState:
    """A full pool and a queue whose first job does not fit: the planner has planned this moment already."""
    needs, started, limits, predicted = [], [], [], []
    held = 0
    while held < SIZE:
        need = min(dice.choice([1, 2, 4, 8]), SIZE - held)
        held += need
        limit = dice.choice([0, 600, 3600, 7200]) * 1000
        needs.append(need)
        limits.append(limit or FOREVER_MS)
        predicted.append(dice.randint(300, 5000) * 1000)
        started.append(NOW_MS - dice.randint(1, (limit or 9_000_000) // 1000 - 1) * 1000)
    running = len(needs)
    for _ in range(dice.randint(1, 6)):
        needs.append(dice.choice([1, 2, 4, 8, 16]))
        limits.append(dice.choice([0, 600, 3600, 7200]) * 1000 or FOREVER_MS)
        predicted.append(dice.randint(300, 5000) * 1000)
    order = sorted(range(running), key=lambda row: started[row])
    rows = np.array([*order, *range(running, len(needs))])
    return PoolState(
        NOW_MS,
        SIZE,
        np.arange(1, len(needs) + 1),
        np.array([dice.randint(1, 3) for _ in needs]),
        np.array(needs)[rows],
        np.array(limits)[rows],
        np.array(predicted)[rows],
        np.array(started)[order],
    )


def as_snapshot(state: PoolState) -> Snapshot:
    table = ClassTable()
    classes = [table.intern(request_class(Resources(cpu_millis=1000 * int(need)))) for need in state.needs]
    count, limits = len(state.started_ms), np.where(state.limit_ms == FOREVER_MS, 0, state.limit_ms)
    ids, users = state.job_id, state.user_id
    needs_millis = 1000 * state.needs
    return Snapshot.build(
        now_ms=state.now_ms,
        nodes=NodeColumns(
            id=[1],
            name=["machine"],
            cpu_millis=[1000 * state.processors],
            used_cpu_millis=[1000 * state.processors],
        ),
        classes=table.classes,
        running=RunningColumns(
            id=ids[:count],
            queue_id=np.ones(count),
            project_id=users[:count],
            user_id=users[:count],
            class_index=classes[:count],
            started_ms=state.started_ms,
            expected_end_ms=np.where(limits[:count], state.started_ms + limits[:count], 0),
            predicted_seconds=np.where(limits[:count], 0, state.predicted_ms[:count] // 1000),
        ),
        allocations=AllocationColumns(
            id=ids[:count],
            job_id=ids[:count],
            rank=np.zeros(count),
            node_id=np.ones(count),
            cpu_millis=needs_millis[:count],
        ),
        pending=PendingColumns(
            id=ids[count:],
            class_index=classes[count:],
            queue_id=np.ones(len(ids) - count),
            project_id=users[count:],
            user_id=users[count:],
            submitted_ms=ids[count:],
            time_limit_seconds=limits[count:] // 1000,
            predicted_seconds=np.where(limits[count:], 0, state.predicted_ms[count:] // 1000),
        ),
        queues=QueueColumns(id=[1], name=["main"]),
        projects=ProjectColumns(id=[1, 2, 3]),
    )


HISTORY = RunTimes(
    parts=(20, 100, 300, 500, 990),
    parts_of_user={1: (10, 20, 30, 40, 50, 60)},
    seconds=(60, 300, 1000, 4000, 90_000),
    seconds_of_user={2: (100, 200, 300, 400, 500, 600)},
)


@pytest.mark.parametrize("seed", range(40))
def test_a_range_in_a_pool_is_the_one_that_the_planner_finds(seed: int) -> None:
    state = a_state(random.Random(f"pool {seed}"))
    history = HISTORY if seed % 3 else RunTimes()
    found = forecast(as_snapshot(state), Policy(backfill="easy"), history)

    for row in range(len(state.started_ms), len(state.needs)):
        of_planner = found[state.job_id.item(row)]
        in_pool = pool_range(state, row, history)
        assert in_pool == (of_planner.p10_ms, of_planner.p50_ms, of_planner.p90_ms), row


def test_jobs_without_limits_start_beside_the_reserved_start_and_never_in_front() -> None:
    # 4 of 8 run; the second wants 8; the third, 4 and short in truth, may not pass it; the fourth waits its turn.
    jobs = JobColumns.from_rows(
        [
            (1, 0, 100_000, 0, 4, 1),
            (2, 1000, 10_000, 0, 8, 1),
            (3, 2000, 5_000, 0, 4, 1),
            (4, 3000, 5_000, 0, 4, 1),
        ]
    )

    found = replay_unlimited(8, jobs)

    assert found.started_ms.tolist() == [0, 100_000, 110_000, 110_000]


def test_predictions_are_of_the_last_runs_of_the_person() -> None:
    jobs = JobColumns.from_rows([(n, n * 1_000_000, 1000 * n, 0, 1, 1) for n in range(1, 5)])

    found = replay_unlimited(1, jobs)

    assert found.expected_ms.tolist() == [86_400_000, 86_400_000, 2000, 3000]
