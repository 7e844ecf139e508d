"""Selectors: reads that join models or check who may see: jobs, queues, nodes, quotas."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import connection
from django.db.models import Count, F, FloatField, Prefetch, Q, QuerySet, Sum
from django.db.models.functions import Extract
from django.utils import timezone

from accounts.models import Project, User
from accounts.permissions import may, sees_everything
from accounts.selectors import visible_projects
from accounts.services.audit import Thing
from infra.errors import NotFound
from scheduler.core.lifecycle import ACTIVE, PENDING, AttemptState, StopReason
from scheduler.core.whatif.idle_cluster import IdleCluster
from scheduler.models import (
    Allocation,
    Attempt,
    Dataset,
    Device,
    Job,
    Node,
    Partition,
    Queue,
    Reservation,
    ReservationStatus,
)
from scheduler.models.job import JobQuerySet
from scheduler.state.load.idle_cluster import load_idle_cluster

_ELEMENT_REF: Final = re.compile(r"([0-9]{1,18})_([0-9]{1,7})", re.ASCII)
_JOB_NOT_FOUND: Final = "The page Jobs and GET /api/v1/jobs list the jobs that you can see."


# ---------------------------------------------------------------- jobs


def visible_jobs(user: User) -> JobQuerySet:
    """Jobs of the projects that this person belongs to; of all projects for operators and auditors."""
    jobs = Job.objects.select_related("queue", "project", "user", "forecast")
    if sees_everything(user):
        return jobs
    return jobs.filter(project_id__in=visible_projects(user).values("pk"))


def listed_jobs(user: User) -> JobQuerySet:
    """The same for lists: with the projects looked up first, the database can estimate the number of jobs."""
    jobs = Job.objects.select_related("queue", "project", "user", "forecast")
    if sees_everything(user):
        return jobs
    return jobs.in_projects(list(visible_projects(user).order_by().values_list("pk", flat=True)))


def job_by_ref(user: User, ref: str | int | uuid.UUID) -> Job:
    """A visible job by number or id, or as element `123_3`; raises NotFound for any other."""
    lookup = _job_lookup(ref)
    job = visible_jobs(user).filter(**lookup).first() if lookup else None
    if job is None:
        hidden = Job.objects.filter(**lookup).only("number").first() if lookup else None
        raise NotFound(
            f"There is no job {str(ref)[:60]}, or you may not see it.",
            way_out=_JOB_NOT_FOUND,
            # The answer is the same for both; the audit trail tells one from the other.
            refused=("view", Thing("job", str(hidden.number))) if hidden is not None else None,
        )
    return job


def env_shown_to(user: User, job: Job) -> dict[str, str | None]:
    """The environment that a job asked for; its values may be secrets, and are None for who must not see its inside."""
    env: dict[str, str | None] = job.env
    return env if not env or may(user, "see_inside", job) else dict.fromkeys(env)


def _job_lookup(ref: str | int | uuid.UUID) -> dict[str, Any] | None:
    if isinstance(ref, uuid.UUID):
        return {"uuid": ref}
    text = str(ref).strip()
    if text.isascii() and text.isdecimal():
        return {"number": int(text)} if len(text) < 19 else None
    if match := _ELEMENT_REF.fullmatch(text):
        return {"array_number": int(match[1]), "array_index": int(match[2])}
    try:
        return {"uuid": uuid.UUID(text)}
    except ValueError:
        return None


def with_allocations(jobs: JobQuerySet) -> JobQuerySet:
    """The jobs with the allocations of their latest attempts, in a fixed number of queries."""
    return jobs.prefetch_related(
        Prefetch(
            "attempts__allocations", queryset=Allocation.objects.select_related("node").order_by("rank")
        ),
        "dependencies__on",
    )


def priority_names() -> list[tuple[int, str]]:
    """(value, name) of the priority classes, highest first; at most a second old."""
    global _names
    now = time.monotonic()
    if now < _names[0]:
        return _names[1]
    with connection.cursor() as cursor:
        cursor.execute("SELECT value, name FROM scheduler_priorityclass ORDER BY value DESC")
        names = [(value, name) for value, name in cursor.fetchall()]
    _names = (now + NAMES_SECONDS, names)
    return names


NAMES_SECONDS: Final = 1.0
_names: tuple[float, list[tuple[int, str]]] = (0.0, [])


def forget_cached_reads() -> None:
    """Read machines and names anew with the next request: for tests, whose rows are gone a moment later."""
    global _names
    _names = (0.0, [])
    _idle_clusters.clear()


# ---------------------------------------------------------------- queues


def visible_queues(user: User) -> QuerySet[Queue]:
    """Queues open to all, and those of the person's own projects."""
    queues = Queue.objects.select_related("cluster", "project", "profile", "cluster__profile")
    if sees_everything(user):
        return queues
    return queues.filter(Q(project__isnull=True) | Q(project_id__in=visible_projects(user).values("pk")))


