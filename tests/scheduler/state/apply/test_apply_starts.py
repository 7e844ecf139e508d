"""A plan applied: whole, refused in part, and raced by a second writer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from infra import notifications
from quotas.models import Budget, ProviderState, Quota
from quotas.services.budgets import open_periods
from scheduler import outbox
from scheduler.core.cycle import plan_cycle
from scheduler.core.lifecycle import AttemptState, JobState, NodeState, TaskState
from scheduler.core.plan import Plan, Start
from scheduler.models import Allocation, Attempt, Device, Job, JobEvent, Lease, Node, Task
from scheduler.services.cluster.settings import save_settings
from scheduler.state.apply import apply_starts
from scheduler.state.apply.refusals import REFUSED_BY_CONSTRAINT
from scheduler.state.lease import leases
from scheduler.state.lease.leases import LeaseLost
from scheduler.state.load import snapshots
from scheduler.state.load.snapshots import Loaded
from scheduler.state.settle import settle
from scheduler.state.settle.settle import end_attempt
from tests.scheduler.state.apply.planned import a_lease, applied, refused, seen_and_planned
from tests.scheduler.state.small import SmallWorld, a_queue, broken_invariants
from tests.support.at_once import at_once
from tests.support.factories import OperatorFactory

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world() -> SmallWorld:
    return SmallWorld()


@pytest.fixture(autouse=True)
def nothing_contradicts_itself() -> Iterator[None]:
    """Whatever a test does, these must hold after it."""
    yield
    assert broken_invariants() == []


# ------------------------------------------------------------------ whole


def test_a_start_is_written_with_all_that_it_holds(world: SmallWorld) -> None:
    node = world.node("n1", gpus=4)
    gpus = world.quota("gpu_millis", 4000)
    running = world.quota("running_jobs", 5)
    cpus = world.quota("cpu_millis", None)  # counted, though nothing bounds it
    job = world.job(tasks=2, cpu_millis=2000, memory_mib=512, storage_mib=10, gpus=1, generation=3, epoch=1)
    loaded, plan = seen_and_planned(world)

    outcome = applied(world, loaded, plan, a_lease(world))

    assert [start.job_id for start in outcome.started] == [job.number]
    assert outcome.refused == ()
    job.refresh_from_db()
    assert (job.state, job.generation, job.epoch) == (JobState.SCHEDULED, 4, 2)
    assert job.scheduled_at is not None
    attempt = Attempt.objects.get(job=job)
    assert (attempt.state, attempt.epoch, attempt.backend) == (AttemptState.ASSIGNED, 2, "agents")
    tasks = Task.objects.filter(attempt=attempt).values_list("rank", "node_id", "state")
    assert list(tasks) == [(0, node.pk, TaskState.ASSIGNED), (1, node.pk, TaskState.ASSIGNED)]
    for rank, allocation in enumerate(Allocation.objects.filter(attempt=attempt)):
        assert (allocation.rank, allocation.node_id) == (rank, node.pk)
        assert (allocation.cpu_millis, allocation.memory_mib, allocation.storage_mib) == (2000, 512, 10)
        assert (allocation.gpu_millis, len(allocation.device_ids)) == (1000, 1)
        assert allocation.numa_domain == 0
        assert allocation.released_at is None
    node.refresh_from_db()
    assert (node.used_cpu_millis, node.used_memory_mib, node.used_storage_mib, node.used_gpu_millis) == (
        4000, 1024, 20, 2000,
    )  # fmt: skip
    assert sorted(Device.objects.values_list("used_millis", flat=True)) == [0, 0, 1000, 1000]
    used = {line.pk: line.used for line in Quota.objects.all()}
    assert used == {gpus.pk: 2000, running.pk: 1, cpus.pk: 4000}
    event = JobEvent.objects.get(job=job)
    assert (event.kind, event.epoch, event.because) == ("job.scheduled", 2, "placed on n1")
    assert event.details == {"nodes": ["n1"], "cycle": None}


def test_a_share_of_a_gpu_counts_for_what_it_is(world: SmallWorld) -> None:
    world.node("n1", gpus=1)
    line = world.quota("gpu_millis", 1000)
    world.job(gpus=1, gpu_millis=250)
    world.job(gpus=1, gpu_millis=500)
    loaded, plan = seen_and_planned(world)

    outcome = applied(world, loaded, plan, a_lease(world))

    assert len(outcome.started) == 2
    assert Device.objects.get().used_millis == 750
    line.refresh_from_db()
    assert line.used == 750


def test_a_gang_over_several_nodes_is_written_whole(world: SmallWorld) -> None:
    for name in ("n1", "n2", "n3"):
        world.node(name, gpus=2)
    job = world.job(tasks=3, gpus=2)
    loaded, plan = seen_and_planned(world)

    applied(world, loaded, plan, a_lease(world))

    assert Task.objects.filter(attempt__job=job).values("node").distinct().count() == 3
    assert set(Device.objects.values_list("used_millis", flat=True)) == {1000}


def test_everybody_concerned_is_told(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    node, job = world.node("n1"), world.job()
    loaded, plan = seen_and_planned(world)
    told: list[str] = []
    monkeypatch.setattr(notifications, "publish", told.extend)

    applied(world, loaded, plan, a_lease(world))

    assert set(told) == {
        outbox.node_topic(node.pk), outbox.job_topic(job.number), outbox.user_topic(world.person.pk),
        outbox.project_topic(world.project.pk), "cluster", "queues",
    }  # fmt: skip


@pytest.mark.parametrize("budget", [False, True])
def test_a_hundred_starts_take_one_statement_a_table(world: SmallWorld, budget: bool) -> None:
    if budget:
        open_periods(
            Budget.objects.create(
                name="CPU time", project=world.project, resource="cpu_milli_seconds", amount=10**15, period="month",
                starts_at=datetime(2026, 1, 1, tzinfo=UTC),
            )
        )  # fmt: skip
    for number in range(8):
        world.node(f"n{number}", cpu_millis=32_000, gpus=4)
    world.quota("cpu_millis", 1_000_000)
    for number in range(100):
        world.job(gpus=number % 2 if number < 60 else 0)
    loaded, plan = seen_and_planned(world)
    lease = a_lease(world)

    with CaptureQueriesContext(connection) as captured:
        outcome = applied(world, loaded, plan, lease)

    assert len(outcome.started) == 100
    text = " ".join(query["sql"] for query in captured)
    tables = re.findall(r"(?:INSERT INTO|UPDATE) ((?:scheduler|quotas)_\w+)", text)
    assert sorted(tables) == [
        *(["quotas_budgetperiod", "quotas_ledgerentry"] if budget else []),
        "quotas_quota", "scheduler_attempt", "scheduler_device", "scheduler_job",
        "scheduler_jobevent", "scheduler_node", "scheduler_task",
    ]  # fmt: skip


# ------------------------------------------------------------------ refused in part


def cancel(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(
        state=JobState.CANCELLED, generation=job.generation + 1, completed_at=timezone.now()
    )


Change = Callable[[SmallWorld], None]

#: What may happen between the snapshot and the moment of writing, and why the start on n2 is refused then.
CHANGES: dict[str, tuple[Change, str]] = {
    "the node drains": (lambda w: set_node(w, draining=True), "WaitingForResources"),
    "the node is cordoned": (lambda w: set_node(w, cordoned=True), "WaitingForResources"),
    "the node stops answering": (lambda w: set_node(w, state=NodeState.UNKNOWN), "WaitingForResources"),
    "the node loses its cores": (lambda w: set_node(w, cpu_millis_capacity=500), "WaitingForResources"),
    "the GPU falls sick": (lambda w: set_devices(w, healthy=False), "WaitingForResources"),
    "the GPU goes away": (lambda w: set_devices(w, gone=True), "WaitingForResources"),
    "the queue is paused": (lambda w: set_queue(w, paused=True), "QueueStopped"),
    "the job changes": (lambda w: set_job(w, generation=7), "NotEvaluatedYet"),
    "the job is held": (lambda w: set_job(w, state=JobState.HELD, generation=2), "NotEvaluatedYet"),
    "the project closes": (lambda w: close_project(w), "AccountExpired"),
    "the keeper of the quota goes away": (lambda w: lose_provider(w), "QuotaProviderAway"),
    "the quota is cut": (lambda w: cut_quota(w), "ExceedsMaxQuota"),
}


def set_node(world: SmallWorld, **columns: object) -> None:
    Node.objects.filter(name="n2").update(**columns)


def set_devices(world: SmallWorld, **columns: object) -> None:
    Device.objects.filter(node__name="n2").update(**columns)


def set_queue(world: SmallWorld, **columns: object) -> None:
    type(world.queue).objects.filter(jobs__name="other").update(**columns)


def set_job(world: SmallWorld, **columns: object) -> None:
    Job.objects.filter(name="other").update(**columns)


def lose_provider(world: SmallWorld) -> None:
    ProviderState.objects.create(
        project=Job.objects.get(name="other").project, provider="slurm", status="unreachable",
        since=timezone.now() - timedelta(seconds=61), text="slurmrestd did not answer within 10 s.",
    )  # fmt: skip


def close_project(world: SmallWorld) -> None:
    project = Job.objects.get(name="other").project
    project.active = False
    project.save()


def cut_quota(world: SmallWorld) -> None:
    Quota.objects.filter(project__jobs__name="other").update(hard=500)


@pytest.mark.parametrize("what", CHANGES)
def test_a_start_that_no_longer_holds_is_refused_and_the_others_are_written(what: str) -> None:
    world, other = SmallWorld(), SmallWorld()
    other.quota("cpu_millis", 100_000)
    other.queue.cluster = world.cluster
    other.queue.save()
    world.node("n1", labels={"name": "n1"}, gpus=1)
    world.node("n2", labels={"name": "n2"}, gpus=1)
    first = world.job("first", node_selector={"name": "n1"}, gpus=1)
    second = other.job("other", node_selector={"name": "n2"}, gpus=1)
    loaded, plan = seen_and_planned(world)
    assert {start.job_id for start in plan.starts} == {first.number, second.number}
    change, code = CHANGES[what]
    change(world)

    outcome = applied(world, loaded, plan, a_lease(world))

    assert [start.job_id for start in outcome.started] == [first.number]
    assert refused(outcome) == {second.number: code}
    assert outcome.refused[0].message.endswith(".")
    assert not Attempt.objects.filter(job=second).exists()


def test_a_job_cancelled_after_the_snapshot_stays_cancelled(world: SmallWorld) -> None:
    world.node("n1")
    job, other = world.job(), world.job()
    loaded, plan = seen_and_planned(world)
    cancel(job)

    outcome = applied(world, loaded, plan, a_lease(world))

    assert [start.job_id for start in outcome.started] == [other.number]
    assert refused(outcome) == {job.number: "NotEvaluatedYet"}
    job.refresh_from_db()
    assert job.state == JobState.CANCELLED


def test_a_gang_with_one_bad_node_is_refused_whole(world: SmallWorld) -> None:
    world.node("n1", gpus=1)
    world.node("n2", gpus=1)
    job = world.job(tasks=2, gpus=1)
    loaded, plan = seen_and_planned(world)
    set_node(world, draining=True)

    outcome = applied(world, loaded, plan, a_lease(world))

    assert outcome.started == ()
    assert refused(outcome) == {job.number: "WaitingForResources"}
    assert outcome.refused[0].message == "The start was planned on n2, which is draining now."
    assert Allocation.objects.count() == Task.objects.count() == 0


def test_a_reservation_made_after_the_snapshot_is_kept(world: SmallWorld) -> None:
    node, job = world.node("n1"), world.job(time_limit_seconds=600)
    loaded, plan = seen_and_planned(world)
    world.cluster.reservations.create(
        name="maintenance", starts_at=timezone.now(), ends_at=timezone.now() + timezone.timedelta(hours=1)
    ).nodes.add(node)

    outcome = applied(world, loaded, plan, a_lease(world))

    assert list(refused(outcome)) == [job.number]


def test_a_plan_larger_than_what_is_left_is_applied_as_far_as_it_goes(world: SmallWorld) -> None:
    """Somebody else took half of the node: the later starts of the plan are those that are refused."""
    node = world.node("n1", cpu_millis=4000)
    jobs = [world.job(cpu_millis=1000) for _ in range(4)]
    loaded, plan = seen_and_planned(world)
    assert len(plan.starts) == 4
    Node.objects.filter(pk=node.pk).update(cpu_millis_capacity=2000)

    outcome = applied(world, loaded, plan, a_lease(world))

    assert [start.job_id for start in outcome.started] == [job.number for job in jobs[:2]]
    assert refused(outcome) == {job.number: "WaitingForResources" for job in jobs[2:]}


# ------------------------------------------------------------------ leases


def test_a_planner_that_was_replaced_writes_nothing(world: SmallWorld) -> None:
    world.node("n1")
    job = world.job()
    loaded, plan = seen_and_planned(world)
    old = a_lease(world, "old")
    Lease.objects.update(expires_at=timezone.now())
    a_lease(world, "new")

    with pytest.raises(LeaseLost):
        applied(world, loaded, plan, old)

    job.refresh_from_db()
    assert job.state == JobState.QUEUED
    assert Attempt.objects.count() == 0


# ------------------------------------------------------------------ constraints


def test_what_every_check_missed_a_constraint_refuses_and_the_rest_is_written(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks are switched off: the same two GPUs are handed out to two jobs."""
    world.node("n1", gpus=2)
    jobs = [world.job(gpus=1) for _ in range(6)]
    loaded, plan = seen_and_planned(world)
    taken, free = plan.starts
    stolen = [
        Start(job.number, 1, start.queue_id, start.project_id, start.per_task, start.placements)
        for job, start in zip(jobs[2:], (taken, taken, free, free), strict=True)
    ]
    plan = Plan(starts=(*plan.starts, *stolen))
    monkeypatch.setattr(apply_starts, "find_conflicts", lambda *_: ())

    outcome = applied(world, loaded, plan, a_lease(world))

    assert [start.job_id for start in outcome.started] == [job.number for job in jobs[:2]]
    assert refused(outcome) == {job.number: REFUSED_BY_CONSTRAINT for job in jobs[2:]}
    assert "overcommitted" in outcome.refused[0].message


