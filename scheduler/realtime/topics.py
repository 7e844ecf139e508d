"""What each live topic shows, to whom, and which hints announce that it changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings
from django.db.models import Count, Max, Min, Q
from django.utils.module_loading import import_string

from infra.errors import MusterError, NotAllowed, NotFound
from quotas.models import Quota
from scheduler import outbox
from scheduler.core.lifecycle import ACTIVE, PENDING, PUBLIC, JobState
from scheduler.models import Allocation, Device, Job, JobEvent, Node, Queue, Task
from scheduler.realtime.auth import Viewer
from scheduler.selectors import listed_jobs
from scheduler.state.lease.planner_liveness import clusters_now

#: The list page shows as many; older jobs do not change.
JOBS_SHOWN: Final = 100
#: Quota lines followed at once; the page shows no more projects.
LINES_SHOWN: Final = 1000
#: Tasks of a gang that are shown one by one.
TASKS_SHOWN: Final = 64
STREAMS: Final = ("stdout", "stderr", "merged")

Rows = Mapping[str, Mapping[str, Any]]

LIVE_STATES: Final = sorted(PENDING | ACTIVE)


@dataclass(frozen=True, slots=True)
class Topic:
    """What a client may subscribe to, as it is written on the wire: `cluster`, `job:42`."""

    kind: str
    number: int | None = None

    def __str__(self) -> str:
        return self.kind if self.number is None else f"{self.kind}:{self.number}"


@dataclass(frozen=True)
class Source:
    """Where a topic's content comes from for one kind of viewer; equal keys share one source.

    `hints` are the outbox topics that announce a change. `pointed` says that those hints are about this
    content and little else, so that each of them is passed on even when the rows below look the same.
    """

    key: tuple[Any, ...]
    hints: frozenset[str]
    build: Callable[[], Rows]
    pointed: bool = False


KINDS: Final = {
    "site": False, "cluster": False, "queues": False, "quotas": False, "jobs": False, "job": True, "log": True,
}  # fmt: skip
SCOPES: Final = {
    "site": "jobs:read",
    "cluster": "nodes:read",
    "queues": "jobs:read",
    "quotas": "quota:read",
    "jobs": "jobs:read",
    "job": "jobs:read",
    "log": "jobs:read",
}


def _others() -> dict[str, str]:
    """Topics of apps above this one: their names, and the function that gives a viewer's source."""
    others: dict[str, str] = settings.MUSTER_LIVE_SOURCES
    return others


def parse_topic(text: object) -> Topic:
    """The topic of that name; raises NotFound for anything that is none."""
    kind, _, number = text.partition(":") if isinstance(text, str) else ("", "", "")
    numbered = False if kind in _others() else KINDS.get(kind)
    if numbered is None or numbered != bool(number):
        raise NotFound(
            message=f"There is no live topic {str(text)[:60]!r}.",
            way_out=f"Topics are site, cluster, queues, quotas, jobs, {', '.join(_others())}, job:<number> and "
            "log:<number>.",
        )
    if not numbered:
        return Topic(kind)
    if not (number.isascii() and number.isdigit() and len(number) <= 18):
        raise _no_such_job(number)
    return Topic(kind, int(number))


def open_source(topic: Topic, viewer: Viewer) -> Source:
    """Where this viewer gets the topic from; raises NotAllowed or NotFound when they may not see it."""
    scope = SCOPES.get(topic.kind, f"{topic.kind}:read")
    if not viewer.has_scope(scope):
        raise NotAllowed(
            message=f"This token may not follow {topic}.",
            way_out=f"Use one with the scope {scope}.",
        )
    if topic.kind in _others():
        source: Source = import_string(_others()[topic.kind])(viewer)
        return source
    if topic.kind == "site":
        return Source(("site",), frozenset({outbox.CLUSTER_TOPIC}), site_rows)
    if topic.kind == "cluster":
        return Source(("cluster",), frozenset({outbox.CLUSTER_TOPIC}), cluster_rows)
    if topic.kind == "queues":
        return _queues_source(viewer)
    if topic.kind == "quotas":
        return _quotas_source(viewer)
    if topic.kind == "jobs":
        return _jobs_source(viewer)
    assert topic.number is not None
    require_job(topic.number, viewer)
    number = topic.number
    if topic.kind == "log":
        return Source(("log", number), frozenset({outbox.log_topic(number), outbox.job_topic(number)}), dict)
    return Source(
        ("job", number), frozenset({outbox.job_topic(number)}), lambda: job_rows(number), pointed=True
    )


def require_job(number: int, viewer: Viewer) -> None:
    """Raise NotFound unless the viewer may see this job; a stranger cannot tell whether it exists."""
    if not _jobs_of(viewer).filter(pk=number).exists():
        raise _no_such_job(str(number))


