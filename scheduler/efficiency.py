"""How well single jobs used what they were given: time, CPU, memory, and what came to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import connection, transaction

from accounts import permissions
from accounts.models import Project, User
from accounts.selectors import visible_projects
from infra.exports import FEWER_ROWS
from infra.request_cost import check_export

#: What a list may be ordered by: what was wasted most.
SORTS: Final = {
    "gpu": "lost_gpu_milli_seconds",
    "idle-gpu": "idle_gpu_milli_seconds",
    "cpu": "idle_cpu_milli_seconds",
    "memory": "idle_memory_mib_seconds",
    "time": "unused_seconds",
}
#: Rows that are read at a time while they are streamed.
CHUNK: Final = 1000
#: Less than this says nothing about how a job works.
_SHORT_SECONDS: Final = 60
#: A GPU that works less than this could be shared.
_IDLE_GPU_PERCENT: Final = 30
_SECONDS: Final = "extract(epoch FROM held.released_at - held.held_at)"
_SQL: Final = f"""
SELECT job.number, request.name, project.slug, person.username, job.state, tries.tries, tries.seconds::bigint,
    (tries.tries * coalesce(request.time_limit_seconds, queue.max_wall_seconds))::bigint AS asked_seconds,
    greatest(tries.tries * coalesce(request.time_limit_seconds, queue.max_wall_seconds) - tries.seconds, 0)::bigint
        AS unused_seconds,
    tries.gpu::bigint AS gpu_milli_seconds, tries.lost_gpu::bigint AS lost_gpu_milli_seconds,
    tries.gpu_measured::bigint, tries.gpu_used::bigint,
    greatest(coalesce(tries.gpu_measured - tries.gpu_used, 0), 0)::bigint AS idle_gpu_milli_seconds,
    tries.cpu::bigint AS cpu_milli_seconds, tries.cpu_measured::bigint, tries.cpu_used::bigint,
    greatest(coalesce(tries.cpu_measured - tries.cpu_used, 0), 0)::bigint AS idle_cpu_milli_seconds,
    request.memory_mib, tries.peak_memory_mib,
    greatest(coalesce(tries.memory_measured - tries.memory_used, 0), 0)::bigint AS idle_memory_mib_seconds
FROM (
    SELECT attempt.job_id AS number, count(DISTINCT attempt.id) AS tries,
        sum({_SECONDS}) FILTER (WHERE held.rank = first.rank) AS seconds,
        sum(held.gpu_millis * {_SECONDS}) AS gpu,
        coalesce(sum(held.gpu_millis * {_SECONDS}) FILTER (WHERE attempt.state IN ('failed', 'lost')), 0) AS lost_gpu,
        sum(least(task.gpu_watched_ms, held.gpu_millis * {_SECONDS})) FILTER (WHERE task.gpu_watched_ms IS NOT NULL)
            AS gpu_measured,
        sum(task.gpu_busy_ms) AS gpu_used,
        sum(held.cpu_millis * {_SECONDS}) AS cpu,
        sum(held.cpu_millis * {_SECONDS}) FILTER (WHERE task.cpu_time_ms IS NOT NULL) AS cpu_measured,
        sum(task.cpu_time_ms) AS cpu_used,
        sum(held.memory_mib * {_SECONDS}) FILTER (WHERE task.peak_memory_mib IS NOT NULL) AS memory_measured,
        sum(task.peak_memory_mib * {_SECONDS}) AS memory_used, max(task.peak_memory_mib) AS peak_memory_mib
    FROM scheduler_attempt attempt
        JOIN scheduler_allocation held ON held.attempt_id = attempt.id AND held.released_at IS NOT NULL
        JOIN LATERAL (SELECT min(rank) AS rank FROM scheduler_allocation WHERE attempt_id = attempt.id) first ON true
        LEFT JOIN scheduler_task task ON task.attempt_id = held.attempt_id AND task.rank = held.rank
    WHERE attempt.ended_at >= %(begin)s AND attempt.ended_at < %(end)s
    GROUP BY attempt.job_id
) tries JOIN scheduler_job job ON job.number = tries.number
    JOIN scheduler_jobrequest request ON request.number = tries.number
    JOIN scheduler_queue queue ON queue.id = job.queue_id
    JOIN accounts_project project ON project.id = job.project_id JOIN accounts_user person ON person.id = job.user_id
WHERE (%(everything)s OR job.project_id = ANY(%(projects)s)) AND (%(person)s = '' OR person.username = %(person)s)
    AND (%(job)s::bigint IS NULL OR job.number = %(job)s)
