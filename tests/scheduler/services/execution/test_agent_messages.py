"""Messages of several agents at once: one transaction, and each gets what is its own."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduler.agent.protocol import Report
from scheduler.models import Attempt, Job, JobEvent, Node, Task
from scheduler.services.cluster.nodes import register_node
from scheduler.services.execution.agent_messages import (
    AgentAnswer,
    AgentMessage,
    UnknownAgent,
    find_orders,
    take_reports,
)
from tests.support.agents import World

MACHINE: dict[str, Any] = {
    "cpu_millis": 1000, "memory_mib": 16384, "storage_mib": 1000, "numa_domains": 1, "boot_id": "b",
    "agent_version": "0", "labels": {}, "partitions": [], "devices": [],
}  # fmt: skip
UNKNOWN = "muster_agent_0123456789_nobody"


class Cluster:
    """Nodes of one core each, so that every node gets one job."""

    def __init__(self, nodes: int) -> None:
        self.world = World.make()
        token = self.world.join_token()
        self.keys: dict[int, str] = {}
        for number in range(nodes):
            done = register_node(join_token=token, name=f"n{number}", inventory=MACHINE)
            self.keys[done.node.pk] = done.agent_key

    def plan(self, **fields: Any) -> None:
        for _ in self.keys:
            self.world.submit("true", **fields)
        self.world.plan()

    def asks(self) -> list[AgentMessage]:
        return [self.message(node, known={}) for node in self.keys]

    def ends(self, **fields: Any) -> list[AgentMessage]:
        """Each node reports that its task has begun and ended."""
        return [
            self.message(
                task.node_id,
                reports=[
                    Report(task=task.pk, epoch=1, state="succeeded", pid=7, started_ago_ms=9, ended_ago_ms=3,
                           exit_code=0, **fields)
                ],
            )
            for task in Task.objects.order_by("node_id")
        ]  # fmt: skip

    def message(self, node: int, **fields: Any) -> AgentMessage:
        return AgentMessage(self.keys[node], boot_id="b", agent_version="0", clock_ms=0, **fields)


def orders(answers: list[AgentAnswer | Exception]) -> dict[int, list[int]]:
    """By node the tasks that it is to start."""
    return {
        one.node.pk: [assignment["task"] for assignment in one.orders.assignments]
        for one in answers
        if isinstance(one, AgentAnswer)
    }


def transactions(table: str) -> int:
    """How many transactions wrote the rows of this table as they are."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(DISTINCT xmin::text) FROM {table}")
        return int(cursor.fetchone()[0])


@pytest.mark.django_db(transaction=True)
def test_tasks_of_several_nodes_are_handed_out_in_one_transaction() -> None:
    cluster = Cluster(3)
    cluster.plan()

    found = orders(find_orders(cluster.asks()))

    assert found == {task.node_id: [task.pk] for task in Task.objects.all()}
    assert len(found) == 3
    assert set(Task.objects.values_list("state", flat=True)) == {"starting"}
    assert set(Job.objects.values_list("state", flat=True)) == {"scheduled"}
    assert transactions("scheduler_task") == 1


@pytest.mark.django_db(transaction=True)
def test_reports_of_several_nodes_are_settled_in_one_transaction() -> None:
    cluster = Cluster(3)
    cluster.plan()
    find_orders(cluster.asks())

    answers = take_reports(cluster.ends())

    assert [one.orders.stops for one in answers if isinstance(one, AgentAnswer)] == [[], [], []]
    assert set(Job.objects.values_list("state", flat=True)) == {"completed"}
    assert transactions("scheduler_job") == transactions("scheduler_attempt") == 1
    cluster.world.assert_nothing_is_held()


