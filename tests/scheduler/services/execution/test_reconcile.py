"""What nobody tells us: silence, overdue jobs, and what a crash left half done."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.postgres.functions import TransactionNow
from django.db.models import F
from django.utils import timezone

from scheduler.agent.protocol import Report
from scheduler.models import Attempt, Job, Lease, Node, NodeHeartbeat, Task
from scheduler.services.cluster import heartbeats
from scheduler.services.execution import reconcile
from scheduler.services.execution.dispatch import orders_for
from scheduler.services.execution.reconcile import reconcile_all
from scheduler.services.execution.reports import apply_reports
from scheduler.services.jobs.verbs import cancel_job
from tests.support.agents import World
from tests.support.factories import NodeFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(db: None, settings: Any) -> World:
    settings.MUSTER_NODE_SILENT_SECONDS, settings.MUSTER_NODE_LOST_SECONDS = 30, 900
    world = World.make()
    NodeFactory(cluster=world.cluster, name="n1", lease_expires_at=timezone.now() + timedelta(seconds=30))
    heartbeats.keep_door_open()
    return world


def silent_for(seconds: float) -> None:
    """As if nobody had heard the nodes for so long."""
    NodeHeartbeat.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=seconds - 30))


def a_running_job(world: World, **fields: Any) -> tuple[Job, Task]:
    job = world.submit("true", **fields)
    world.plan()
    node = Node.objects.get()
    orders = orders_for(node, {})
    task = Task.objects.get(attempt__job=job)
    assert task.pk in [assignment["task"] for assignment in orders.assignments]
    apply_reports(
        node=node, reports=[Report(task=task.pk, epoch=1, state="running", pid=7, started_ago_ms=5)]
    )
    job.refresh_from_db()
    task.refresh_from_db()
    assert (job.state, task.state) == ("running", "running")
    return job, task


def test_a_silent_node_is_unknown_then_down(world: World) -> None:
    job, _ = a_running_job(world)

    silent_for(31)
    assert reconcile_all().unknown_nodes == 1
    job.refresh_from_db()
    assert (Node.objects.get().state, job.state) == ("unknown", "running")
    silent_for(899)
    assert reconcile_all() == reconcile.Reconciled()
    silent_for(901)
    found = reconcile_all()

    assert (found.down_nodes, found.lost_attempts) == (1, 1)
    job.refresh_from_db()
    assert (Node.objects.get().state, job.state, job.attempts.get().state) == ("down", "queued", "lost")
    world.assert_nothing_is_held()
    assert reconcile_all() == reconcile.Reconciled()


def test_nobody_is_lost_while_no_door_is_open(world: World) -> None:
    """We were away, not they."""
    job, _ = a_running_job(world)
    silent_for(5000)
    Lease.objects.update(expires_at=timezone.now() - timedelta(seconds=5000))

    assert reconcile_all() == reconcile.Reconciled()
    heartbeats.keep_door_open()
    assert reconcile_all() == reconcile.Reconciled()

    job.refresh_from_db()
    node = Node.objects.get()
    assert (node.state, job.state) == ("up", "running")
    assert node.heartbeat.lease_expires_at > timezone.now() + timedelta(seconds=20)


def test_an_open_door_stays_open_without_moving_leases(world: World) -> None:
    silent_for(100)
    before = NodeHeartbeat.objects.get().lease_expires_at

    heartbeats.keep_door_open()

    assert NodeHeartbeat.objects.get().lease_expires_at == before


def test_a_node_that_comes_back_is_up_again(world: World) -> None:
    silent_for(901)
    reconcile_all()
    node = Node.objects.select_related("cluster").get()
    generation = node.generation

    beat = heartbeats.Heartbeat(
        heartbeats.KnownAgent(node, None), boot_id="b2", agent_version="1", clock_ms=0
    )
    heartbeats.record_heartbeats([beat])

    node = Node.objects.get()
    assert (node.state, node.boot_id) == ("up", "b2")
    assert node.generation > generation
    assert node.clock_skew_ms < -(10**6)  # a clock that stands at 1970 is shown, and decides nothing


def test_a_crash_between_report_and_settling_is_made_good(world: World) -> None:
    job, task = a_running_job(world)
    Task.objects.filter(pk=task.pk).update(state="succeeded", exit_code=0, ended_at=timezone.now())

    assert reconcile_all().settled_attempts == 1

    job.refresh_from_db()
    assert job.state == "completed"
    world.assert_nothing_is_held()


def test_the_same_report_again_settles_what_is_left(world: World) -> None:
    job, task = a_running_job(world)
    Task.objects.filter(pk=task.pk).update(state="succeeded", exit_code=0, ended_at=timezone.now())

    stale = apply_reports(
        node=task.node, reports=[Report(task=task.pk, epoch=1, state="succeeded", exit_code=0)]
    )

    job.refresh_from_db()
    assert (stale, job.state) == ([], "completed")


def test_a_job_cancelled_before_it_was_taken_ends_without_an_agent(world: World) -> None:
    job = world.submit("true")
    world.plan()
    job.refresh_from_db()
    cancel_job(job=job, by=world.user)

    reconcile_all()

    job.refresh_from_db()
    assert job.state == "cancelled"
    assert Task.objects.get().end_text == "Never started."
    assert orders_for(Node.objects.get(), {}).assignments == []
    world.assert_nothing_is_held()


def test_an_overdue_job_is_asked_to_stop(world: World, settings: Any) -> None:
    settings.MUSTER_GRACE_SECONDS = 10
    job, task = a_running_job(world, time_limit=60)
    # The database reckons from the beginning of the transaction, which is this test's.
    Attempt.objects.update(started_at=TransactionNow() - timedelta(seconds=95))
    assert reconcile_all().overdue_attempts == 0

    Attempt.objects.update(started_at=TransactionNow() - timedelta(seconds=101))
    assert reconcile_all().overdue_attempts == 1

    (stop,) = orders_for(task.node, {task.pk: 1}).stops
    assert (stop["task"], stop["reason"], stop["stale"]) == (task.pk, "time_limit", False)
    apply_reports(
        node=task.node,
        reports=[Report(task=task.pk, epoch=1, state="stopped", exit_signal=15, stop_reason="time_limit")],
    )
    job.refresh_from_db()
    assert (job.state, job.end_text) == ("failed", "Stopped at the time limit of 1 min.")


def test_t17_a_late_failure_of_an_old_epoch_changes_nothing(world: World) -> None:
    job, task = a_running_job(world)
    silent_for(901)
    reconcile_all()
    Node.objects.update(state="up")
    Job.objects.update(eligible_at=timezone.now())
    world.plan()
    job.refresh_from_db()
    assert (job.state, job.epoch) == ("scheduled", 2)

    late = Report(task=task.pk, epoch=1, state="failed", exit_code=1)
    wrong_epoch = Report(task=task.pk, epoch=2, state="failed", exit_code=1)
    stale = apply_reports(node=task.node, reports=[late, wrong_epoch])

    assert stale == [(task.pk, 1), (task.pk, 2)]
    job.refresh_from_db()
    task.refresh_from_db()
    assert (job.state, task.state, task.exit_code) == ("scheduled", "lost", None)


def test_t14_times_come_from_ages_and_stay_in_order(world: World) -> None:
    job = world.submit("true")
    world.plan()
    node = Node.objects.get()
    orders_for(node, {})
    task = Task.objects.get()
    report = Report(task=task.pk, epoch=1, state="succeeded", pid=7, started_ago_ms=10**15, ended_ago_ms=10**17,
                    exit_code=0)  # fmt: skip

    apply_reports(node=node, reports=[report])

    task.refresh_from_db()
    job.refresh_from_db()
    attempt = job.attempts.get()
    assert attempt.scheduled_at == task.started_at == task.ended_at
    assert job.scheduled_at <= job.started_at <= job.completed_at


@pytest.mark.parametrize("before", ["running", "starting"])
def test_reports_out_of_order_move_only_forwards(world: World, before: str) -> None:
    job, task = a_running_job(world)
    Task.objects.filter(pk=task.pk).update(state=before)
    ended = Report(task=task.pk, epoch=1, state="succeeded", pid=7, exit_code=0, stdout_bytes=5)

    apply_reports(node=task.node, reports=[ended, Report(task=task.pk, epoch=1, state="running", pid=8)])
    late = apply_reports(node=task.node, reports=[Report(task=task.pk, epoch=1, state="running", pid=8)])

    job.refresh_from_db()
    task.refresh_from_db()
    assert late == [(task.pk, 1)]
    assert (job.state, task.state, task.pid, task.stdout_bytes) == ("completed", "succeeded", 7, 5)


def test_many_reports_cost_what_one_costs(world: World, django_assert_max_num_queries: Any) -> None:
    Node.objects.update(cpu_millis=F("cpu_millis") * 10, cpu_millis_capacity=F("cpu_millis_capacity") * 10)
    for _ in range(40):
        world.submit("true")
    world.plan()
    node = Node.objects.get()
    assignments = orders_for(node, {}).assignments
    assert len(assignments) == 40
    reports = [
        Report(task=a["task"], epoch=1, state="succeeded", pid=7, started_ago_ms=number, exit_code=0)
        for number, a in enumerate(assignments)
    ]

    with django_assert_max_num_queries(10):
        apply_reports(node=node, reports=reports)

    assert Job.objects.filter(state="completed").count() == 40
    world.assert_nothing_is_held()
