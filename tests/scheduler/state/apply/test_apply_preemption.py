"""Preemption in rows: a victim is asked to end, ends, waits again where it was, and the other starts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.db import transaction
from django.utils import timezone

from accounts.models import User
from scheduler import metrics
from scheduler.core.cycle import plan_cycle
from scheduler.core.lifecycle import JobState
from scheduler.core.plan import Plan, Preempt
from scheduler.models import Attempt, Job, JobEvent, Node, SchedulerProfile
from scheduler.selectors import preemption_counts
from scheduler.services.accounting import metric_counts
from scheduler.services.cluster.settings import save_settings
from scheduler.services.planning.explain import explain_job
from scheduler.services.planning.job_preview import preview_job
from scheduler.services.planning.shared_snapshot import forget_snapshots
from scheduler.state.apply import apply_plan, apply_preemption
from scheduler.state.apply.apply_context import ApplyContext
from scheduler.state.apply.apply_plan import Applied
from scheduler.state.apply.apply_preemption import CheckedPreemption
from scheduler.state.apply.refusals import VICTIM_CHANGED
from scheduler.state.lease import leases
from scheduler.state.lease.leases import HeldLease
from scheduler.state.load import snapshots
from tests.backends.conftest import FakeBench
from tests.scheduler.state.small import a_queue
from tests.support.agents import World
from tests.support.at_once import at_once
from tests.support.factories import (
    MembershipFactory,
    OperatorFactory,
    ProjectFactory,
    UserFactory,
)


@pytest.fixture
def bench(transactional_db: None) -> FakeBench:
    world = World.make()
    SchedulerProfile.objects.update(
        preemption_enabled=True, preemption={"protected_seconds": 0, "grace_seconds": 7}
    )
    return FakeBench(world)


def a_running(bench: FakeBench, **fields: object) -> Job:
    """A job of low priority that has been running for an hour."""
    job = bench.start(priority=10, **fields)
    job = bench.settle(job, "running")
    Attempt.objects.filter(job=job).update(started_at=timezone.now() - timedelta(hours=1))
    return job


def everything(bench: FakeBench) -> dict[str, int]:
    node = bench.world.cluster.nodes.order_by("id").first()
    return {"cpu_cores": node.cpu_millis_capacity // 1000}


def test_a_victim_is_told_ends_and_waits_again_where_it_was(bench: FakeBench) -> None:
    world = bench.world
    victims = [a_running(bench, **everything(bench)) for _ in world.cluster.nodes.all()]
    created = {job.number: job.created_at for job in victims}

    urgent = world.submit(priority=90, **everything(bench))
    world.plan()

    stopped = Job.objects.filter(state=JobState.PREEMPTING)
    assert stopped.count() == 1
    victim = stopped.get()
    attempt = victim.attempts.live().get()
    assert (attempt.stop_reason, attempt.stopped_for, attempt.grace_seconds) == (
        "preempted",
        urgent.number,
        7,
    )
    receipt = JobEvent.objects.get(job=victim, kind="job.preempting")
    assert receipt.because == (
        f"stopped for job {urgent.number} of project vision: its priority is 90, this job's 10; "
        "the job has 7 s to end and is requeued"
    )
    assert receipt.details["lost_seconds"] >= 3600
    urgent.refresh_from_db()
    assert urgent.reason_code == "WaitingForPreemption"
    assert str(victim.number) in urgent.reason_text
    assert explain_job(job=urgent, by=world.user).reason_code == "WaitingForPreemption"

    world.plan()  # nobody more is stopped while this one ends
    assert Job.objects.filter(state=JobState.PREEMPTING).count() == 1

    bench.step()  # the order goes out, the task ends, its end is reported
    bench.step()
    victim.refresh_from_db()
    assert victim.state == JobState.QUEUED
    assert victim.created_at == created[victim.number]
    assert victim.eligible_at < urgent.created_at  # it keeps its place: it was there before
    kinds = list(JobEvent.objects.filter(job=victim).order_by("id").values_list("kind", flat=True))
    assert kinds[-3:] == ["job.preempting", "job.preempted", "job.queued"]
    texts = list(JobEvent.objects.filter(job=victim).order_by("id").values_list("because", flat=True))
    assert texts[-2:] == ["Stopped for another job; requeued.", "requeued"], "it did not fail"

    world.plan()  # in the order of arrival the victim would be first
    urgent.refresh_from_db()
    victim.refresh_from_db()
    assert urgent.state == JobState.SCHEDULED
    assert victim.state == JobState.QUEUED

    urgent = bench.settle(urgent, "running")
    bench.finish(urgent)
    bench.settle(urgent, "completed")
    world.plan()
    victim.refresh_from_db()
    assert (victim.state, victim.epoch) == (JobState.SCHEDULED, 2)


def test_a_preview_says_who_would_make_way_as_far_as_one_may_see_them(bench: FakeBench) -> None:
    world = bench.world
    victims = {a_running(bench, **everything(bench)).number for _ in world.cluster.nodes.all()}
    speech = ProjectFactory(slug="speech")
    stranger = UserFactory(default_project=speech, priority_ceiling=100)
    MembershipFactory(project=speech, user=stranger)
    payload = {"command": "true", "priority": 90, **everything(bench)}

    own = preview_job(payload=payload | {"project": "vision"}, by=world.user)
    other = preview_job(payload=payload | {"project": "speech"}, by=stranger)

    assert own.headline == ("Would preempt 1 job and start as soon as it has ended, after 7 s at the latest.")
    (victim,) = own.victims
    assert (victim.number in victims, victim.project, victim.user, victim.priority) == (
        True,
        "vision",
        "alice",
        10,
    )
    assert victim.lost_seconds is not None
    assert victim.lost_seconds >= 3600
    (hidden,) = other.victims
    assert (hidden.number, hidden.name, hidden.project, hidden.user) == (None, None, None, None)
    assert (hidden.priority, hidden.lost_seconds, other.victims_count) == (None, None, 1)
    told = " ".join([other.headline, *(blocker.text for blocker in other.blockers)])
    assert not any(f"Job {number}" in told for number in victims)
    SchedulerProfile.objects.update(preemption={"protected_seconds": 0, "mode": "suspend"})
    forget_snapshots()  # one that was slow to read is shared for a while
    again = preview_job(payload=payload | {"project": "vision"}, by=world.user)
    assert again.headline == "Would suspend 1 job and start as soon as it is suspended."
    assert again.victims[0].lost_seconds == 0
    assert not Job.objects.filter(state=JobState.PREEMPTING).exists()  # nothing is written


def test_nobody_is_stopped_for_a_job_that_has_changed_meanwhile(
    bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = bench.world
    for _ in world.cluster.nodes.all():
        a_running(bench, **everything(bench))
    urgent = world.submit(priority=90, **everything(bench))
    real = apply_plan.apply_plan

    def cancelled_first(plan: Plan, context: ApplyContext) -> Applied:
        Job.objects.filter(pk=urgent.pk).update(
            state="cancelled", completed_at=timezone.now(), generation=urgent.generation + 1
        )
        return real(plan, context)

    monkeypatch.setattr(apply_plan, "apply_plan", cancelled_first)
    world.plan()

    assert not Job.objects.filter(state=JobState.PREEMPTING).exists()


@pytest.mark.parametrize("said", [{"preemptible": False}, {"restart_policy": "never"}])
def test_a_job_that_may_not_be_stopped_is_not(bench: FakeBench, said: dict[str, Any]) -> None:
    world = bench.world
    for _ in world.cluster.nodes.all():
        a_running(bench, **said, **everything(bench))

    world.submit(priority=90, **everything(bench))
    world.plan()

    assert not Job.objects.filter(state=JobState.PREEMPTING).exists()


@pytest.fixture
def operator(transactional_db: None) -> User:
    return OperatorFactory(username="ops")


def tainted(node: Node, operator: User) -> None:
    node.taints = [{"key": "memory-errors", "effect": "NoExecute"}]
    save_settings(thing=node, changed_fields=["taints"], by=operator, reason="ECC errors in slot 3")


def test_a_no_execute_taint_sends_a_job_away_and_says_who_put_it_and_why(
    bench: FakeBench, operator: User
) -> None:
    world = bench.world
    metric_counts.count()
    stays, leaves = (
        bench.settle(bench.start(tolerations=tolerations), "running")
        for tolerations in ([{"operator": "Exists", "seconds": 3600}], [])
    )
    node = leaves.attempts.get().tasks.get().node
    assert stays.attempts.get().tasks.get().node == node

    tainted(node, operator)
    world.plan()

    attempt = leaves.attempts.get()
    assert (attempt.stop_reason, attempt.stopped_for, attempt.grace_seconds) == ("evicted", None, 7)
    receipt = JobEvent.objects.get(job=leaves, kind="job.preempting")
    assert receipt.because == (
        f"evicted from {node.name}: the node has the taint memory-errors:NoExecute, put there by "
        "ops (ECC errors in slot 3); the job has 7 s to end and is requeued"
    )
    while leaves.epoch == 1:
        bench.step()
        leaves.refresh_from_db()
    assert leaves.attempts.live().get().tasks.get().node != node
    assert stays.attempts.get().stop_reason == ""
    assert preemption_counts([leaves.queue_id]) == {leaves.queue_id: 1}
    metric_counts.count()
    (family,) = [one for one in metrics.read_metrics() if one.name == "muster_preemptions"]
    assert {sample.labels["reason"] for sample in family.samples if sample.value == 1} == {"taint"}
    # A later change of other taints keeps who put this one, and when.
    node.refresh_from_db()
    (sign,) = node.taints
    node.taints = [*node.taints, {"key": "more", "effect": "NoSchedule"}]
    save_settings(thing=node, changed_fields=["taints"], by=operator, reason="and more")
    assert node.taints[0] == sign


def test_a_taint_that_is_gone_again_sends_nobody_away(
    bench: FakeBench, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench.settle(bench.start(), "running")
    node = job.attempts.get().tasks.get().node
    tainted(node, operator)
    real = apply_plan.apply_plan

    def after_it_was_taken_away(plan: Plan, context: ApplyContext) -> Applied:
        Node.objects.filter(pk=node.pk).update(taints=[])
        return real(plan, context)

    monkeypatch.setattr(apply_plan, "apply_plan", after_it_was_taken_away)
    bench.world.plan()

    job.refresh_from_db()
    assert (job.state, job.attempts.get().stop_reason) == (JobState.RUNNING, "")


# ------------------------------------------------------------------ check


def a_preempt(victim: Job, preemptor: Job | None = None, **words: Any) -> Preempt:
    return Preempt(
        job_id=victim.number, attempt_id=victim.attempts.get().pk,
        for_job_id=preemptor.number if preemptor else 0,
        for_generation=preemptor.generation if preemptor else 0, priority=10, for_priority=90, lost_seconds=0,
        grace_seconds=7, **words,
    )  # fmt: skip


def checked(*preempts: Preempt, except_for: Collection[int] = ()) -> CheckedPreemption:
    with transaction.atomic():
        return apply_preemption.check(preempts, except_for=except_for)


def test_where_one_victim_has_ended_none_is_stopped_for_the_same_job(bench: FakeBench) -> None:
    first, ended, other = a_running(bench), a_running(bench), a_running(bench)
    bench.finish(ended)
    bench.settle(ended, "completed")
    urgent, second = bench.world.submit(priority=90), bench.world.submit(priority=90)
    alone = a_preempt(other, second)

    found = checked(a_preempt(first, urgent), a_preempt(ended, urgent), alone)

    assert found.accepted == (alone,)
    (refusal,) = found.refused.values()
    assert (refusal.job, refusal.code) == (urgent.number, VICTIM_CHANGED)
    assert (
        refusal.message == f"Job {ended.number} was to be stopped for it and has changed: no job is stopped."
    )


def test_a_preemptor_that_has_changed_or_was_refused_elsewhere_stops_nobody(bench: FakeBench) -> None:
    victim, urgent = a_running(bench), bench.world.submit(priority=90)
    planned = a_preempt(victim, urgent)

    assert checked(planned).accepted == (planned,)
    assert checked(planned, except_for=[0, urgent.number]).accepted == ()
    Job.objects.filter(pk=urgent.pk).update(generation=urgent.generation + 1)
    found = checked(planned)

    assert found.accepted == ()
    assert found.refused[urgent.number].message == (
        f"Job {urgent.number} has changed: no job is stopped for it."
    )


def test_what_stops_for_a_limit_or_a_taint_is_checked_alone_and_refuses_nothing(bench: FakeBench) -> None:
    victim, ended = a_running(bench), a_running(bench)
    gone = a_preempt(ended, kind="converge", line="vision")
    bench.finish(ended)
    bench.settle(ended, "completed")
    cut = a_preempt(victim, kind="converge", line="vision")
    untainted = a_preempt(victim, node_id=Node.objects.first().pk, taint=("broken", ""))

    found = checked(cut, gone, untainted, except_for=[0])

    assert (found.accepted, found.refused) == ((cut,), {})


def test_only_a_job_whose_processes_run_can_be_suspended(bench: FakeBench) -> None:
    starting = bench.start(priority=10)
    bench.world.plan()
    urgent = bench.world.submit(priority=90)
    planned = a_preempt(starting, urgent, mode="suspend")
    Job.objects.filter(pk=starting.pk).update(state=JobState.STARTING)

    assert checked(planned).accepted == ()
    assert checked(replace(planned, mode="requeue")).accepted == (replace(planned, mode="requeue"),)


def test_t20_two_queues_that_preempt_one_victim_at_once_stop_it_once_and_one_of_them_starts(
    bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Split brain: neither planner sees the other's job, and both have the same job make way for theirs."""
    world = bench.world
    Node.objects.filter(name="n2").update(cordoned=True)
    victim = a_running(bench, **everything(bench))
    a_queue(world.cluster, "other")
    rivals = [
        world.submit(priority=90, **everything(bench)),
        world.submit(priority=90, queue="other", **everything(bench)),
    ]
    loaded = snapshots.load_snapshot(cluster_id=world.cluster.pk)
    lease = a_lease_of(world.cluster.pk)
    monkeypatch.setattr(leases, "fence", lambda _: None)
    plans = []
    for rival in rivals:
        mine = np.array([number == rival.number for number in loaded.snapshot.pending.id.tolist()])
        alone = replace(loaded.snapshot, pending=loaded.snapshot.pending.take(mine))
        plans.append(plan_cycle(alone, loaded.policy))
    assert [[one.job_id for one in plan.preempts] for plan in plans] == [[victim.number]] * 2

    def apply(plan: Plan) -> Applied:
        context = ApplyContext(
            cluster_id=world.cluster.pk, backend=loaded.backend, snapshot=loaded.snapshot,
            policy=loaded.policy, lease=lease, at=timezone.now(),
        )  # fmt: skip
        with transaction.atomic():
            return apply_plan.apply_plan(plan, context)

    outcomes = at_once(*[lambda plan=plan: apply(plan) for plan in plans])

    assert sorted(len(outcome.stopped) for outcome in outcomes) == [0, 1]  # type: ignore[attr-defined]
    attempt = Attempt.objects.get(job=victim)
    assert attempt.stopped_for in {rival.number for rival in rivals}
    assert JobEvent.objects.filter(job=victim, kind="job.preempting").count() == 1
    leases.release(lease)
    bench.step()
    bench.settle(victim, "queued")
    world.plan()
    states = sorted(Job.objects.get(pk=rival.pk).state for rival in rivals)
    assert states.count("queued") == 1, states
    node = Node.objects.get(name="n1")
    assert node.used_cpu_millis == node.cpu_millis_capacity
    assert Attempt.objects.live().count() == 1


def a_lease_of(cluster_id: int) -> HeldLease:
    lease = leases.acquire(leases.cluster_scope(cluster_id), holder="us", seconds=60)
    assert lease is not None
    return lease