def queue_by_ref(user: User, ref: str | int) -> Queue:
    text = str(ref).strip()
    queues = visible_queues(user)
    found = queues.filter(slug=text).first() if "\x00" not in text else None
    if found is None and text.isascii() and text.isdecimal() and len(text) < 19:
        found = queues.filter(pk=int(text)).first()
    if found is None:
        raise NotFound(
            f"There is no queue {text[:60]!r}, or you may not see it.",
            way_out="The page Queues and GET /api/v1/queues list them.",
        )
    return found


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """The jobs of one queue that wait or run, counted."""

    running: int = 0
    pending: int = 0
    pending_gpus: int = 0
    running_gpus: int = 0


def queue_loads(queue_ids: Iterable[int]) -> dict[int, QueueLoad]:
    """Counters of several queues, one query for all."""
    wanted = list(queue_ids)
    rows = (
        Job.objects.not_over()
        .filter(queue_id__in=wanted)
        .values("queue_id", "state")
        .annotate(jobs=Count("number"), gpus=Sum("gpus"))
        .order_by()
    )
    sums: dict[int, Counter[str]] = defaultdict(Counter)
    for row in rows:
        count = sums[row["queue_id"]]
        for what, states in (("running", ACTIVE), ("pending", PENDING)):
            if row["state"] in states:
                count[what] += row["jobs"]
                count[f"{what}_gpus"] += row["gpus"] or 0
    return {queue_id: QueueLoad(**count) for queue_id, count in sums.items()}


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """One queue as a page shows it."""

    queue: Queue
    load: QueueLoad
    #: Pending jobs by reason code, most frequent first.
    reasons: tuple[tuple[str, int], ...]


def queue_overview(user: User) -> list[QueueOverview]:
    queues = list(visible_queues(user).prefetch_related("partitions"))
    ids = [queue.pk for queue in queues]
    loads = queue_loads(ids)
    reasons: dict[int, Counter[str]] = defaultdict(Counter)
    rows = Job.objects.pending().filter(queue_id__in=ids).values_list("queue_id", "reason_code")
    for queue_id, code, count in rows.annotate(jobs=Count("number")).order_by():
        reasons[queue_id][code or "NotEvaluatedYet"] += count
    return [
        QueueOverview(queue, loads.get(queue.pk, QueueLoad()), tuple(reasons[queue.pk].most_common()))
        for queue in queues
    ]


def preemption_counts(queue_ids: list[int]) -> dict[int, int]:
    """How often jobs of each queue were preempted, evicted or drained in the last day."""
    rows = Attempt.objects.filter(
        stop_reason__in=[StopReason.PREEMPTED, StopReason.EVICTED, StopReason.DRAINED],
        stop_asked_at__gt=timezone.now() - timedelta(days=1),
        job__queue_id__in=queue_ids,
    )
    return dict(rows.order_by().values_list("job__queue_id").annotate(times=Count("pk")))


# ---------------------------------------------------------------- machines