def _no_such_job(number: str) -> MusterError:
    return NotFound(
        message=f"There is no job {number[:20]}, or you may not see it.", way_out="Check the number."
    )


# ---------------------------------------------------------------- site


def site_rows() -> Rows:
    """Clusters that start no job: paused ones, and those whose planner gives no sign.

    A planner that hangs sends no hint: these rows change because feeds also read without one.
    """
    return {
        f"cluster:{one.pk}": {
            "id": one.pk, "name": one.name, "paused": one.paused, "paused_reason": one.paused_reason,
            "paused_by": one.paused_by, "paused_at": one.paused_at,
            "silent_since": one.since_at if one.silent else None,
        }
        for one in clusters_now()
    }  # fmt: skip


# ---------------------------------------------------------------- cluster


def cluster_rows() -> Rows:
    """Every node with what it has, what is in use, and a cell for each of its GPUs."""
    rows: dict[str, dict[str, Any]] = {
        f"node:{node['id']}": node | {"gpus": []}
        for node in Node.objects.order_by("id").values(
            "id", "name", "state", "cordoned", "draining", "drain_reason", "trouble", "rack", "zone",
            "cpu_millis_capacity", "used_cpu_millis", "memory_mib_capacity", "used_memory_mib",
            "storage_mib", "used_storage_mib", "gpu_millis", "used_gpu_millis",
        )
    }  # fmt: skip
    devices = Device.objects.filter(gone=False).order_by("node_id", "index")
    cells: Iterable[dict[str, Any]] = devices.values(  # type: ignore[assignment]  # rows are changed below
        "node_id", "id", "index", "model", "memory_mib", "healthy", "fake", "used_millis",
        "utilisation_percent", "memory_used_mib", "temperature_c", "power_watts", "trouble",
    )  # fmt: skip
    for cell in cells:
        node = rows.get(f"node:{cell.pop('node_id')}")
        if node is not None:
            node["gpus"].append(cell)
    return rows


# ---------------------------------------------------------------- queues


def _queues_source(viewer: Viewer) -> Source:
    """Queues of all projects to those who look after the site, open ones and their own to everybody else."""
    if viewer.sees_everything:
        return Source(("queues", None), frozenset({outbox.QUEUES_TOPIC}), lambda: queue_rows(None))
    owned = set(Queue.objects.filter(project__isnull=False).values_list("project_id", flat=True))
    projects = frozenset(owned & viewer.project_ids)
    return Source(("queues", projects), frozenset({outbox.QUEUES_TOPIC}), lambda: queue_rows(projects))


def queue_rows(projects: frozenset[int] | None) -> Rows:
    """Each queue with its counts, its oldest wait and the reason that holds most jobs; None means all."""
    queues = Queue.objects.select_related(None).order_by("-priority", "name", "id")
    if projects is not None:
        queues = queues.filter(Q(project__isnull=True) | Q(project__in=projects))
    rows: dict[int, dict[str, Any]] = {
        queue["id"]: queue | {"pending": 0, "active": 0, "oldest_pending_at": None, "top_reason": None}
        for queue in queues.values(
            "id", "name", "slug", "project_id", "priority", "paused", "paused_reason", "paused_by",
            "paused_at", "max_concurrent_jobs", "max_pending_jobs",
        )
    }  # fmt: skip
    counts = (
        Job.objects.in_states(LIVE_STATES)
        .filter(queue__in=list(rows))
        .order_by()
        .values("queue_id", "state", "reason_code")
        .annotate(jobs=Count("number"), oldest_at=Min("created_at"))
    )
    held_back: dict[int, dict[str, int]] = {}
    for count in counts:
        row = rows[count["queue_id"]]
        if JobState(count["state"]) not in PENDING:
            row["active"] += count["jobs"]
            continue
        row["pending"] += count["jobs"]
        row["oldest_pending_at"] = min(filter(None, (row["oldest_pending_at"], count["oldest_at"])))
        if count["reason_code"]:
            reasons = held_back.setdefault(count["queue_id"], {})
            reasons[count["reason_code"]] = reasons.get(count["reason_code"], 0) + count["jobs"]
    for queue_id, reasons in held_back.items():
        code = min(reasons, key=lambda code: (-reasons[code], code))
        rows[queue_id]["top_reason"] = {"code": code, "jobs": reasons[code]}
    return {f"queue:{queue_id}": row for queue_id, row in rows.items()}


# ---------------------------------------------------------------- quotas


