"""The event loop of forecasts and simulations: which event comes when, and what an end does to the queue."""

from __future__ import annotations

from scheduler.core.forecast.event_loop import EventLoop
from scheduler.core.forecast.virtual_cluster import VirtualCluster
from scheduler.core.policy import Policy
from tests.support.builders import MINUTE_MS, NOW_MS, World, a_job, a_node, a_world, running


def two_jobs_on_one_gpu() -> World:
    return a_world(
        nodes=[a_node("n1", gpus=1)],
        running=[running(a_job("first", gpus=1), ("n1", [0]), started=-10, ends_in=50)],
        pending=[a_job("second", gpus=1, minutes=30)],
    )


def a_loop(world: World, **words: int) -> EventLoop:
    return EventLoop(VirtualCluster(world.snapshot), NOW_MS, waiting=[0], **words)


def test_a_job_that_ends_makes_room_for_the_next() -> None:
    world = two_jobs_on_one_gpu()
    loop = a_loop(world)
    loop.run(world.job("first"), 5 * MINUTE_MS)

    first_plan = loop.plan(Policy())
    ended = [number for number, requeue in loop.ends(NOW_MS + 10 * MINUTE_MS) if requeue is None]
    second_plan = loop.plan(Policy())

    assert (first_plan.starts, ended) == ((), [world.job("first")])
    assert loop.now_ms == NOW_MS + 5 * MINUTE_MS
    assert [start.job_id for start in second_plan.starts] == [world.job("second")]
    assert loop.waiting == []


def test_an_event_that_no_longer_holds_ends_nothing() -> None:
    world = two_jobs_on_one_gpu()
    loop = a_loop(world)
    loop.run(world.job("first"), 5 * MINUTE_MS)
    loop.run(world.job("first"), 20 * MINUTE_MS)

    early = list(loop.ends(NOW_MS + 10 * MINUTE_MS))
    late = list(loop.ends(NOW_MS + 20 * MINUTE_MS))

    assert (early, [number for number, _ in late]) == ([], [world.job("first")])


def test_no_event_comes_sooner_than_the_least_step() -> None:
    world = two_jobs_on_one_gpu()
    loop = a_loop(world, least_step_ms=1000)

    loop.expect([(NOW_MS - MINUTE_MS, 0)])

    assert loop.next_ms == NOW_MS + 1000


def test_jobs_that_end_at_one_moment_end_in_the_order_of_their_starts() -> None:
    world = a_world(
        nodes=[a_node("n1", cpus=4)],
        pending=[a_job("low", cpus=1, priority=10), a_job("high", cpus=1, priority=90)],
    )
    loop = EventLoop(VirtualCluster(world.snapshot), NOW_MS, waiting=[0, 1])
    plan = loop.plan(Policy(name="priority"))
    for start in reversed(plan.starts):
        loop.run(start.job_id, MINUTE_MS)

    ended = [number for number, _ in loop.ends(NOW_MS + MINUTE_MS)]

    assert ended == [start.job_id for start in plan.starts]