ORDER BY {{sort}} DESC, job.number DESC
"""  # noqa: S608  names of columns of ours


@dataclass(frozen=True, slots=True)
class JobUse:
    """What a job asked for and what it used, over all its tries that ended in these days.

    Amounts times seconds; `cpu_measured` is the part of the CPU time given whose use was measured.
    """

    number: int
    name: str
    project: str
    user: str
    state: str
    tries: int
    seconds: int
    asked_seconds: int | None
    unused_seconds: int | None
    gpu_milli_seconds: int
    lost_gpu_milli_seconds: int
    gpu_measured: int | None
    gpu_used: int | None
    idle_gpu_milli_seconds: int
    cpu_milli_seconds: int
    cpu_measured: int | None
    cpu_used: int | None
    idle_cpu_milli_seconds: int
    memory_mib: int
    peak_memory_mib: int | None
    idle_memory_mib_seconds: int

    @property
    def time_percent(self) -> float | None:
        return _percent(self.seconds, self.asked_seconds)

    @property
    def gpu_percent(self) -> float | None:
        """Of the GPU time that was watched; a GPU works when a kernel of the job runs on it."""
        return _percent(self.gpu_used, self.gpu_measured)

    @property
    def cpu_percent(self) -> float | None:
        """Of the CPU time that was given; more than 100 where a node does not hold a job to its cores."""
        return _percent(self.cpu_used, self.cpu_measured)

    @property
    def memory_percent(self) -> float | None:
        return _percent(self.peak_memory_mib, self.memory_mib)

    @property
    def advice(self) -> tuple[str, ...]:
        """What would have been enough, where much less was."""
        if self.seconds < _SHORT_SECONDS:
            return ()
        found = []
        each, limit = self.seconds // self.tries, (self.asked_seconds or 0) // self.tries
        if limit > 3600 and self.time_percent is not None and self.time_percent < 50:
            found.append(
                f"Ran for {_span(each)} of a {_span(limit)} time limit: request about {_span(each * 3 // 2)}."
            )
        if (
            self.cpu_percent is not None
            and self.cpu_percent < 50
            and self.cpu_milli_seconds > 1000 * self.seconds
        ):
            found.append(f"Used {self.cpu_percent:.0f} % of the allocated cores: request fewer.")
        gpu = self.gpu_percent
        if gpu is not None and gpu < _IDLE_GPU_PERCENT:
            found.append(f"GPUs were busy {gpu:.0f} % of the time: request fewer, or a share of one.")
        peak = self.peak_memory_mib
        if peak is not None and self.memory_mib >= 2048 and peak < self.memory_mib // 2:
            enough = max(-(-peak * 5 // 4 // 1024), 1)
            found.append(
                f"Peak memory {peak / 1024:.1f} of {self.memory_mib / 1024:.0f} GiB: request {enough} GiB."
            )
        return tuple(found)


#: The columns of a file, in this order; percentages after what they are made of.
COLUMNS: Final = (
    *(field.name for field in fields(JobUse)),
    "time_percent",
    "gpu_percent",
    "cpu_percent",
    "memory_percent",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """Which jobs: those with tries that ended from one day until another."""

    user: User
    first: date
    until: date
    project: Project | None = None
    person: str = ""
    job: int | None = None
    sort: str = "gpu"

    def statement(self) -> tuple[str, dict[str, Any]]:
        everything = permissions.sees_everything(self.user) and self.project is None
        mine = [self.project.pk] if self.project else []
        if not everything and self.project is None:
            mine = list(visible_projects(self.user).order_by().values_list("pk", flat=True))
        words = {
            "begin": _midnight(self.first), "end": _midnight(self.until), "everything": everything,
            "projects": mine, "person": self.person, "job": self.job,
        }  # fmt: skip
        return _SQL.replace("{sort}", f"{SORTS[self.sort]} DESC NULLS LAST, cpu_milli_seconds"), words


def job_uses(asked: Asked, *, limit: int) -> list[JobUse]:
    """The `count` most wasteful jobs."""
    sql, words = asked.statement()
    with connection.cursor() as cursor:
        cursor.execute(f"{sql} LIMIT %(limit)s", words | {"limit": limit})
        return [JobUse(*row) for row in cursor.fetchall()]


_COUNT: Final = """
SELECT count(*) FROM (
    SELECT 1 FROM scheduler_attempt attempt JOIN scheduler_job job ON job.number = attempt.job_id
    WHERE attempt.ended_at >= %(begin)s AND attempt.ended_at < %(end)s
        AND (%(everything)s OR job.project_id = ANY(%(projects)s))
        AND (%(job)s::bigint IS NULL OR job.number = %(job)s)
    GROUP BY attempt.job_id LIMIT %(most)s + 1
) jobs
"""


def exported_job_uses(asked: Asked) -> Iterator[tuple[Any, ...]]:
    """All of them for a file; raises InvalidInput, before any is read, where they could be more than one file has."""
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, asked.statement()[1] | {"most": settings.MUSTER_MAX_EXPORT_ROWS})
        check_export(cursor.fetchone()[0], way_out=FEWER_ROWS)
    return all_job_uses(asked)


def all_job_uses(asked: Asked) -> Iterator[tuple[Any, ...]]:
    """All of them as rows of `COLUMNS`, read as they are needed; what may be seen is settled before the first."""
    return _read_all(*asked.statement())


def _read_all(sql: str, words: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    with transaction.atomic(), connection.chunked_cursor() as cursor:
        cursor.execute(sql, words)
        while rows := cursor.fetchmany(CHUNK):
            for row in rows:
                use = JobUse(*row)
                yield (*row, use.time_percent, use.gpu_percent, use.cpu_percent, use.memory_percent)


def _percent(used: float | None, asked: float | None) -> float | None:
    return round(100 * float(used) / float(asked), 1) if used is not None and asked else None


def _span(seconds: int) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} hours".replace(".0 ", " ")
    return f"{max(seconds // 60, 1)} minute{'' if seconds < 120 else 's'}"


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def last_days(days: int, now: datetime) -> tuple[date, date]:
    until = now.astimezone(UTC).date() + timedelta(days=1)
    return until - timedelta(days=days), until
