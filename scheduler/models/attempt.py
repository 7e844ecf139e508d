"""One try of a job, its tasks, and what they printed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import Case, F, Q, Value, When

from scheduler.core.lifecycle import (
    LIVE_ATTEMPT,
    LIVE_TASK,
    AttemptState,
    FailureClass,
    StopReason,
    TaskState,
)
from scheduler.models.job_request import choices_of


def in_one_of(states: Collection[str]) -> models.GeneratedField:
    """Whether `state` is one of these: what an index names instead of `state`, which every move changes.

    A move that leaves all indexes alone writes a short version of its row and nothing else (PostgreSQL's heap-only
    tuples).
    """
    return models.GeneratedField(
        expression=Case(
            When(state__in=sorted(str(state) for state in states), then=Value(True)), default=Value(False)
        ),
        output_field=models.BooleanField(),
        db_persist=True,
    )


class AttemptQuerySet(models.QuerySet["Attempt"]):
    def live(self) -> AttemptQuerySet:
        return self.filter(is_live=True)

    def all_live(self) -> AttemptQuerySet:
        """The live ones of all jobs, found by what each of these holds: no index names what the end changes."""
        return self.live().filter(pk__in=Task.objects.filter(released_at=None).values("attempt"))


class Attempt(models.Model):
    """One try; the epoch fences every report about it, and a job has at most one live.

    Triggers see to the last: an attempt is added only once the one before has ended, and does not live again. An index
    of those that live would be named by the end of each, and that end would write them all.
    """

    # References of attempts and tasks are checked by the database once a statement: infra.db.references.
    job = models.ForeignKey(
        "scheduler.Job",
        on_delete=models.CASCADE,
        related_name="attempts",
        db_index=False,
        db_constraint=False,
    )
    epoch = models.PositiveIntegerField()
    backend = models.CharField(max_length=16)
    state = models.CharField(
        max_length=12, choices=[(s.value, s.value) for s in AttemptState], default=AttemptState.ASSIGNED
    )
    #: Why the processes are being stopped.
    stop_reason = models.CharField(
        max_length=20, blank=True, choices=[(s.value, s.value) for s in StopReason]
    )
    stop_asked_at = models.DateTimeField(null=True, blank=True)
    #: The pending job (and its epoch then) that it is stopped for, when the planner stops it.
    stopped_for = models.PositiveBigIntegerField(null=True, blank=True)
    stopped_for_epoch = models.PositiveIntegerField(null=True, blank=True)
    #: When its size was changed last, and the pending job (and its epoch then) that this made room for: the job
    #: itself where it is stopped to start again larger.
    resized_at = models.DateTimeField(null=True, blank=True)
    resized_for = models.PositiveBigIntegerField(null=True, blank=True)
    resized_for_epoch = models.PositiveIntegerField(null=True, blank=True)
    #: When its job got another time limit while it ran: its agents are sent that limit.
    limit_changed_at = models.DateTimeField(null=True, blank=True)
    #: Between the notice and the end; null takes the site's.
    grace_seconds = models.PositiveIntegerField(null=True, blank=True)
    #: Set while the attempt is being suspended or is suspended.
    suspend_asked_at = models.DateTimeField(null=True, blank=True)
    suspended_at = models.DateTimeField(null=True, blank=True)
    #: Earlier suspended time, which does not count for the time limit.
    suspended_ms = models.BigIntegerField(default=0, db_default=0)
    #: As it started without a time limit: how long it was expected to run, for planning only, and from how many
    #: earlier runs; 0 = from none, by UNLIMITED_JOB_SECONDS. null: it has a limit.
    predicted_seconds = models.PositiveBigIntegerField(null=True, blank=True)
    predicted_from_runs = models.PositiveSmallIntegerField(null=True, blank=True)
    #: What the backend calls it, for those that have names of their own.
    backend_ref = models.CharField(max_length=200, blank=True)
    #: The number of the cycle that started it, whose row goes before this one.
    cycle_id = models.PositiveBigIntegerField(null=True, blank=True)
    scheduled_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    exit_signal = models.PositiveSmallIntegerField(null=True, blank=True)
    end_text = models.CharField(max_length=300, blank=True)
    #: Why it did not succeed, as a class.
    failure_class = models.CharField(
        max_length=16, blank=True, choices=choices_of(FailureClass), default="", db_default=""
    )
    is_live = in_one_of(LIVE_ATTEMPT)

    objects = AttemptQuerySet.as_manager()

    class Meta:
        ordering = ["job_id", "epoch"]
        indexes = [
            models.Index(
                fields=["stopped_for"], name="attempt_stopped_for", condition=Q(stopped_for__isnull=False)
            ),
            models.Index(
                fields=["resized_for"], name="attempt_resized_for", condition=Q(resized_for__isnull=False)
            ),
            # What ended lately is looked at again; what was used in a month, too.
            BrinIndex(fields=["ended_at"], name="attempt_by_end", pages_per_range=16, autosummarize=True),
            # How often attempts failed as what; has only those.
            models.Index(fields=["failure_class"], name="attempt_failed_as", condition=~Q(failure_class="")),
            models.Index(
                fields=["stop_asked_at"],
                name="attempt_interrupted",
                condition=Q(stop_reason__in=["preempted", "evicted", "drained"]),
            ),
        ]
        constraints = [
            models.UniqueConstraint(name="attempt_epoch_once", fields=["job", "epoch"]),
            models.CheckConstraint(
                name="attempt_state_known", condition=Q(state__in=[s.value for s in AttemptState])
            ),
        ]

    def __str__(self) -> str:
        return f"attempt {self.epoch} of job {self.job_id}"


class Task(models.Model):
    """One of the attempt's equal processes: its rank, where it is, what it holds there, how it ended.

    What it holds is also read as an `Allocation`.
    """

    attempt = models.ForeignKey(
        Attempt, on_delete=models.CASCADE, related_name="tasks", db_index=False, db_constraint=False
    )
    rank = models.PositiveIntegerField()
    node = models.ForeignKey(
        "scheduler.Node", on_delete=models.PROTECT, related_name="tasks", db_index=False, db_constraint=False
    )
    state = models.CharField(
        max_length=12, choices=[(s.value, s.value) for s in TaskState], default=TaskState.ASSIGNED
    )
    #: The processes are suspended, as the backend reported last.
    suspended = models.BooleanField(default=False, db_default=False)
    #: When somebody asked for a checkpoint, until its node has heard of that.
    checkpoint_asked_at = models.DateTimeField(null=True, blank=True)
    pid = models.PositiveIntegerField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    exit_signal = models.PositiveSmallIntegerField(null=True, blank=True)
    end_text = models.CharField(max_length=300, blank=True)
    #: A class of failure that its node knows; the exit alone says the others.
    failure_class = models.CharField(
        max_length=16, blank=True, choices=choices_of(FailureClass), default="", db_default=""
    )
    #: The last results of its job's probes: [{"number", "ok", "failures", "text", "at"}]; null before the first.
    probe_results = models.JSONField(null=True, blank=True)
    peak_memory_mib = models.BigIntegerField(null=True, blank=True)
    cpu_time_ms = models.BigIntegerField(null=True, blank=True)
    #: Of its GPUs together: the time they were watched while it held them, and of it the time they worked for it.
    gpu_watched_ms = models.BigIntegerField(null=True, blank=True)
    gpu_busy_ms = models.BigIntegerField(null=True, blank=True)
    peak_gpu_memory_mib = models.BigIntegerField(null=True, blank=True)
    #: Total bytes of each stream, known once the stream has ended.
    stdout_bytes = models.BigIntegerField(null=True, blank=True)
    stderr_bytes = models.BigIntegerField(null=True, blank=True)
    is_live = in_one_of(LIVE_TASK)

    # What it holds on its node from `held_at` to `released_at`: the amounts that are charged.
    cpu_millis = models.BigIntegerField(default=0, db_default=0)
    #: CPUs released while the job is suspended; `cpu_millis` is what it holds.
    suspended_cpu_millis = models.BigIntegerField(default=0, db_default=0)
    memory_mib = models.BigIntegerField(default=0, db_default=0)
    storage_mib = models.BigIntegerField(default=0, db_default=0)
    #: Of all its devices together: 1000 a whole GPU, less for a share of one.
    gpu_millis = models.BigIntegerField(default=0, db_default=0)
    device_ids = ArrayField(models.BigIntegerField(), default=list, db_default=[])
    numa_domain = models.PositiveSmallIntegerField(null=True, blank=True)
    extras = models.JSONField(default=dict, db_default={})
    held_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["attempt_id", "rank"]
        indexes = [
            # What is held on a node, of which what lives there is a part.
            models.Index(fields=["node"], name="task_held_on_node", condition=Q(released_at__isnull=True)),
        ]
        constraints = [
            models.UniqueConstraint(name="task_rank_once", fields=["attempt", "rank"]),
            models.CheckConstraint(
                name="allocation_not_negative",
                condition=Q(
                    cpu_millis__gte=0,
                    suspended_cpu_millis__gte=0,
                    memory_mib__gte=0,
                    storage_mib__gte=0,
                    gpu_millis__gte=0,
                ),
            ),
            models.CheckConstraint(
                name="allocation_ends_after_start",
                condition=Q(released_at__isnull=True) | Q(released_at__gte=F("held_at")),
            ),
            models.CheckConstraint(
                name="task_state_known", condition=Q(state__in=[s.value for s in TaskState])
            ),
        ]

    def __str__(self) -> str:
        return f"task {self.rank} of {self.attempt}"

    @property
    def gpu_percent(self) -> float | None:
        """Of the time that its GPUs were watched."""
        if not self.gpu_watched_ms or self.gpu_busy_ms is None:
            return None
        return round(100 * self.gpu_busy_ms / self.gpu_watched_ms, 1)


#: The most points that the usage of an attempt has.
USAGE_POINTS: Final = 120


def _numbers() -> ArrayField[list[int], list[int]]:
    return ArrayField(models.BigIntegerField(), default=list)


class AttemptUsage(models.Model):
    """What the tasks of an attempt used while they ran: at most `USAGE_POINTS` points of equal length.

    Point n covers the seconds from n * `step_seconds` since the start of the attempt. `samples` says how many samples
    a point has; CPU and GPU utilisation are sums of these, memory is the highest of them.
    """

    attempt = models.OneToOneField(Attempt, primary_key=True, on_delete=models.CASCADE, related_name="usage")
    step_seconds = models.PositiveIntegerField()
    samples = _numbers()
    cpu_millis = _numbers()
    memory_mib = _numbers()
    #: Those of the samples that know a utilisation of GPUs; empty where none does.
    gpu_samples = _numbers()
    gpu_percent = _numbers()
    gpu_memory_mib = _numbers()

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="attempt_usage_bounded",
                condition=Q(
                    step_seconds__gt=0,
                    samples__len__lte=USAGE_POINTS,
                    cpu_millis__len=F("samples__len"),
                    memory_mib__len=F("samples__len"),
                    gpu_samples__len__lte=F("samples__len"),
                    gpu_percent__len=F("gpu_samples__len"),
                    gpu_memory_mib__len=F("gpu_samples__len"),
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"usage of {self.attempt_id}"


class Suspension(models.Model):
    """One suspension of an attempt: the other job, its duration, and what it released."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="suspensions")
    #: The pending job, and its epoch then.
    for_job = models.PositiveBigIntegerField()
    for_epoch = models.PositiveIntegerField()
    cpu_millis = models.BigIntegerField()
    asked_at = models.DateTimeField()
    #: null as long as its processes have not stopped, and if they ended before.
    starts_at = models.DateTimeField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["attempt_id", "id"]
        indexes = [models.Index(fields=["asked_at"], name="suspension_asked")]
        constraints = [
            models.CheckConstraint(
                name="suspension_ends_after_start",
                condition=Q(ends_at=None) | (Q(starts_at__isnull=False) & Q(ends_at__gte=F("starts_at"))),
            ),
            models.UniqueConstraint(
                name="suspension_one_open",
                fields=["attempt"],
                condition=Q(starts_at__isnull=False, ends_at=None),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.attempt} suspended for job {self.for_job}"


class LogStream(models.TextChoices):
    STDOUT = "stdout", "stdout"
    STDERR = "stderr", "stderr"


class LogChunk(models.Model):
    """A piece of what a task printed, at its byte offset; sending one again changes nothing."""

    id = models.BigAutoField(primary_key=True)
    task = models.ForeignKey(Task, on_delete=models.CASCADE, related_name="log_chunks", db_index=False)
    stream = models.CharField(max_length=6, choices=LogStream)
    offset = models.BigIntegerField()
    length = models.IntegerField()
    data = models.BinaryField()
    received_at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(name="log_chunk_once", fields=["task", "stream", "offset"]),
            models.CheckConstraint(name="log_chunk_has_bytes", condition=Q(length__gt=0, offset__gte=0)),
        ]

    def __str__(self) -> str:
        return f"{self.stream} of task {self.task_id} at {self.offset}"