def visible_partitions(user: User) -> QuerySet[Partition]:
    """Partitions of queues that this person sees, and partitions without a queue: a private queue's are private."""
    if sees_everything(user):
        return Partition.objects.all()
    fed = Queue.partitions.through.objects
    return Partition.objects.exclude(
        pk__in=fed.exclude(queue__in=visible_queues(user).order_by().values("pk"))
        .exclude(
            partition__in=fed.filter(queue__in=visible_queues(user).order_by().values("pk")).values(
                "partition"
            )
        )
        .values("partition")
    )


def nodes_with_devices(user: User) -> QuerySet[Node]:
    """Nodes with their present devices and the partitions this person sees, in a fixed number of queries."""
    return Node.objects.select_related("cluster", "heartbeat", "score").prefetch_related(
        Prefetch("devices", queryset=Device.objects.filter(gone=False).order_by("index")),
        Prefetch("partitions", queryset=visible_partitions(user)),
    )


def node_by_ref(user: User, ref: str | int) -> Node:
    """A node by id or name: everybody may see every node."""
    text = str(ref).strip()
    nodes = nodes_with_devices(user)
    found = nodes.filter(name=text).first() if "\x00" not in text else None
    if found is None and text.isascii() and text.isdecimal() and len(text) < 19:
        found = nodes.filter(pk=int(text)).first()
    if found is None:
        raise NotFound(
            f"There is no node {text[:60]!r}.", way_out="The page Cluster and GET /api/v1/nodes list them."
        )
    return found


@dataclass(frozen=True, slots=True)
class NodeOnMap:
    """One node as the map shows it: the row, its devices and the allocations on it."""

    node: Node
    devices: tuple[Device, ...]
    #: Held allocations with `attempt.job` loaded, each with whether the viewer may see whose it is.
    allocations: tuple[tuple[Allocation, bool], ...]


def cluster_map(user: User) -> list[NodeOnMap]:
    """Every node, its devices and allocations; jobs that the viewer may not see are there without names."""
    nodes = list(nodes_with_devices(user).order_by("cluster_id", "zone", "rack", "name"))
    everything = sees_everything(user)
    mine = set() if everything else set(visible_projects(user).values_list("pk", flat=True))
    held: dict[int, list[tuple[Allocation, bool]]] = defaultdict(list)
    rows = Allocation.objects.held().select_related("attempt__job__user", "attempt__job__project")
    for allocation in rows.order_by("attempt_id", "rank"):
        shown = everything or allocation.attempt.job.project_id in mine
        held[allocation.node_id].append((allocation, shown))
    return [NodeOnMap(node, tuple(node.devices.all()), tuple(held[node.pk])) for node in nodes]


_idle_clusters: dict[int, tuple[float, IdleCluster]] = {}


def idle_cluster(cluster_id: int, *, fresh: bool = False) -> IdleCluster:
    """A cluster as if nothing ran and every node was open; a few seconds old unless `fresh`.

    Admission asks it whether a job could ever start: an old answer only lets a request through that the planner
    then explains, for a refusal is always made on fresh rows. The index and its answers are kept for as long as
    the machines stay the same.
    """
    now = time.monotonic()
    kept = _idle_clusters.get(cluster_id)
    if kept is not None and not fresh and now < kept[0]:
        return kept[1]
    snapshot = load_idle_cluster(cluster_id)
    cluster = (
        kept[1]
        if kept is not None and kept[1].snapshot == snapshot
        else IdleCluster(snapshot, threading.Lock())
    )
    _idle_clusters[cluster_id] = (now + settings.MUSTER_SHAPES_SECONDS, cluster)
    return cluster


# ---------------------------------------------------------------- quotas, reservations