@pytest.mark.django_db
def test_a_task_that_has_ended_when_its_beginning_is_reported_is_written_once() -> None:
    cluster = Cluster(1)
    cluster.plan()
    find_orders(cluster.asks())
    before = Job.objects.get().generation

    take_reports(cluster.ends())

    job, attempt, task = Job.objects.get(), Attempt.objects.get(), Task.objects.get()
    assert (job.state, attempt.state, task.state) == ("completed", "succeeded", "succeeded")
    assert job.generation == before + 1
    assert task.started_at == attempt.started_at == job.started_at
    assert job.started_at is not None
    assert job.completed_at is not None
    assert job.started_at <= job.completed_at
    kinds = JobEvent.objects.filter(job=job).order_by("pk").values_list("kind", flat=True)
    assert list(kinds) == ["job.submitted", "job.scheduled", "job.completed"]
    ended = JobEvent.objects.get(kind="job.completed")
    assert ended.because == "every task ended with exit code 0"
    assert ended.details == {"attempt": "succeeded", "exit_code": 0, "node": "n0"}


@pytest.mark.django_db
def test_work_that_was_saved_comes_after_the_beginning() -> None:
    cluster = Cluster(1)
    cluster.plan()
    find_orders(cluster.asks())

    take_reports(cluster.ends(saved_ago_ms=5, saved_path="/data/1"))

    kinds = list(JobEvent.objects.order_by("pk").values_list("kind", flat=True))
    assert kinds.index("job.running") < kinds.index("job.saved") < kinds.index("job.completed")


@pytest.mark.django_db
@pytest.mark.parametrize("what", ["orders", "reports"])
def test_more_agents_cost_no_more_round_trips(what: str) -> None:
    counts = []
    cluster = Cluster(3)
    for nodes in (1, 3):
        Task.objects.all().delete()
        cluster.plan()
        if what == "orders":
            with CaptureQueriesContext(connection) as asked:
                find_orders(cluster.asks()[:nodes])
        else:
            find_orders(cluster.asks())
            with CaptureQueriesContext(connection) as asked:
                take_reports(cluster.ends()[:nodes])
        counts.append(len(asked))
        take_reports(cluster.ends())

    assert counts[0] == counts[1]


@pytest.mark.django_db
def test_a_message_with_an_unknown_key_is_refused_alone() -> None:
    cluster = Cluster(1)
    cluster.plan()
    (ask,) = cluster.asks()
    stranger = AgentMessage(UNKNOWN, boot_id="b", agent_version="0", clock_ms=0, known={})

    refused, answer = find_orders([stranger, ask])
    assert isinstance(refused, UnknownAgent)
    assert refused.status == 401
    assert isinstance(answer, AgentAnswer)
    assert len(answer.orders.assignments) == 1
    (end,) = cluster.ends()
    refused, answer = take_reports([stranger, end])
    assert isinstance(refused, UnknownAgent)
    assert isinstance(answer, AgentAnswer)
    assert Job.objects.get().state == "completed"


@pytest.mark.django_db
def test_no_node_reports_the_tasks_of_another() -> None:
    cluster = Cluster(2)
    cluster.plan()
    find_orders(cluster.asks())
    first, second = Task.objects.order_by("node_id")
    report = Report(task=first.pk, epoch=1, state="failed", pid=7, exit_code=1)

    answers = take_reports(
        [cluster.message(second.node_id, reports=[report]), cluster.message(first.node_id, reports=[])]
    )

    stops = [[stop["task"] for stop in one.orders.stops] for one in answers if isinstance(one, AgentAnswer)]
    assert stops == [[first.pk], []]
    assert set(Job.objects.values_list("state", flat=True)) == {"scheduled"}
    assert set(Task.objects.values_list("state", flat=True)) == {"starting"}
    assert Node.objects.filter(used_cpu_millis=1000).count() == 2


@pytest.mark.django_db
def test_ages_count_from_when_the_message_came_however_long_it_waited() -> None:
    cluster = Cluster(1)
    cluster.plan()
    find_orders(cluster.asks())
    Attempt.objects.update(scheduled_at=timezone.now() - timedelta(minutes=5))
    (end,) = cluster.ends()
    came_at = timezone.now() - timedelta(minutes=1)

    take_reports([replace(end, came_at=came_at)])

    task = Task.objects.get()
    assert task.started_at == came_at - timedelta(milliseconds=9)
    assert task.ended_at == came_at - timedelta(milliseconds=3)
