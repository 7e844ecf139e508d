"""The use of CPU, memory and GPUs while a job runs: samples of its nodes in, a short series of points out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from django.db import transaction

from infra.errors import NotFound
from scheduler import outbox
from scheduler.models import USAGE_POINTS, Allocation, Attempt, AttemptUsage, Device, Job, Node
from scheduler.state.db.sql import int_array, run

#: The length of a point of a young attempt; the shortest time between two samples of a task.
STEP_SECONDS: Final = 10

_ATTEMPTS: Final = """
SELECT t.id, a.id, a.epoch, a.job_id, a.started_at FROM scheduler_task t
    JOIN scheduler_attempt a ON a.id = t.attempt_id
WHERE t.id = ANY(%s) AND t.node_id = %s AND a.is_live AND a.started_at IS NOT NULL
"""
_COLUMNS: Final = ("samples", "cpu_millis", "memory_mib", "gpu_samples", "gpu_percent", "gpu_memory_mib")
_READ: Final = """
SELECT attempt_id, step_seconds, samples, cpu_millis, memory_mib, gpu_samples, gpu_percent, gpu_memory_mib
FROM scheduler_attemptusage WHERE attempt_id = ANY(%s)
"""
#: Two nodes of a gang write one row, which at first is not there: attempts are locked by their numbers, in order.
_LOCK: Final = """
SELECT pg_advisory_xact_lock(21843, (id %% 2147483647)::int)
FROM (SELECT unnest(%s::bigint[]) AS id ORDER BY 1) AS wanted
"""
_WRITE: Final = """
INSERT INTO scheduler_attemptusage
    (attempt_id, step_seconds, samples, cpu_millis, memory_mib, gpu_samples, gpu_percent, gpu_memory_mib)
SELECT attempt, step, samples::bigint[], cpu::bigint[], memory::bigint[], gpu_samples::bigint[], gpu::bigint[],
    gpu_memory::bigint[]
FROM unnest(%s::bigint[], %s::int[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])
    AS u(attempt, step, samples, cpu, memory, gpu_samples, gpu, gpu_memory)
ON CONFLICT (attempt_id) DO UPDATE SET step_seconds = EXCLUDED.step_seconds, samples = EXCLUDED.samples,
    cpu_millis = EXCLUDED.cpu_millis, memory_mib = EXCLUDED.memory_mib, gpu_samples = EXCLUDED.gpu_samples,
    gpu_percent = EXCLUDED.gpu_percent, gpu_memory_mib = EXCLUDED.gpu_memory_mib
