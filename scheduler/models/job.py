"""What a person submits, and what it waits for."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any, Final

from django.conf import settings
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Upper
from django.utils import timezone

from scheduler.core.lifecycle import (
    ACTIVE,
    PENDING,
    PUBLIC,
    TERMINAL,
    JobState,
    PackLevel,
    PublicState,
    RestartPolicy,
    TaskFailure,
)
from scheduler.core.reason_codes import ReasonCategory, ReasonCode
from scheduler.core.snapshot.constraints import NUMA_WORDS


class JobQuerySet(models.QuerySet["Job"]):
    def pending(self) -> JobQuerySet:
        return self.filter(state__in=PENDING)

    def queued(self) -> JobQuerySet:
        """What the planner looks at."""
        return self.filter(state=JobState.QUEUED)

    def active(self) -> JobQuerySet:
        """Jobs that hold resources."""
        return self.filter(state__in=ACTIVE)

    def finished(self) -> JobQuerySet:
        return self.filter(state__in=TERMINAL)

    def in_public_states(self, states: list[PublicState] | list[str]) -> JobQuerySet:
        wanted = {PublicState(s) for s in states}
        return self.filter(state__in=[inner for inner, outer in PUBLIC.items() if outer in wanted])

    def in_projects(self, keys: Collection[int]) -> JobQuerySet:
        """Of these projects; the newest `count` of a few projects are looked for in each of them.

        In one go the database expects all of them to have as many of each state as the others have: where they
        have none it would look through everybody's jobs.
        """
        found = self.filter(project_id__in=list(keys))
        found._arms = tuple(keys) if 1 < len(keys) <= MOST_ARMS else ()
        return found

    _arms: tuple[int, ...] = ()

    def _clone(self) -> JobQuerySet:
        clone: JobQuerySet = super()._clone()  # type: ignore[misc]
        clone._arms = self._arms
        return clone

    def __getitem__(self, wanted: Any) -> Any:
        if not self._arms or not isinstance(wanted, slice) or wanted.stop is None or wanted.step is not None:
            return super().__getitem__(wanted)
        query: Any = self.query
        if self._result_cache is not None or query.order_by not in _BY_NUMBER:
            return super().__getitem__(wanted)
        if query.is_sliced or query.combinator or query.distinct:
            return super().__getitem__(wanted)
        whole = self.all()
        whole._arms = ()
        alone = whole.prefetch_related(None)
        if self._fields is None:  # type: ignore[attr-defined]  # values were not asked for
            alone = alone.select_related(None)
        arms = [alone.filter(project_id=key).values("number")[: wanted.stop] for key in self._arms]
        return whole.filter(number__in=arms[0].union(*arms[1:], all=True))[wanted]

    def with_reason(self) -> JobQuerySet:
        """Only these can have a reason to wait."""
        return self.filter(state__in=NOT_OVER)

    def called(self, text: str) -> JobQuerySet:
        """Whose names contain this, in any case."""
        return self.matching(Q(name__icontains=text))

    def matching(self, what: Q, *, over: Q | None = None) -> JobQuerySet:
        """Those that this holds for, where an index of it has only the jobs that are over: words and labels.

        Such an index would have to be kept up with each move of each job. Where few match, they are found
        through it; where many do, the newest are found soon by looking at one after the other.
        `over` is what holds for jobs that are over in the words of their index.
        """
        ended = self.filter(over or what, state__in=OVER).order_by()
        numbers = list(ended.values_list("number", flat=True)[: FEW + 1])
        if len(numbers) > FEW:
            return self.filter(what)
        found = self.filter(Q(number__in=numbers) | (Q(state__in=NOT_OVER) & what))
        found._arms = ()  # so few are found at once in all projects
        return found


#: Projects of one person whose jobs are looked for in each by itself.
MOST_ARMS: Final = 20
_BY_NUMBER: Final = (("-number",), ("number",), ("-pk",), ("pk",))
#: In the order of the conditions of their indexes.
OVER: Final = sorted(state.value for state in TERMINAL)
NOT_OVER: Final = sorted(state.value for state in set(JobState) - TERMINAL)
#: This number of rows is read one by one in a few milliseconds.
FEW: Final = 2000


_IS_OVER: Final = Q(state__in=OVER)


def _choices(enum: type) -> list[tuple[str, str]]:
    return [(member.value, member.value) for member in enum]  # type: ignore[attr-defined]


class WaitEnd(models.TextChoices):
    """What becomes of a job that has waited for others as long as it would."""

    FAIL = "fail", "fail"
    START = "start", "start anyway"


class Job(models.Model):
    """A request, a command, a queue, a project.

    Amounts are per task. `number` is the small integer people say and every table refers to; `uuid` is the
    `id` of the API. `generation` rises with each change that scheduling cares about.
    """

    number = models.BigAutoField(primary_key=True)
    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=200)
    # No index of their own where one of Meta.indexes begins with the same column: each costs every insert.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs", db_index=False
    )
    project = models.ForeignKey(
        "accounts.Project", on_delete=models.PROTECT, related_name="jobs", db_index=False
    )
    queue = models.ForeignKey(
        "scheduler.Queue", on_delete=models.PROTECT, related_name="jobs", db_index=False
    )
    job_type = models.CharField(max_length=32, default="batch")

    # What runs: one of the two is set.
    command = models.TextField(blank=True)
    script = models.TextField(blank=True)
    env = models.JSONField(default=dict, blank=True)
    working_dir = models.CharField(max_length=1024, blank=True)

    # How much, per task.
    tasks = models.PositiveIntegerField(default=1)
    nodes = models.PositiveIntegerField(null=True, blank=True)
    tasks_per_node = models.PositiveIntegerField(null=True, blank=True)
    cpu_millis = models.BigIntegerField(default=1000)
    memory_mib = models.BigIntegerField(default=0)
    storage_mib = models.BigIntegerField(default=0)
    gpus = models.PositiveIntegerField(default=0)
    #: A share of one GPU in thousandths; 0 takes each GPU whole.
    gpu_millis = models.PositiveIntegerField(default=0)
    gpu_model = models.CharField(max_length=80, blank=True)
    #: A named slice of one device, such as 1g.10gb; `gpu_millis` is then what it counts for.
    gpu_slice = models.CharField(max_length=24, blank=True)
    extras = models.JSONField(default=dict, blank=True)
    #: What a task may use at most; null = whatever is idle on its node.
    cpu_limit_millis = models.BigIntegerField(null=True, blank=True)
    memory_limit_mib = models.BigIntegerField(null=True, blank=True)
    #: "one": CPUs, memory and devices of each task are of one NUMA domain, or it waits.
    numa = models.CharField(
        max_length=8,
        choices=[(word, word) for word in NUMA_WORDS],
        default=NUMA_WORDS[0],
        db_default="prefer",
    )
    time_limit_seconds = models.PositiveBigIntegerField(null=True, blank=True)

    # Where.
    node_selector = models.JSONField(default=dict, blank=True)
    tolerations = models.JSONField(default=list, blank=True)
    affinity = models.JSONField(default=dict, blank=True)
    labels = models.JSONField(default=dict, blank=True)

    # When, and what then.
    priority = models.PositiveSmallIntegerField(default=50)
    #: What an operator has added to its effective priority, until when; `priority` stays as it was asked for.
    boost = models.PositiveSmallIntegerField(default=0, db_default=0)
    boost_until_at = models.DateTimeField(null=True, blank=True)
    begin_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True)
    restart_policy = models.CharField(
        max_length=12, choices=_choices(RestartPolicy), default=RestartPolicy.INTERRUPTED
    )
    max_restarts = models.PositiveSmallIntegerField(default=3)
    preemptible = models.BooleanField(default=True)

    # How long it waits for others, and what then.
    depends_until_at = models.DateTimeField(null=True, blank=True)
    depends_on_timeout = models.CharField(max_length=5, choices=WaitEnd, default=WaitEnd.FAIL)

    # A gang: how few of its tasks are enough, how near to each other, and what when one of them fails.
    #: It may start with as few as these; null = with all of them.
    min_tasks = models.PositiveIntegerField(null=True, blank=True)
    #: Its size may change while it runs.
    elastic = models.BooleanField(default=False)
    on_task_failure = models.CharField(max_length=8, choices=_choices(TaskFailure), default=TaskFailure.FAIL)
    pack = models.CharField(max_length=4, blank=True, choices=_choices(PackLevel))
    pack_required = models.BooleanField(default=False)
    #: How long nodes are kept for it while it gathers them; null = it does not gather.
    assembly_timeout_seconds = models.PositiveIntegerField(null=True, blank=True)
    assembly_until_at = models.DateTimeField(null=True, blank=True)
    assembly_node_ids = models.JSONField(default=list, blank=True)
    #: Times that it had to give its nodes back.
    assemblies_failed = models.PositiveSmallIntegerField(default=0)

    #: Its last checkpoint, as it reported it: work before it is not lost.
    saved_at = models.DateTimeField(null=True, blank=True)
    saved_path = models.CharField(max_length=1024, blank=True)

    # A member of an array: each element is a job of its own.
    array_id = models.UUIDField(null=True, blank=True)
    array_index = models.PositiveIntegerField(null=True, blank=True)
    array_max_running = models.PositiveIntegerField(null=True, blank=True)

    state = models.CharField(max_length=16, choices=_choices(JobState), default=JobState.CREATED)
    #: Who holds it, when it is held: "user" or "admin".
    held_by = models.CharField(max_length=8, blank=True)
    reason_code = models.CharField(max_length=32, choices=_choices(ReasonCode), blank=True)
    reason_category = models.CharField(max_length=8, choices=_choices(ReasonCategory), blank=True)
    reason_text = models.TextField(blank=True)
    reason_details = models.JSONField(default=dict, blank=True)
    reason_at = models.DateTimeField(null=True, blank=True)
    expected_start_at = models.DateTimeField(null=True, blank=True)

    #: The epoch of its latest attempt; strictly rises.
    epoch = models.PositiveIntegerField(default=0)
    exit_code = models.IntegerField(null=True, blank=True)
    exit_signal = models.PositiveSmallIntegerField(null=True, blank=True)
    #: Why it ended as it did, in words.
    end_text = models.CharField(max_length=300, blank=True)

    created_at = models.DateTimeField()
    eligible_at = models.DateTimeField(null=True, blank=True)
    scheduled_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    completed_at = models.DateTimeField(null=True, blank=True)
    #: web, api, sbatch, cli: the door it came through.
    submitted_via = models.CharField(max_length=8, default="api")
    generation = models.PositiveIntegerField(default=1)

    objects = JobQuerySet.as_manager()

    class Meta:
        ordering = ["-number"]
        indexes = [
            # What the planner looks at.
            models.Index(
                fields=["queue", "number"], name="job_in_line", condition=Q(state__in=["queued", "reserved"])
            ),
            models.Index(fields=["state", "-number"], name="job_by_state"),
            models.Index(fields=["user", "-number"], name="job_by_user"),
            models.Index(fields=["project", "-number"], name="job_by_project"),
            models.Index(fields=["queue", "-number"], name="job_by_queue"),
            models.Index(fields=["-created_at", "-number"], name="job_by_age"),
            models.Index(
                Upper("gpu_model"), F("number").desc(), name="job_by_gpu_model", condition=~Q(gpu_model="")
            ),
            models.Index(fields=["job_type", "-number"], name="job_by_type", condition=~Q(job_type="batch")),
            # Of jobs that are over there may be millions. These are written once, when a job ends.
            *(
                models.Index(fields=[of, "state", "-number"], name=f"job_over_by_{of}", condition=_IS_OVER)
                for of in ("user", "project", "queue")
            ),
            GinIndex(
                OpClass(Upper("name"), name="gin_trgm_ops"), name="job_over_by_name", condition=_IS_OVER
            ),
            GinIndex(fields=["labels"], name="job_over_by_label", condition=_IS_OVER & ~Q(labels={})),
        ]
        constraints = [
            models.CheckConstraint(
                name="job_state_known", condition=Q(state__in=[s.value for s in JobState])
            ),
            models.CheckConstraint(name="job_priority_range", condition=Q(priority__lte=100)),
            models.CheckConstraint(
                name="job_boost_ends", condition=Q(boost=0) | Q(boost__lte=100, boost_until_at__isnull=False)
            ),
            models.CheckConstraint(name="job_has_tasks", condition=Q(tasks__gte=1)),
            models.CheckConstraint(
                name="job_amounts_not_negative",
                condition=Q(cpu_millis__gte=0) & Q(memory_mib__gte=0) & Q(storage_mib__gte=0),
            ),
            models.CheckConstraint(
                name="job_limits_not_below_requests",
                condition=(Q(cpu_limit_millis=None) | Q(cpu_limit_millis__gte=F("cpu_millis")))
                & (Q(memory_limit_mib=None) | Q(memory_limit_mib__gte=F("memory_mib"))),
            ),
            models.CheckConstraint(name="job_numa_known", condition=Q(numa__in=NUMA_WORDS)),
            models.CheckConstraint(
                name="job_share_of_one_gpu",
                condition=Q(gpu_millis=0) | (Q(gpus=1) & Q(gpu_millis__lt=1000)),
            ),
            models.CheckConstraint(
                name="job_runs_one_thing",
                condition=~Q(command="", script="") & (Q(command="") | Q(script="")),
            ),
            models.CheckConstraint(
                name="job_ended_has_time",
                condition=~Q(state__in=[s.value for s in sorted(TERMINAL)]) | Q(completed_at__isnull=False),
            ),
            models.CheckConstraint(
                name="job_min_tasks_within", condition=Q(min_tasks=None) | Q(min_tasks__range=(1, F("tasks")))
            ),
            models.UniqueConstraint(name="array_index_once", fields=["array_id", "array_index"]),
        ]

    def __str__(self) -> str:
        return f"{self.number} {self.name}"

    @property
    def public_state(self) -> PublicState:
        return PUBLIC[JobState(self.state)]

    @property
    def boost_now(self) -> int:
        """What its boost adds at this moment."""
        ends = self.boost_until_at
        return self.boost if self.boost and ends is not None and ends > timezone.now() else 0

    @property
    def likely_start(self) -> Any:
        """The StartForecast of a waiting job if its row brought it along; asks the database for nothing."""
        if self.state != JobState.QUEUED or not Job.forecast.is_cached(self):
            return None
        return getattr(self, "forecast", None)

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def is_pending(self) -> bool:
        return self.state in PENDING

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE


class DependencyKind(models.TextChoices):
    """What must become of the other job, or that data are ready."""

    COMPLETION = "completion", "ends (any result)"
    SUCCESS = "success", "completes"
    FAILURE = "failure", "fails"
    CHECKPOINT = "checkpoint", "reports a checkpoint"
    DATA = "data", "are ready"


class JobDependency(models.Model):
    """One job waits for another, or for data of its project.

    Rows of one `group` belong together: `need` of them are enough. In group 0 each has to hold.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="dependencies", db_index=False)
    on = models.ForeignKey(Job, on_delete=models.CASCADE, null=True, related_name="dependants")
    #: The name of a dataset, for kind `data`.
    data = models.CharField(max_length=200, blank=True)
    kind = models.CharField(max_length=12, choices=DependencyKind, default=DependencyKind.SUCCESS)
    group = models.PositiveSmallIntegerField(default=0)
    need = models.PositiveSmallIntegerField(default=1)
    #: null while open, True when it holds, False when it never will.
    satisfied = models.BooleanField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="dependency_once", fields=["job", "on", "kind", "group"]),
            models.UniqueConstraint(
                name="dependency_on_data_once", fields=["job", "data", "group"], condition=~Q(data="")
            ),
            models.CheckConstraint(name="dependency_not_on_itself", condition=~Q(job=F("on"))),
            models.CheckConstraint(
                name="dependency_on_one_thing",
                condition=Q(on__isnull=False, data="") | (Q(on__isnull=True, kind="data") & ~Q(data="")),
            ),
        ]
        indexes = [
            models.Index(
                fields=["data"], name="dependency_open_data", condition=~Q(data="") & Q(satisfied=None)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} after {self.kind} of {self.on_id or self.data}"


class Dataset(models.Model):
    """Data that jobs of a project wait for: somebody says that they are ready, and where."""

    project = models.ForeignKey("accounts.Project", on_delete=models.CASCADE, related_name="datasets")
    name = models.CharField(max_length=200)
    path = models.CharField(max_length=1024, blank=True)
    #: null once it was withdrawn.
    ready_at = models.DateTimeField(null=True, blank=True)
    declared_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(name="dataset_once", fields=["project", "name"]),
        ]

    def __str__(self) -> str:
        return self.name
