"""Finding 21: a closed node is named as what it is, and a missing label by key and value."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.policy import Policy
from scheduler.core.reasons.causes import CauseCode, cause_of
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.constraints import Requirement, Taint
from tests.support.builders import World, a_job, a_node, a_reservation, a_world, running

MAINTENANCE = Taint("gpu", "maintenance")


def why(world: World, job: str = "one") -> tuple[str, CauseCode, str]:
    decision = plan_cycle(world.snapshot, Policy()).decision_of(world.job(job))
    return sentence(decision.reason, decision.facts), *cause_of(decision.reason, decision.facts)


def test_finding_21_the_only_node_with_the_label_is_tainted() -> None:
    world = a_world(
        nodes=[a_node("n1", labels={"pool": "a"}, taints=(MAINTENANCE,)), a_node("n2"), a_node("n3")],
        pending=[a_job("one", selector={"pool": "a"})],
    )

    assert why(world) == (
        "The only node with pool=a (n1) has the taint gpu=maintenance:NoSchedule. Add a toleration, or wait until "
        "the taint is removed.",
        CauseCode.TAINT,
        "gpu=maintenance:NoSchedule",
    )


def test_finding_21_an_idle_node_is_cordoned() -> None:
    world = a_world(nodes=[a_node("n1", cpus=8, cordoned=True)], pending=[a_job("one")])

    assert why(world) == (
        "The only node that could hold the job (n1) is cordoned. Wait until an operator uncordons it.",
        CauseCode.CORDON,
        "n1",
    )


def test_finding_21_an_idle_node_is_cordoned_beside_one_that_is_busy() -> None:
    world = a_world(
        nodes=[a_node("n1", cpus=8), a_node("n2", cpus=8, cordoned=True)],
        running=[running(a_job("old", cpus=8), "n1")],
        pending=[a_job("one")],
    )

    assert why(world) == (
        "Needs 1 CPU; 0 of 16 free. Node n2 has enough free resources, but is cordoned.",
        CauseCode.AMOUNT,
        "cpu_millis",
    )


def test_finding_21_a_missing_label_is_named_by_key_and_value() -> None:
    world = a_world(
        nodes=[a_node("n1", labels={"arch": "arm"}), a_node("n2")],
        pending=[a_job("one", selector={"arch": "arm", "disk": "nvme"})],
    )

    assert why(world) == (
        "No node that could hold the job has the label disk=nvme. Ask an operator to add the label, or change the job.",
        CauseCode.LABEL,
        "disk=nvme",
    )


def test_finding_21_a_condition_of_the_affinity_that_no_node_meets_is_named() -> None:
    world = a_world(
        nodes=[a_node("n1", labels={"pool": "b"}), a_node("n2", labels={"pool": "b"})],
        pending=[a_job("one", affinity=((Requirement("pool", "In", ("a", "c")),),))],
    )

    assert why(world) == (
        "All 2 nodes that could hold the job do not match the node affinity pool In a, c. Change the affinity, or ask "
        "an operator to change the labels.",
        CauseCode.NODE_AFFINITY,
        "pool In a, c",
    )


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ({"cordoned": True}, CauseCode.CORDON, "is cordoned"),
        ({"draining": True}, CauseCode.DRAIN, "is draining"),
        ({"faulty": True}, CauseCode.FAULT, "reports a fault"),
        ({"state": "down"}, CauseCode.UNREACHABLE, "does not respond"),
        ({"taints": (MAINTENANCE,)}, CauseCode.TAINT, "has the taint"),
        ({"max_minutes": 5}, CauseCode.NODE_TIME_LIMIT, "in a partition with a shorter time limit"),
        ({"unhealthy": (0,)}, CauseCode.GPU_HEALTH, "has too few healthy GPUs"),
    ],
    ids=lambda value: value if isinstance(value, CauseCode) else "",
)
def test_nobody_is_told_never_where_an_action_on_a_node_would_do(
    words: dict[str, Any], code: CauseCode, says: str
) -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=1, **words), a_node("n2", cpus=1)],
        pending=[a_job("one", gpus=1, cpus=2, minutes=60)],
    )

    said, cause, _ = why(world)

    assert cause is code
    assert says in said
    assert "never" not in said


def test_a_gang_is_told_which_of_its_nodes_is_closed() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2), a_node("n2", gpus=2, cordoned=True)],
        pending=[a_job("one", tasks=2, gpus=2)],
    )

    assert why(world)[0] == (
        "Too few nodes are open to the job: node n2 is cordoned. Wait until an operator uncordons it."
    )


def test_of_two_things_on_one_node_both_are_named() -> None:
    world = a_world(
        nodes=[a_node("n1", taints=(MAINTENANCE,), max_minutes=5)],
        pending=[a_job("one", minutes=60)],
    )

    said, code, _ = why(world)

    assert said.startswith(
        "The only node that could hold the job (n1) has the taint gpu=maintenance:NoSchedule and is in a partition"
    )
    assert code is CauseCode.TAINT


def test_a_reserved_node_that_is_full_is_named_as_reserved() -> None:
    world = a_world(
        nodes=[a_node("n1", cpus=2)],
        running=[running(a_job("old", cpus=2), "n1")],
        reservations=[a_reservation("r", "n1", starts_in=-5, minutes=30)],
        pending=[a_job("one", minutes=60)],
    )

    assert why(world)[1] is CauseCode.RESERVATION


def test_what_no_machine_holds_can_never_start() -> None:
    world = a_world(
        nodes=[a_node("n1", cpus=4, labels={"pool": "a"}), a_node("n2", cpus=8)],
        pending=[a_job("one", cpus=9, selector={"pool": "a"}), a_job("two", cpus=6, selector={"pool": "a"})],
    )

    assert why(world)[0] == (
        "Requests 9 CPUs on one node; the largest node has 8. The job can never start as written."
    )
    assert why(world, "two")[1:] == (CauseCode.LABEL, "pool=a")