def asked_of(project_ids: Iterable[int]) -> dict[int, Counter[str]]:
    """What the pending jobs of each project request, by the resource of a quota line; one query."""
    asked: dict[int, Counter[str]] = {pk: Counter() for pk in project_ids}
    rows = Job.objects.pending().filter(project__in=asked).order_by()
    for project_id, cpu, memory, storage, gpus, share, tasks, count in rows.values_list(
        "project_id", "cpu_millis", "memory_mib", "storage_mib", "gpus", "gpu_millis", "tasks"
    ).annotate(jobs=Count("number")):
        sums, times = asked[project_id], tasks * count
        sums["cpu_millis"] += cpu * times
        sums["memory_mib"] += memory * times
        sums["storage_mib"] += storage * times
        sums["gpu_millis"] += (share or gpus * 1000) * times
        sums["running_jobs"] += count
    return asked


def visible_datasets(user: User) -> QuerySet[Dataset]:
    """Datasets of the person's projects; of all projects for operators and auditors."""
    rows = Dataset.objects.select_related("project", "declared_by").order_by("-id")
    return rows if sees_everything(user) else rows.filter(project_id__in=visible_projects(user).values("pk"))


def visible_reservations(user: User) -> QuerySet[Reservation]:
    """Maintenance, and what is for the person or for projects of theirs; all of them for operators and auditors."""
    rows = Reservation.objects.select_related(
        "cluster", "project", "created_by", "decided_by", "job"
    ).prefetch_related("nodes", "parts__node", "users")
    if sees_everything(user):
        return rows
    people = Reservation.users.through.objects
    mine = people.filter(user_id=user.pk).values("reservation_id")
    for_people = people.values("reservation_id")
    return rows.filter(
        Q(project_id__in=visible_projects(user).values("pk"))
        | Q(pk__in=mine)
        | Q(project__isnull=True, status=ReservationStatus.APPROVED) & ~Q(pk__in=for_people)
    )


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """What ended tasks used of their CPU time, memory and GPU time, where it was measured."""

    tasks: int
    cpu_percent: float | None
    memory_percent: float | None
    gpu_percent: float | None
    #: GPU time, in thousandths of a GPU times seconds, of attempts that ended with a failure of their own.
    failed_gpu_milli_seconds: int


def measured_use(
    user: User, first: date, until: date, *, project: Project | None = None, person: str = ""
) -> MeasuredUse:
    """Measured use of attempts that ended from one day until another, in the projects that the person may see."""
    attempts = Attempt.objects.filter(ended_at__gte=_midnight(first), ended_at__lt=_midnight(until))
    if not sees_everything(user):
        mine = visible_projects(user).order_by().values_list("pk", flat=True)
        attempts = attempts.filter(job__project__in=list(mine))
    if project is not None:
        attempts = attempts.filter(job__project=project)
    if person:
        attempts = attempts.filter(job__user__username=person)
    seconds = Extract(F("ended_at") - F("started_at"), "epoch")
    measured = attempts.filter(tasks__cpu_time_ms__isnull=False, started_at__isnull=False)
    sums = measured.aggregate(
        count=Count("tasks"),
        cpu=Sum("tasks__cpu_time_ms"),
        cpu_asked=Sum(F("job__cpu_millis") * seconds, output_field=FloatField()),
        peak=Sum("tasks__peak_memory_mib"),
        gpu=Sum("tasks__gpu_busy_ms"),
        gpu_watched=Sum("tasks__gpu_watched_ms"),
        memory=Sum("job__memory_mib", filter=Q(tasks__peak_memory_mib__isnull=False)),
    )
    held = Extract(F("allocations__released_at") - F("allocations__held_at"), "epoch")
    failed = attempts.filter(state=AttemptState.FAILED).aggregate(
        gpu=Sum(F("allocations__gpu_millis") * held, output_field=FloatField())
    )
    return MeasuredUse(
        sums["count"],
        _percent(sums["cpu"], sums["cpu_asked"]),
        _percent(sums["peak"], sums["memory"]),
        _percent(sums["gpu"], sums["gpu_watched"]),
        int(failed["gpu"] or 0),
    )


def _percent(used: float | None, asked: float | None) -> float | None:
    return round(100 * float(used) / float(asked), 1) if used is not None and asked else None


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
