"""Gang reservations and maintenance under a virtual clock, in forecasts and in the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.core.forecast.forecast import Course, RunTimes, play_forward
from scheduler.core.forecast.virtual_reservations import VirtualReservations
from scheduler.core.policy import Policy
from scheduler.simulator.cluster_replay import simulate
from scheduler.simulator.cluster_workload import ClusterWorkload
from tests.support.builders import MINUTE_MS, NOW_MS, World, a_job, a_node, a_reservation, a_world, running


def a_gang_and_small_jobs(**words: object) -> World:
    """Two nodes that come free at 10 and 20 minutes, a gang that wants both, and an hour's work behind it."""
    return a_world(
        nodes=[a_node("n1", gpus=4), a_node("n2", gpus=4)],
        running=[
            running(a_job("first", gpus=4), ("n1", range(4)), ends_in=10),
            running(a_job("second", gpus=4), ("n2", range(4)), ends_in=20),
        ],
        pending=[
            a_job("gang", gpus=4, tasks=2, minutes=30, **{"gathers": 60} | words),  # type: ignore[arg-type]
            a_job("long", gpus=4, minutes=60),
            a_job("short", gpus=4, minutes=5),
        ],
    )


def forecast_starts(world: World, policy: Policy) -> dict[str, int]:
    """When each starts if everybody runs to the limit, as the forecast sees it."""
    snapshot = world.snapshot
    future = play_forward(snapshot, policy, RunTimes(), Course.LIMITS, snapshot.pending.id.tolist())
    names = {number: name for name, number in world.jobs.items()}
    return {names[number]: (at - NOW_MS) // MINUTE_MS for number, at in future.started_ms.items()}


def simulated(world: World, policy: Policy) -> dict[str, int]:
    snapshot = world.snapshot
    pending = snapshot.pending
    run_ms = np.where(pending.time_limit_seconds > 0, pending.time_limit_seconds * 1000, MINUTE_MS)
    workload = ClusterWorkload("story", snapshot, run_ms, np.full(len(pending), 4000), 8000)
    started = simulate(workload, policy).started_ms
    names = {number: name for name, number in world.jobs.items()}
    return {
        names[number]: (at - NOW_MS) // MINUTE_MS
        for number, at in zip(pending.id.tolist(), started.tolist(), strict=True)
    }


@pytest.mark.parametrize("when", [forecast_starts, simulated])
def test_nodes_that_a_gang_reserves_stay_free_for_it(when) -> None:  # type: ignore[no-untyped-def]
    world = a_gang_and_small_jobs()

    assert when(world, Policy()) == {"gang": 20, "short": 10, "long": 50}
    # Without gathering the long one takes the first node, and the gang waits for it.
    assert when(world, Policy(assemblies=0))["gang"] > 20


@pytest.mark.parametrize("when", [forecast_starts, simulated])
def test_a_gang_whose_reservation_runs_out_releases_it_and_tries_again(when) -> None:  # type: ignore[no-untyped-def]
    world = a_gang_and_small_jobs(gathers=30, gathering=("n1", "n2"), gathers_until=15)

    found = when(world, Policy(assemblies=0))

    assert found["short"] == 10  # gone before the gang would have begun
    assert found["long"] == 15
    assert found["gang"] > 15


@pytest.mark.parametrize("when", [forecast_starts, simulated])
def test_no_job_runs_into_maintenance_and_all_start_after_it(when) -> None:  # type: ignore[no-untyped-def]
    world = a_world(
        nodes=[a_node("n1")],
        pending=[a_job("day", minutes=120), a_job("hour", minutes=60, submitted=0)],
        reservations=[a_reservation("upgrade", "n1", starts_in=90, minutes=45)],
    )

    assert when(world, Policy()) == {"hour": 0, "day": 135}


@pytest.mark.parametrize("when", [forecast_starts, simulated])
def test_a_future_that_forgets_reservations_is_noticed(when, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(
        VirtualReservations, "add_to", lambda self, pending, expected_starts, now_ms: (pending, None)
    )

    with pytest.raises(AssertionError):
        test_nodes_that_a_gang_reserves_stay_free_for_it(when)


def test_a_future_without_gang_reservations_keeps_the_reservations_of_the_beginning() -> None:
    world = a_gang_and_small_jobs(gathers=0)

    future = play_forward(world.snapshot, Policy(), RunTimes(), Course.LIMITS, world.jobs.values())

    assert VirtualReservations.of(world.snapshot).add_to(world.snapshot.pending, {}, NOW_MS)[1] is None
    assert future.started_ms[world.job("long")] == NOW_MS + 10 * MINUTE_MS
