"""Tasks that an agent has and the database does not: who decides of them, and what is left alone until then."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import Settings

from accounts.models import AuditEvent
from scheduler.core.lifecycle import JobState
from scheduler.models import DRAINED_BY_UNKNOWN_TASKS, Job, KeptResult, Node, Task, UnknownTask
from scheduler.services.cluster.nodes import uncordon_node
from scheduler.services.cluster.unknown_tasks import MOST_SKIPPED, DescribedTask, skip_numbers
from scheduler.services.execution.agent_messages import AgentAnswer, find_orders, take_reports
from scheduler.services.execution.dispatch import Orders
from scheduler.services.jobs.verbs import release_job
from scheduler.services.results.kept import Reported, take_kept
from scheduler.state.db.sql import run
from scheduler.state.db.task_numbers import assigned_at
from tests.scheduler.services.execution.test_agent_messages import Cluster
from tests.support.factories import JobFactory, OperatorFactory, UserFactory
from tests.support.roles import all_rights

pytestmark = pytest.mark.django_db

LOST = 117_000_000_000_000


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(1)


def asked(cluster: Cluster, known: dict[int, int], *described: DescribedTask) -> Orders:
    """What the only node is to do, if it has these tasks."""
    (node,) = cluster.keys
    (answer,) = find_orders([cluster.message(node, known=known, described=described)])
    assert isinstance(answer, AgentAnswer)
    return answer.orders


def test_an_unknown_task_runs_on_and_its_node_takes_nothing_until_it_has_ended(cluster: Cluster) -> None:
    orders = asked(cluster, {LOST: 1})

    assert (orders.stops, orders.describe) == ([], [[LOST, 1]])
    node = Node.objects.get()
    assert (node.schedulable, node.drained_by) == (False, DRAINED_BY_UNKNOWN_TASKS)
    cluster.plan()
    assert not Task.objects.exists(), "its resources would count as free"
    asked(cluster, {LOST: 1}, DescribedTask(LOST, 1, 7, uuid.uuid4(), "ada"))
    assert UnknownTask.objects.get().username == "ada"
    assert asked(cluster, {LOST: 1}).describe == []
    assert AuditEvent.objects.filter(action="node.unknown_tasks").count() == 1

    asked(cluster, {})

    assert not UnknownTask.objects.exists()
    assert Node.objects.get().schedulable


def test_a_report_on_an_unknown_task_does_not_end_it(cluster: Cluster) -> None:
    (node,) = cluster.keys
    reports = [{"task": LOST, "epoch": 1, "state": "running", "pid": 9}]

    (answer,) = take_reports([cluster.message(node, reports=reports)])

    assert isinstance(answer, AgentAnswer)
    assert answer.orders.stops == []


def test_what_the_database_knows_to_be_over_is_ended_as_before(cluster: Cluster) -> None:
    cluster.plan()
    task = Task.objects.get()
    Task.objects.update(state="lost")

    (stop,) = asked(cluster, {task.pk: 1}).stops

    assert (stop["task"], stop["stale"]) == (task.pk, True)
    assert Node.objects.get().schedulable


def test_the_operator_who_uncordons_the_node_ends_them_and_it_waits_for_that(cluster: Cluster) -> None:
    asked(cluster, {LOST: 1})
    operator = OperatorFactory()

    node = uncordon_node(node=Node.objects.get(), by=operator)

    assert (node.draining, node.drained_by) == (True, DRAINED_BY_UNKNOWN_TASKS)
    assert node.drain_reason == "Ends 1 of its tasks, which the database does not know"
    assert [stop["task"] for stop in asked(cluster, {LOST: 1}).stops] == [LOST]
    assert AuditEvent.objects.get(action="node.uncordon").after["unknown_tasks"] == [[LOST, 1, None]]
    asked(cluster, {})
    assert Node.objects.get().schedulable


def test_an_operator_who_has_cordoned_the_node_is_not_overruled(cluster: Cluster) -> None:
    Node.objects.update(cordoned=True, drained_by="root")

    asked(cluster, {LOST: 1})
    asked(cluster, {})

    node = Node.objects.get()
    assert (node.cordoned, node.draining, node.drained_by) == (True, False, "root")


@pytest.mark.parametrize("same", [True, False])
def test_only_the_very_job_is_held_and_not_another_of_its_number(cluster: Cluster, same: bool) -> None:
    job = JobFactory(state=JobState.QUEUED)
    identity = job.request.uuid if same else uuid.uuid4()
    asked(cluster, {LOST: 3})

    asked(cluster, {LOST: 3}, DescribedTask(LOST, 3, job.number, identity, "ada"))

    job.refresh_from_db()
    assert job.state == ("held" if same else "queued")
    if same:
        assert "number 3, runs on n0" in job.reason_text
        assert job.held_by == "admin"
        release_job(job=job, by=OperatorFactory())
        asked(cluster, {LOST: 3})
        assert Job.objects.get(pk=job.pk).state == "held", "it is held again while the task is there"


def test_numbers_that_were_given_are_skipped_and_an_agent_cannot_use_them_up(cluster: Cluster) -> None:
    first = cluster.world.submit().number

    skip_numbers(first + 20)
    second = cluster.world.submit().number
    skip_numbers(2**62)
    skip_numbers(1)
    third = cluster.world.submit().number

    assert second == first + 21
    assert third == second + MOST_SKIPPED + 1


def test_numbers_of_tasks_are_of_their_time_and_rise(cluster: Cluster) -> None:
    before = timezone.now()
    numbers = []
    for _ in range(3):
        cluster.plan()
        numbers.append(Task.objects.latest("id").pk)
        Node.objects.update(used_cpu_millis=0, used_memory_mib=0)

    assert numbers == sorted(set(numbers))
    assert before - timedelta(milliseconds=2) <= assigned_at(numbers[0]) <= timezone.now()
    assert numbers[-1] < 2**53
    with all_rights():
        run("SELECT setval('scheduler_task_id_seq', 1)")
    cluster.plan()
    assert Task.objects.latest("id").pk > numbers[-1], "a counter that went back changes nothing"


def test_kept_folders_of_unknown_tasks_stay_as_long_as_results_and_are_nobodys(
    cluster: Cluster, settings: Settings
) -> None:
    settings.MUSTER_KEEP_RESULTS_DAYS = 2
    cluster.plan()
    ours, node = Task.objects.get(), Node.objects.get()
    number = ours.attempt.job_id
    young = ours.pk - 4096 * 1000 * 3600
    old = ours.pk - 4096 * 1000 * 86400 * 3

    def removed(*tasks: int) -> list[tuple[int, ...]]:
        reported = [Reported(number, 1, 0, 1, 10, True, task) for task in tasks]
        return take_kept(node=node, first=0, last=2**62, reported=reported)

    assert removed(young) == []
    assert not KeptResult.objects.exists(), "the job of that number is another one"
    assert removed(young, old) == [(number, 1, 0, old)]
    assert removed(young, ours.pk) == []
    assert KeptResult.objects.get().job_id == number
    assert removed(young) == []
    assert KeptResult.objects.get().left_at is not None


def test_t31_an_agent_of_the_release_before_is_served_as_it_asks(cluster: Cluster) -> None:
    """It names no tasks of its folders, and describes none: what the server answers, it understands."""
    node = Node.objects.get()

    assert take_kept(node=node, first=0, last=9, reported=[Reported(5, 1, 0, 1, 10, True)]) == [(5, 1, 0)]
    asked(cluster, {41: 1})
    assert asked(cluster, {41: 1}).describe == [[41, 1]], "asked again, and it runs on all the same"
    uncordon_node(node=Node.objects.get(), by=OperatorFactory())
    assert [stop["task"] for stop in asked(cluster, {41: 1}).stops] == [41]
    asked(cluster, {})
    assert Node.objects.get().schedulable


def test_the_page_of_the_node_shows_them_to_operators_alone(cluster: Cluster) -> None:
    asked(cluster, {LOST: 3})
    asked(cluster, {LOST: 3}, DescribedTask(LOST, 3, 4711, uuid.uuid4(), "<b>ada</b>"))
    pages = {}
    for name, user in (("operator", OperatorFactory()), ("stranger", UserFactory())):
        client = Client()
        client.force_login(user, backend="accounts.backends.PasswordBackend")
        pages[name] = client.get(reverse("node", args=[Node.objects.get().pk])).content.decode()

    assert "task that the database does not know" in pages["operator"]
    assert "4711" in pages["operator"]
    assert "&lt;b&gt;ada" in pages["operator"]
    assert "<b>ada" not in pages["operator"]
    assert "Uncordon the node to end them" in pages["operator"]
    assert "4711" not in pages["stranger"]
    assert "ada" not in pages["stranger"]
    assert "no job runs on this node" not in pages["stranger"]