def _quotas_source(viewer: Viewer) -> Source:
    """The lines of the projects this person may see: what is in use moves with jobs, the bounds with edits."""
    hints = {outbox.QUOTAS_TOPIC}
    if viewer.sees_everything:
        return Source(("quotas", None), frozenset(hints | {outbox.QUEUES_TOPIC}), lambda: quota_rows(None))
    projects = viewer.project_ids
    hints |= set(map(outbox.project_topic, projects))
    return Source(("quotas", projects), frozenset(hints), lambda: quota_rows(projects), pointed=True)


def quota_rows(projects: frozenset[int] | None) -> Rows:
    """Each line of these projects with its bounds and what is in use; None means all projects."""
    lines = Quota.objects.filter(project__isnull=False, user__isnull=True)
    if projects is not None:
        lines = lines.filter(project__in=projects)
    return {
        f"quota:{line['id']}": line
        for line in lines.order_by("project_id", "id").values(
            "id", "project_id", "resource", "gpu_model", "job_type", "nominal", "soft", "hard", "enforce",
            "used", "generation",
        )[:LINES_SHOWN]
    }  # fmt: skip


# ---------------------------------------------------------------- jobs

_JOB_FIELDS: Final = (
    "number", "uuid", "name", "state", "priority", "tasks", "cpu_millis", "memory_mib", "storage_mib", "gpus",
    "gpu_millis", "gpu_model", "time_limit_seconds", "array_number", "array_index", "epoch", "exit_code",
    "exit_signal", "end_text", "reason_code", "reason_category", "reason_text", "expected_start_at",
    "created_at", "eligible_at", "scheduled_at", "started_at", "completed_at", "queue__name",
    "project__slug", "user__username",
)  # fmt: skip


def _jobs_of(viewer: Viewer) -> Any:
    jobs = listed_jobs(viewer.user)
    return jobs if viewer.only_project_id is None else jobs.filter(project=viewer.only_project_id)


def _jobs_source(viewer: Viewer) -> Source:
    """The latest jobs this person may see; a viewer of all jobs follows the hint that every job gives."""
    if viewer.sees_everything:
        hints = {outbox.QUEUES_TOPIC}
    else:
        hints = {outbox.user_topic(viewer.user.pk), *map(outbox.project_topic, viewer.project_ids)}
    return Source(
        ("jobs", viewer.user.pk, viewer.only_project_id, viewer.rights),
        frozenset(hints),
        lambda: jobs_rows(viewer),
        pointed=not viewer.sees_everything,
    )


def jobs_rows(viewer: Viewer) -> Rows:
    jobs = _jobs_of(viewer).select_related(None).order_by("-number").values(*_JOB_FIELDS)[:JOBS_SHOWN]
    return {f"job:{job['number']}": _job_row(job) for job in jobs}


def job_rows(number: int) -> Rows:
    """One job, the tasks of its latest attempt, and the count of its events."""
    job = Job.objects.filter(pk=number).order_by().values(*_JOB_FIELDS).first()
    if job is None:
        return {}
    rows: dict[str, dict[str, Any]] = {f"job:{number}": _job_row(job)}
    latest = Task.objects.filter(attempt__job=number, attempt__epoch=job["epoch"]).order_by("rank")
    tasks: Iterable[dict[str, Any]] = latest.values(  # type: ignore[assignment]  # rows are changed below
        "rank", "node__name", "state", "started_at", "ended_at", "exit_code", "exit_signal", "end_text",
        "peak_memory_mib", "cpu_time_ms", "gpu_watched_ms", "gpu_busy_ms", "peak_gpu_memory_mib",
    )[:TASKS_SHOWN]  # fmt: skip
    for task in tasks:
        task["node"] = task.pop("node__name")
        rows[f"task:{task['rank']}"] = task
    rows["story"] = JobEvent.objects.filter(job=number).aggregate(
        last_event=Max("id"), events=Count("id")
    ) | Allocation.objects.filter(attempt__job=number, released_at__isnull=True).aggregate(
        allocations_held=Count("id")
    )
    return rows


def _job_row(job: dict[str, Any]) -> dict[str, Any]:
    """The field names of the API."""
    job = dict(job)
    inner = JobState(job.pop("state"))
    code, category, text = (job.pop(f"reason_{part}") for part in ("code", "category", "text"))
    renamed = {
        "id": job.pop("uuid"),
        "array_id": job.pop("array_number"),
        "queue": job.pop("queue__name"),
        "project": job.pop("project__slug"),
        "user": job.pop("user__username"),
        "attempt": job.pop("epoch"),
        "expected_start": job.pop("expected_start_at"),
        "state": PUBLIC[inner],
        "state_detail": inner,
        "reason": {"code": code, "category": category, "text": text} if code else None,
    }
    return renamed | job
