"""An idle cluster says why it could never start a job, and one that is idle and open starts all others."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.placement.shape import Shape
from scheduler.core.plan import Decision
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.constraints import Taint
from scheduler.core.snapshot.snapshot import QuotaColumns
from scheduler.core.whatif import idle_cluster
from scheduler.core.whatif.idle_cluster import IdleCluster, idle
from tests.support.builders import World, a_job, a_node, a_world, running


def a_cluster(*nodes: Any, **words: Any) -> IdleCluster:
    return IdleCluster(idle(a_world(nodes=nodes, **words).snapshot))


def sentences(decisions: tuple[Decision, ...]) -> list[str]:
    return [
        sentence(one.reason, one.facts).removesuffix(" The job can never start as written.")
        for one in decisions
    ]


def a_busy_world() -> World:
    """Every reason there is for a node to take nothing now."""
    return a_world(
        nodes=[
            a_node("n1", gpus=2, unhealthy=(0, 1), cordoned=True, taints=(Taint("team", "x"),)),
            a_node("n2", gpus=2, state="down", partitions=(7,), labels={"pool": "a"}, max_minutes=1),
        ],
        running=[running(a_job("old", cpus=64), "n2")],
    )


def test_nothing_that_passes_keeps_a_job_from_ever_starting() -> None:
    cluster = IdleCluster(idle(a_busy_world().snapshot))

    assert cluster.never_fits(a_job("all", cpus=64, gpus=2).request, Shape(tasks=2)) == ()


def test_what_operators_change_is_no_reason() -> None:
    cluster = a_cluster(a_node("n1"), a_node("n2"))
    wanted = a_job("picky", selector={"arch": "s390x"}, partitions=(9,))

    assert cluster.never_fits(wanted.request, Shape()) == ()
    assert cluster.never_fits(a_job("near").request, Shape(tasks=2, pack="rack", must=True)) == ()


def test_every_amount_that_no_node_has_is_named() -> None:
    cluster = a_cluster(a_node("n1", cpus=8, memory_gib=16, gpus=4))

    found = cluster.never_fits(a_job("huge", cpus=16, memory_gib=32, gpus=8).request, Shape())

    assert sentences(found) == [
        "Requests 8 GPUs on one node; the largest node has 4.",
        "Requests 16 CPUs on one node; the largest node has 8.",
        "Requests 32 GiB of memory on one node; the largest node has 16 GiB.",
    ]


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (Shape(tasks=9), "Requests 9 CPUs in all; the matching nodes have 8."),
        (Shape(tasks=3, nodes=3), "Requests 3 tasks on 3 nodes at once; all matching nodes, idle, cannot hold "
                                  "that layout."),
        (Shape(tasks=7, tasks_per_node=3), "Requests 7 tasks with 3 on each node at once; all matching nodes, "
                                           "idle, cannot hold that layout."),
        (Shape(tasks=6, pack="node", must=True), "Requests 6 tasks on one node; the largest node, idle, holds 4."),
        (Shape(tasks=2, nodes=2, tasks_per_node=2), "Requests 2 tasks on 2 nodes with 2 on each, which is impossible."),
    ],
)  # fmt: skip
def test_a_layout_that_no_nodes_take_is_named(shape: Shape, says: str) -> None:
    cluster = a_cluster(a_node("n1", cpus=4), a_node("n2", cpus=4))

    found = cluster.never_fits(a_job("gang", cpus=1).request, shape)

    assert sentences(found) == [says]


def test_a_cluster_without_nodes_refuses_nothing() -> None:
    assert a_cluster().never_fits(a_job("huge", gpus=1000).request, Shape()) == ()


def lines(**columns: Any) -> QuotaColumns:
    return QuotaColumns(id=[1], owner=["project vision"], **columns)


def test_a_line_of_one_model_bounds_only_jobs_that_could_be_given_no_other() -> None:
    cluster = a_cluster(a_node("n1", gpus=4, model="H100"), a_node("n2", gpus=4, model="A100"))
    line = lines(resource=["gpu_millis"], hard=[1000], gpu_model=["H100"])

    any_model = cluster.never_allowed(a_job("any", gpus=2).request, 1, line)
    named = cluster.never_allowed(a_job("named", gpus=2, model="H100").request, 1, line)

    assert any_model == ()
    assert [decision.reason for decision in named] == [ReasonCode.EXCEEDS_MAX_QUOTA]


def test_a_limit_of_nothing_says_so() -> None:
    cluster = a_cluster(a_node("n1"))

    found = cluster.never_allowed(a_job("any").request, 1, lines(resource=["running_jobs"], hard=[0]))

    assert [decision.reason for decision in found] == [ReasonCode.QUOTA_ZERO]


def test_answers_are_kept_for_a_bounded_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_cluster, "MOST_ANSWERS", 2)
    cluster = a_cluster(a_node("n1", gpus=2, model="H100"))
    wanted = [a_job("a", gpus=1, model=model).request for model in ("H100", "A100", "B200", "H100")]

    refused = [bool(cluster.never_fits(request, Shape())) for request in wanted]

    assert refused == [False, True, True, False]
