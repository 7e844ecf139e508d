"""Room now: the nodes that a cycle would give a whole job, if it were the only one in line."""

from __future__ import annotations

from scheduler.core.policy import Policy
from scheduler.core.whatif.room_now import RoomNow, room_now
from tests.support.builders import World, a_job, a_node, a_world, running


def a_half_full_world() -> World:
    return a_world(
        nodes=[a_node("n1", gpus=4), a_node("n2", gpus=4), a_node("n3", gpus=4, cordoned=True)],
        running=[running(a_job("old", gpus=3), ("n1", [0, 1, 2]))],
        pending=[a_job("first", gpus=4), a_job("train", tasks=2, gpus=2)],
    )


def asked(world: World, tasks: int, *nodes: str) -> RoomNow:
    ids = [world.nodes[name] for name in nodes]
    return room_now(world.snapshot, Policy(), world.job("train"), tasks=tasks, node_ids=ids)


def test_one_node_that_holds_all_tasks_is_taken_whoever_is_ahead() -> None:
    world = a_half_full_world()

    assert asked(world, 2, "n1", "n2", "n3") == RoomNow((world.nodes["n2"],), 2)


def test_too_little_room_says_how_much_there_is() -> None:
    world = a_half_full_world()

    assert asked(world, 3, "n1", "n2", "n3") == RoomNow((), 2)


def test_other_nodes_than_those_allowed_have_no_room() -> None:
    world = a_half_full_world()

    assert asked(world, 2, "n1", "n3") == RoomNow((), 0)
