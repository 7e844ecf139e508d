"""A small world in rows: a cluster with its queue, a project, and jobs to plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from accounts.models import Project, User
from quotas.models import BudgetPeriod, LedgerEntry, Quota
from quotas.selectors.budgets import sum_of_period
from scheduler.core.lifecycle import ACTIVE, ENDED_ATTEMPT, LIVE_TASK, TaskFailure
from scheduler.models import Allocation, Attempt, Cluster, Device, Job, Node, Queue, Task
from scheduler.services.planning.cycles import CycleResult, run_cycle
from scheduler.state.ledger.ledger import GIVEN_BACK
from tests.support.factories import (
    ClusterFactory,
    JobFactory,
    MembershipFactory,
    NodeFactory,
    ProjectFactory,
    QuotaFactory,
)


@dataclass
class SmallWorld:
    """One cluster, one queue that reaches every node, one project with one member."""

    cluster: Cluster = field(default_factory=ClusterFactory)
    project: Project = field(default_factory=ProjectFactory)
    queue: Queue = field(init=False)
    person: User = field(init=False)

    def __post_init__(self) -> None:
        self.queue = a_queue(self.cluster, "default")
        self.person = MembershipFactory(project=self.project).user

    def node(self, name: str, **kwargs: Any) -> Node:
        return NodeFactory(cluster=self.cluster, name=name, **kwargs)

    def job(self, name: str = "train", **kwargs: Any) -> Job:
        kwargs.setdefault("queue", self.queue)
        kwargs.setdefault("project", self.project)
        kwargs.setdefault("user", self.person)
        return JobFactory(name=name, **kwargs)

    def quota(self, resource: str, hard: int | None, **kwargs: Any) -> Quota:
        return QuotaFactory(project=self.project, resource=resource, hard=hard, **kwargs)

    def plan(self) -> CycleResult:
        return run_cycle(cluster_id=self.cluster.pk, trigger="test")


def a_queue(cluster: Cluster, name: str, **kwargs: Any) -> Queue:
    return Queue.objects.create(cluster=cluster, name=name, slug=f"{name}-{next(_numbers)}", **kwargs)


_numbers = count(1)


def broken_invariants() -> list[str]:
    """Every way in which the rows contradict each other: none, whatever happened."""
    found = []
    held = list(Allocation.objects.filter(released_at__isnull=True).select_related("attempt__job__project"))
    for node in Node.objects.all():
        here = [a for a in held if a.node_id == node.pk]
        for counter, name, capacity in (
            (node.used_cpu_millis, "cpu_millis", node.cpu_millis_capacity),
            (node.used_memory_mib, "memory_mib", node.memory_mib_capacity),
            (node.used_storage_mib, "storage_mib", node.storage_mib),
            (node.used_gpu_millis, "gpu_millis", node.gpu_millis),
        ):
            total = sum(getattr(a, name) for a in here)
            if total != counter:
                found.append(f"{node} counts {counter} {name} and holds {total}")
            if total > capacity:
                found.append(f"{node} holds {total} {name} of {capacity}")
    for device in Device.objects.all():
        total = sum(a.gpu_millis // len(a.device_ids) for a in held if device.pk in a.device_ids)
        if total != device.used_millis or total > 1000:
            found.append(f"{device} counts {device.used_millis} and holds {total}")
    models = dict(Device.objects.values_list("pk", "model"))
    for quota in Quota.objects.exclude(resource="pending_jobs"):
        mine = [a for a in held if _counts_on(quota, a.attempt.job)]
        if quota.resource == "running_jobs":
            total = len({a.attempt.job_id for a in mine})
        elif quota.gpu_model:
            total = sum(
                a.gpu_millis // len(a.device_ids)
                for a in mine
                for device in a.device_ids
                if quota.gpu_model in models[device]
            )
        else:
            total = sum(getattr(a, quota.resource) for a in mine)
        if total != quota.used:
            found.append(f"{quota} counts {quota.used} and is {total}")
    for allocation in held:
        if allocation.attempt.state in ENDED_ATTEMPT:
            found.append(f"{allocation.attempt} is over and holds something on {allocation.node_id}")
    found += broken_ledger()
    for job in Job.objects.all():
        live = Attempt.objects.live().filter(job=job).count()
        if live != (job.state in ACTIVE):
            found.append(f"job {job.number} is {job.state} with {live} live attempts")
        if live:
            attempt = Attempt.objects.live().get(job=job)
            ranks = list(Task.objects.filter(attempt=attempt).order_by("rank").values_list("rank", flat=True))
            if (
                ranks != list(range(len(ranks)))
                or not (job.min_tasks or job.tasks) <= len(ranks) <= job.tasks
            ):
                found.append(f"job {job.number} runs in part")
            if list(attempt.allocations.order_by("rank").values_list("rank", flat=True)) != ranks:
                found.append(f"job {job.number} holds something for other tasks than it has")
            live_ranks = set(
                Task.objects.filter(attempt=attempt, state__in=LIVE_TASK).values_list("rank", flat=True)
            )
            holding = set(attempt.allocations.held().values_list("rank", flat=True))
            if not live_ranks <= holding:
                found.append(f"job {job.number} has tasks that hold nothing")
            if job.on_task_failure != TaskFailure.CONTINUE and not job.elastic and holding != set(ranks):
                found.append(f"job {job.number} holds in part")
    return found


def _counts_on(quota: Quota, job: Job) -> bool:
    if quota.job_type not in ("", job.job_type) or quota.user_id not in (None, job.user_id):
        return False
    if quota.organization_id is not None:
        one = job.project.organization
        while one is not None and one.pk != quota.organization_id:
            one = one.parent
        return one is not None
    return quota.project_id in (None, job.project_id)


def broken_ledger() -> list[str]:
    """Every way in which the ledger contradicts what was held, for attempts that have lines at all."""
    found = []
    lines: dict[int, list[LedgerEntry]] = {}
    for entry in LedgerEntry.objects.exclude(attempt_id=None):
        lines.setdefault(entry.attempt_id, []).append(entry)
    for attempt in Attempt.objects.filter(pk__in=lines).prefetch_related("allocations"):
        own = lines[attempt.pk]
        ended = not any(one.released_at is None for one in attempt.allocations.all())
        # What is forgiven is forgiven whole, the time that it stood still too.
        forgiven = any(e.kind == "refund" and e.charged_seconds and e.reason not in GIVEN_BACK for e in own)
        for name in ("cpu_millis", "memory_mib", "storage_mib", "gpu_millis"):
            held = sum(getattr(e, name) * e.held_seconds for e in own)
            charged = sum(
                getattr(e, name) * e.charged_seconds
                for e in own
                if forgiven or e.kind == "charge" or e.reason in GIVEN_BACK
            )
            if held < 0 or (ended and held):
                found.append(f"{attempt} sets {held} {name} seconds aside")
            if ended and charged != (
                0 if forgiven else sum(_used(a, name) for a in attempt.allocations.all())
            ):
                found.append(f"{attempt} is charged {charged} {name} seconds")
    for period in BudgetPeriod.objects.select_related("budget"):
        total = sum_of_period(period)
        if (period.held, period.charged) != (total.held, total.charged):
            found.append(f"{period} counts {period.held}, {period.charged} and the ledger has {total}")
    return found


def _used(allocation: Allocation, name: str) -> int:
    """Amount times seconds; of the CPUs not while it stood still."""
    begin, end = int(allocation.held_at.timestamp()), int(allocation.released_at.timestamp())
    if name != "cpu_millis":
        return int(getattr(allocation, name)) * (end - begin)
    still = 0
    for one in allocation.attempt.suspensions.exclude(starts_at=None):
        until = min(int(one.ends_at.timestamp()), end) if one.ends_at else end
        still += max(until - max(int(one.starts_at.timestamp()), begin), 0)
    return (allocation.cpu_millis + allocation.suspended_cpu_millis) * (end - begin - still)