"""


class Sample(NamedTuple):
    """What a task used since the sample before; memory is the most that it held.

    The GPU figures are None where no GPU was measured.
    """

    task: int
    epoch: int
    cpu_millis: int
    memory_mib: int
    gpu_percent: int | None = None
    gpu_memory_mib: int | None = None


@dataclass(slots=True)
class Series:
    """Points of equal length: sums of the samples in each, and of memory the highest."""

    step_seconds: int = STEP_SECONDS
    samples: list[int] = field(default_factory=list)
    cpu_millis: list[int] = field(default_factory=list)
    memory_mib: list[int] = field(default_factory=list)
    gpu_samples: list[int] = field(default_factory=list)
    gpu_percent: list[int] = field(default_factory=list)
    gpu_memory_mib: list[int] = field(default_factory=list)

    def add(self, sample: Sample, *, at_seconds: float) -> None:
        """Add a sample of this time since the start; where there is no room, points are merged by two first."""
        while at_seconds >= USAGE_POINTS * self.step_seconds:
            self._halve()
        point = max(0, int(at_seconds // self.step_seconds))
        _extend(point + 1, self.samples, self.cpu_millis, self.memory_mib)
        self.samples[point] += 1
        self.cpu_millis[point] += sample.cpu_millis
        self.memory_mib[point] = max(self.memory_mib[point], sample.memory_mib)
        if sample.gpu_percent is not None:
            _extend(point + 1, self.gpu_samples, self.gpu_percent, self.gpu_memory_mib)
            self.gpu_samples[point] += 1
            self.gpu_percent[point] += sample.gpu_percent
            self.gpu_memory_mib[point] = max(self.gpu_memory_mib[point], sample.gpu_memory_mib or 0)

    def _halve(self) -> None:
        self.step_seconds *= 2
        for name in ("samples", "cpu_millis", "gpu_samples", "gpu_percent"):
            setattr(self, name, [sum(pair) for pair in _pairs(getattr(self, name))])
        for name in ("memory_mib", "gpu_memory_mib"):
            setattr(self, name, [max(pair) for pair in _pairs(getattr(self, name))])

    def row(self) -> list[int | str]:
        """The step, and each column as PostgreSQL writes an array."""
        return [self.step_seconds, *(int_array(getattr(self, name)) for name in _COLUMNS)]


def _pairs(values: Sequence[int]) -> Iterable[Sequence[int]]:
    return (values[first : first + 2] for first in range(0, len(values), 2))


def _extend(length: int, *columns: list[int]) -> None:
    for column in columns:
        column.extend([0] * (length - len(column)))


# ---------------------------------------------------------------- write


@transaction.atomic
def take_usage(*, node: Node, samples: Sequence[Sample], at: datetime) -> None:
    """Add samples of tasks that run on this node; those of others are dropped.

    Four statements for all of them, and no row of a job, attempt or task is locked.
    """
    rows = run(_ATTEMPTS, [sorted({sample.task for sample in samples}), node.pk])
    attempts = {(task, epoch): (attempt, job, started) for task, attempt, epoch, job, started in rows}
    mine = [(attempts[s.task, s.epoch], s) for s in samples if (s.task, s.epoch) in attempts]
    if not mine:
        return
    wanted = sorted({attempt for (attempt, _, _), _ in mine})
    run(_LOCK, [wanted])
    found = {attempt: Series(*rest) for attempt, *rest in run(_READ, [wanted])}
    for (attempt, _, started), sample in mine:
        series = found.setdefault(attempt, Series())
        series.add(sample, at_seconds=(at - started).total_seconds())
    columns = zip(*((attempt, *found[attempt].row()) for attempt in wanted), strict=True)
    run(_WRITE, [list(column) for column in columns])
    outbox.announce_many({outbox.job_topic(job) for (_, job, _), _ in mine})


# ---------------------------------------------------------------- read


class Point(NamedTuple):
    """A part of the run, by its beginning in seconds since the start; per task, memory of the one with most.

    The GPU figures are None where no GPU was measured.
    """

    at_seconds: int
    cpu_millis: int
    memory_mib: int
    gpu_percent: int | None
    gpu_memory_mib: int | None


@dataclass(frozen=True, slots=True)
class JobUsage:
    """The usage of one attempt beside what each of its tasks was given; no points where nothing was sampled."""

    epoch: int
    started_at: datetime | None
    step_seconds: int
    points: list[Point]
    tasks: int
    cpu_millis: int
    memory_mib: int
    #: Of all GPUs of a task together; 0 where it has none.
    gpu_memory_mib: int

    @property
    def measures_gpus(self) -> bool:
        return any(point.gpu_percent is not None for point in self.points)


def usage_of(job: Job, *, epoch: int | None = None) -> JobUsage | None:
    """The usage of the job's latest attempt, or of this one; None for a job without attempts. Raises NotFound."""
    attempts = Attempt.objects.filter(job=job).select_related("usage").order_by("-epoch")
    attempt = attempts.filter(epoch=epoch).first() if epoch is not None else attempts.first()
    if attempt is None:
        if epoch is not None:
            raise NotFound(message=f"Job {job.said_number} has no attempt {epoch}.")
        return None
    held = list(attempt.allocations.order_by("rank"))
    devices = Device.objects.filter(pk__in=held[0].device_ids) if held and held[0].device_ids else ()
    return usage_of_attempt(job, attempt, held, devices)


def usage_of_attempt(
    job: Job, attempt: Attempt, held: Sequence[Allocation], devices: Iterable[Device]
) -> JobUsage:
    """The usage of an attempt that was read with `select_related("usage")`.

    `held` are its allocations by rank, `devices` at least those of the first.
    """
    row: AttemptUsage | None = getattr(attempt, "usage", None)
    first = held[0] if held else None
    return JobUsage(
        epoch=attempt.epoch,
        started_at=attempt.started_at,
        step_seconds=row.step_seconds if row else STEP_SECONDS,
        points=_points(row) if row else [],
        tasks=len(held),
        cpu_millis=first.cpu_millis if first else job.cpu_millis,
        memory_mib=first.memory_mib if first else job.memory_mib,
        gpu_memory_mib=sum(d.memory_mib for d in devices if first and d.pk in first.device_ids),
    )


def _points(row: AttemptUsage) -> list[Point]:
    """Those that have a sample."""
    points: list[Point] = []
    for number, count in enumerate(row.samples):
        if not count:
            continue
        gpu = row.gpu_samples[number] if number < len(row.gpu_samples) else 0
        points.append(
            Point(
                number * row.step_seconds,
                row.cpu_millis[number] // count,
                row.memory_mib[number],
                row.gpu_percent[number] // gpu if gpu else None,
                row.gpu_memory_mib[number] if gpu else None,
            )
        )
    return points
