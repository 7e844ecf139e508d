"""Why one job waits, node by node, and what a job not yet submitted would meet."""

from __future__ import annotations

import pytest

from quotas.core.resources import Resources
from scheduler.core.cycle import plan_cycle
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.constraints import Taint
from scheduler.core.snapshot.request_classes import request_class
from scheduler.core.snapshot.snapshot import JobGate
from scheduler.core.whatif.explain import Hypothetical, explain, node_table, preview
from tests.support.builders import a_job, a_node, a_policy, a_queue, a_quota, a_snapshot, a_world, running


def test_every_gate_that_blocks_is_there_strongest_first() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2)],
        running=[running(a_job("old", gpus=2), ("n1", [0, 1]))],
        pending=[a_job("me", gpus=1, gate=JobGate.HELD_BY_USER, begin=5)],
        queues=[a_queue(paused="by A. Admin", max_concurrent_jobs=1)],
        quotas=[a_quota("gpu_millis", 2000, used=2000)],
    )

    found = explain(world.snapshot, a_policy(), world.job("me"))

    assert [decision.reason.value for decision in found.blockers] == [
        "QueueStopped", "HeldByUser", "BeginTime", "RateLimited", "WaitingForQuota", "WaitingForResources",
    ]  # fmt: skip
    assert found.headline == found.blockers[0]


def test_every_node_says_what_it_lacks() -> None:
    world = a_world(
        nodes=[
            a_node("busy", gpus=4, labels={"a": "b"}),
            a_node("cordoned", gpus=4, cordoned=True, labels={"a": "b"}),
            a_node("other", gpus=4, labels={"a": "c"}),
            a_node("tainted", gpus=4, labels={"a": "b"}, taints=(Taint("team", "x"),)),
            a_node("small", gpus=1, labels={"a": "b"}),
            a_node("silent", gpus=4, state="down"),
        ],
        running=[running(a_job("old", gpus=2), ("busy", [0, 1]))],
        pending=[a_job("me", gpus=4, selector={"a": "b"})],
    )

    table = node_table(world.snapshot, a_policy(), world.job("me"))

    assert [(verdict.name, verdict.gate, verdict.sentence) for verdict in table] == [
        ("busy", "gpus", "needs 4 GPUs, has 2 GPUs free"),
        ("cordoned", "cordoned", "cordoned"),
        ("other", "labels", "lacks a=b"),
        ("tainted", "taints", "untolerated taint team=x:NoSchedule"),
        ("small", "gpus", "needs 4 GPUs, has 1 GPU free"),
        ("silent", "state", "not responding (state down)"),
    ]


def test_the_world_is_explained_as_the_plan_leaves_it() -> None:
    world = a_world(
        nodes=[a_node("n1", gpus=2)], pending=[a_job("first", gpus=2), a_job("me", gpus=2, tasks=1)]
    )

    table = node_table(world.snapshot, a_policy(), world.job("me"))

    assert [verdict.sentence for verdict in table] == ["needs 2 GPUs, has 0 GPUs free"]


def test_a_preview_says_where_it_would_start_and_changes_nothing() -> None:
    snapshot = a_snapshot(nodes=[a_node("n1", gpus=2)], pending=[a_job("first", gpus=1)])
    asked = Hypothetical(request_class(Resources(cpu_millis=1000, gpus=1)), queue_id=1, project_id=1)

    found = preview(snapshot, a_policy(), asked)

    assert found.start is not None
    assert found.start.node_ids == (1,)
    assert len(snapshot.pending) == 1


def test_a_preview_agrees_with_what_happens_to_the_job_once_submitted() -> None:
    nodes = [a_node("n1", gpus=2)]
    asked = Hypothetical(
        request_class(Resources(cpu_millis=1000, memory_mib=1024, gpus=4)), queue_id=1, project_id=1
    )
    world = a_world(nodes=nodes, pending=[a_job("me", gpus=4)])

    found = preview(a_snapshot(nodes=nodes, pending=[a_job("me", gpus=4)]), a_policy(), asked)

    assert found.headline == plan_cycle(world.snapshot, a_policy()).decision_of(world.job("me"))
    assert found.headline is not None
    assert sentence(found.headline.reason, found.headline.facts) == (
        "Requests 4 GPUs on one node; the largest node has 2. The job can never start as written."
    )


def test_an_unknown_job_or_queue_is_named() -> None:
    snapshot = a_snapshot(nodes=[a_node("n1")], pending=[a_job("one")])

    with pytest.raises(KeyError, match="no pending job with id 77"):
        explain(snapshot, a_policy(), 77)
    with pytest.raises(KeyError, match="no queue with id 9"):
        preview(snapshot, a_policy(), Hypothetical(request_class(Resources()), queue_id=9, project_id=1))


@pytest.mark.parametrize(
    ("reason", "facts", "text"),
    [
        (
            ReasonCode.WAITING_FOR_RESOURCES,
            {"resource": "gpus", "gpu_model": "H100", "needs": 4, "free": 2, "total": 16, "ending": 6,
             "ending_by_ms": 1_700_000_000_000},
            "Needs 4 H100 GPUs; 2 of 16 free, 6 more by 2023-11-14T22:13:20Z at the latest. "
            "3 jobs (12 GPUs) are ahead.",
        ),
        (
            ReasonCode.WAITING_FOR_QUOTA,
            {"owner": "project vision", "resource": "memory_mib", "needs": 2048, "used": 1024, "limit": 2048},
            "Needs 2 GiB of memory; project vision uses 1 GiB of 2 GiB. 3 jobs (12 GPUs) are ahead.",
        ),
        (
            ReasonCode.QUEUE_STOPPED,
            {"queue": "research", "text": "by A. Admin since 09:12: maintenance"},
            "Queue research is paused by A. Admin since 09:12: maintenance. 3 jobs (12 GPUs) are ahead.",
        ),
    ],
)  # fmt: skip
def test_a_sentence_carries_the_numbers(reason: ReasonCode, facts: dict[str, int | str], text: str) -> None:
    assert sentence(reason, facts, ahead_jobs=3, ahead_gpus=12) == text


@pytest.mark.parametrize("reason", list(ReasonCode))
def test_every_reason_has_a_sentence_even_without_facts(reason: ReasonCode) -> None:
    assert sentence(reason, {}).endswith(".")