def test_a_quota_is_not_passed_even_when_the_checks_are_switched_off(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.node("n1")
    line = world.quota("running_jobs", 2)
    for _ in range(3):
        world.job()
    Quota.objects.update(enforce=False)
    loaded, plan = seen_and_planned(world)
    assert len(plan.starts) == 3
    Quota.objects.update(enforce=True)
    monkeypatch.setattr(apply_starts, "find_conflicts", lambda *_: ())

    outcome = applied(world, loaded, plan, a_lease(world))

    assert len(outcome.started) == 2
    assert list(refused(outcome).values()) == [REFUSED_BY_CONSTRAINT]
    line.refresh_from_db()
    assert line.used == 2


# ------------------------------------------------------------------ races


def test_t19_two_planners_by_force_start_every_job_once(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Split brain: the lease stops neither, both apply the same plan at the same moment."""
    for number in range(3):
        world.node(f"n{number}", gpus=4)
    line = world.quota("gpu_millis", 8000)
    for _ in range(20):
        world.job(gpus=1)
    loaded, plan = seen_and_planned(world)
    lease = a_lease(world)
    monkeypatch.setattr(leases, "fence", lambda _: None)

    outcomes = at_once(*[lambda: applied(world, loaded, plan, lease)] * 4)

    started = [start.job_id for outcome in outcomes for start in outcome.started]  # type: ignore[attr-defined]
    assert sorted(started) == sorted(start.job_id for start in plan.starts)
    assert len(started) == 8
    assert Attempt.objects.live().count() == 8
    line.refresh_from_db()
    assert line.used == 8000


def test_t22_at_the_edge_of_a_quota_exactly_the_limit_is_admitted(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several planners, each with a snapshot in which the whole quota is free, and each with other jobs."""
    for number in range(8):
        world.node(f"n{number}")
    world.quota("running_jobs", 5)
    jobs = [world.job() for _ in range(16)]
    loaded, _ = seen_and_planned(world)
    lease = a_lease(world)
    monkeypatch.setattr(leases, "fence", lambda _: None)
    shares = [[job.number for job in jobs[first::4]] for first in range(4)]
    halves = []
    for share in shares:
        mine = snapshots.load_snapshot(cluster_id=world.cluster.pk)
        mask = [number in share for number in mine.snapshot.pending.id.tolist()]
        halves.append(plan_cycle(only(mine, mask).snapshot, mine.policy))

    outcomes = at_once(*[lambda p=plan: applied(world, loaded, p, lease) for plan in halves])

    assert sum(len(outcome.started) for outcome in outcomes) == 5  # type: ignore[attr-defined]
    assert Quota.objects.get().used == 5


def only(loaded: Loaded, mask: list[bool]) -> Loaded:
    snapshot = loaded.snapshot
    return replace(loaded, snapshot=replace(snapshot, pending=snapshot.pending.take(np.array(mask))))


# ------------------------------------------------------------------ jobs near to others


def near_a_database(world: SmallWorld) -> Job:
    return world.job(
        "app", affinity={"jobs": [{"apart": False, "topology_key": "node", "labels": {"app": "db"}}]}
    )


def test_a_job_follows_another_to_its_node_in_the_same_plan_and_later(world: SmallWorld) -> None:
    world.node("n1", cpu_millis=2000)
    world.node("n2", cpu_millis=5000)
    elsewhere = a_queue(world.cluster, "other")
    world.job("db", labels={"app": "db"}, cpu_millis=3000, queue=elsewhere)
    first = near_a_database(world)

    assert world.plan().started == 2

    second, third = near_a_database(world), near_a_database(world)
    assert world.plan().started == 1
    third.refresh_from_db()
    assert (third.state, third.reason_code) == (JobState.QUEUED, "JobAffinity")
    assert {task.node.name for task in Task.objects.filter(attempt__job__in=[first, second])} == {"n2"}


def test_a_job_does_not_start_beside_one_that_has_ended_meanwhile(world: SmallWorld) -> None:
    world.node("n1")
    database = world.job("db", labels={"app": "db"})
    world.plan()
    app = near_a_database(world)
    loaded, plan = seen_and_planned(world)
    assert [start.job_id for start in plan.starts] == [app.number]
    attempt = Attempt.objects.get(job=database)
    settle.end_attempt(attempt_id=attempt.pk, epoch=attempt.epoch, lost_text="Its node was switched off.")

    outcome = applied(world, loaded, plan, a_lease(world))

    assert refused(outcome) == {app.number: "JobAffinity"}


def test_a_node_that_is_given_away_less_starts_nothing_until_enough_has_ended(world: SmallWorld) -> None:
    node = world.node("n1", cpu_millis=8000, cpu_millis_capacity=16_000)
    type(world.cluster).objects.update(cpu_overcommit_percent=200)
    for _ in range(2):
        world.job(cpu_millis=8000, max_restarts=0)
    assert world.plan().started == 2
    late = world.job(cpu_millis=1000)
    world.cluster.refresh_from_db()
    world.cluster.cpu_overcommit_percent = 100
    save_settings(
        thing=world.cluster,
        changed_fields=["cpu_overcommit_percent"],
        by=OperatorFactory(),
        reason="too slow",
    )

    def end_one() -> int:
        attempt = Attempt.objects.live().first()
        end_attempt(attempt_id=attempt.pk, epoch=attempt.epoch, lost_text="gone")
        return world.plan().started

    assert end_one() == 0
    node.refresh_from_db()
    assert (node.used_cpu_millis, node.cpu_millis_capacity) == (8000, 8000)
    assert end_one() == 1
    late.refresh_from_db()
    node.refresh_from_db()
    assert (late.state, node.cpu_millis_capacity, broken_invariants()) == ("scheduled", 8000, [])
