"""What a person asked for with a job."""

from __future__ import annotations

import uuid
from enum import StrEnum
from typing import Any, Final

from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.functions import Upper

from scheduler.core.lifecycle import DeadlineAction, PackLevel, RestartPolicy, TaskFailure
from scheduler.core.snapshot.constraints import NUMA_WORDS


def choices_of(enum: type[StrEnum]) -> list[tuple[str, str]]:
    """The members of a closed list, as a column takes them."""
    return [(member.value, member.value) for member in enum]


class WaitEnd(models.TextChoices):
    """What becomes of a job that has waited for others as long as it would."""

    FAIL = "fail", "fail"
    START = "start", "start anyway"


OPEN_MODES: Final = ("truncate", "append")


class HashOfText(Func):
    """PostgreSQL's hash of a text: four bytes that stand for it in an index, however long it is."""

    function = "hashtext"
    arity = 1
    output_field = models.IntegerField()


@models.CharField.register_lookup
class OneOf(models.Lookup):
    """`name__one_of=[...]`: as `__in`, with all of them in one parameter, by an index of `HashOfText`."""

    lookup_name = "one_of"

    def get_prep_lookup(self) -> list[str]:
        return list(self.rhs)

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        column, parameters = self.process_lhs(compiler, connection)
        hashes = "ARRAY(SELECT hashtext(word) FROM unnest(%s::text[]) AS word)"
        sql = f"hashtext({column}) = ANY({hashes}) AND {column} = ANY(%s::text[])"
        return f"({sql})", (*parameters, self.rhs, *parameters, self.rhs)


class JobName(models.Model):
    """A name that some job has or had: what a part of a name is looked for in, each name once.

    The database adds the names of new requests by itself (migration 0058). Retention deletes those that no request
    has any more. Jobs of everybody share these rows, so nothing but the numbers of jobs is read by them.
    """

    name = models.CharField(max_length=200)

    class Meta:
        ordering = ["name"]
        indexes = [GinIndex(OpClass(Upper("name"), name="gin_trgm_ops"), name="job_name_by_part")]
        constraints = [models.UniqueConstraint(name="job_name_once", fields=["name"])]

    def __str__(self) -> str:
        return self.name


class JobRequest(models.Model):
    """The request of a job. Amounts are per task.

    `number` is the small integer people say and every table refers to; `uuid` is the `id` of the API. Its `Job`,
    with the same number, has whose it is and all that moves, so that no move of a job writes this row again or
    touches an index of it: only a person who changes the request does. A trigger keeps what runs as it was submitted.
    """

    number = models.BigAutoField(primary_key=True)
    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=200)
    job_type = models.CharField(max_length=32, default="batch")

    # What runs: one of the two is set.
    command = models.TextField(blank=True)
    script = models.TextField(blank=True)
    env = models.JSONField(default=dict, blank=True)
    #: Which secrets its tasks get, by name, and where: never a value.
    secrets = models.JSONField(default=list, blank=True, db_default=[])
    working_dir = models.CharField(max_length=1024, blank=True)
    #: The `FolderUpload` that its working folder begins with.
    upload = models.UUIDField(null=True, blank=True)
    #: The container image that its tasks run in; null = none, which costs a row nothing.
    image = models.CharField(max_length=255, null=True, blank=True)

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

    # What becomes of what it writes.
    #: Patterns of files in its working folder that are stored beyond the node.
    artifacts = models.JSONField(default=list, blank=True, db_default=[])
    #: Files that its output and its errors also go to, as sbatch names these; empty for none.
    output_path = models.CharField(max_length=1024, blank=True, default="", db_default="")
    error_path = models.CharField(max_length=1024, blank=True, default="", db_default="")
    #: Whether such a file keeps what it has.
    open_mode = models.CharField(
        max_length=8,
        choices=[(word, word) for word in OPEN_MODES],
        default=OPEN_MODES[0],
        db_default="truncate",
    )

    # Where.
    node_selector = models.JSONField(default=dict, blank=True)
    tolerations = models.JSONField(default=list, blank=True)
    affinity = models.JSONField(default=dict, blank=True)
    labels = models.JSONField(default=dict, blank=True)
    #: Constraints that are required until it has waited or failed so often, and preferred from then on.
    relax = models.JSONField(default=list, blank=True, db_default=[])

    # When, and what then.
    priority = models.PositiveSmallIntegerField(default=50)
    begin_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True)
    deadline_action = models.CharField(
        max_length=4, choices=choices_of(DeadlineAction), default=DeadlineAction.NONE, db_default="none"
    )
    #: The reservation that it names: it runs on what that holds, inside its window. Triggers check the few requests
    #: that name one; a foreign key would be looked at for each.
    reservation = models.ForeignKey(
        "scheduler.Reservation", null=True, blank=True, on_delete=models.PROTECT, related_name="requests",
        db_index=False, db_constraint=False,
    )  # fmt: skip
    #: How long it may wait in its queue for its first start; null = for ever.
    wait_limit_seconds = models.PositiveBigIntegerField(null=True, blank=True)
    restart_policy = models.CharField(
        max_length=12, choices=choices_of(RestartPolicy), default=RestartPolicy.INTERRUPTED
    )
    max_restarts = models.PositiveSmallIntegerField(default=3)
    #: Whether it starts again after certain failures; the first that applies decides, before the policy.
    restart_rules = models.JSONField(default=list, blank=True, db_default=[])
    #: The first wait before a restart, and the longest; null takes the default.
    restart_delay_seconds = models.PositiveIntegerField(null=True, blank=True)
    restart_delay_max_seconds = models.PositiveIntegerField(null=True, blank=True)
    #: What is checked while it runs, with all defaults.
    probes = models.JSONField(default=list, blank=True, db_default=[])
    preemptible = models.BooleanField(default=True)
    #: How it is asked for checkpoints, and what is kept of them; empty = it makes none.
    checkpoint = models.JSONField(default=dict, blank=True, db_default={})
    #: The signal that it gets before its time limit, with all defaults; empty = none.
    limit_signal = models.JSONField(default=dict, blank=True, db_default={})

    # How long it waits for others, and what then.
    depends_until_at = models.DateTimeField(null=True, blank=True)
    depends_on_timeout = models.CharField(max_length=5, choices=WaitEnd, default=WaitEnd.FAIL)

    # A gang: how few of its tasks are enough, how near to each other, and what when one of them fails.
    #: It may start with as few as these; null = with all of them.
    min_tasks = models.PositiveIntegerField(null=True, blank=True)
    #: Its size may change while it runs.
    elastic = models.BooleanField(default=False)
    on_task_failure = models.CharField(
        max_length=8, choices=choices_of(TaskFailure), default=TaskFailure.FAIL
    )
    pack = models.CharField(max_length=4, blank=True, choices=choices_of(PackLevel))
    pack_required = models.BooleanField(default=False)
    #: How long nodes are kept for it while it gathers them; null = it does not gather.
    assembly_timeout_seconds = models.PositiveIntegerField(null=True, blank=True)

    # A member of an array: each element is a job of its own.
    array_id = models.UUIDField(null=True, blank=True)
    #: What people call the array: the number of its first element.
    array_number = models.BigIntegerField(null=True, blank=True)
    array_index = models.PositiveIntegerField(null=True, blank=True)
    array_max_running = models.PositiveIntegerField(null=True, blank=True)

    #: What its owner is mailed about, words of Slurm's --mail-type joined by commas; null where it does not say.
    mail_types = models.CharField(max_length=120, null=True, blank=True)

    created_at = models.DateTimeField()
    #: web, api, sbatch, cli: the door it came through.
    submitted_via = models.CharField(max_length=8, default="api")

    class Meta:
        ordering = ["-number"]
        # A row is rarely written again, so each of these costs a job one entry, whatever becomes of it.
        indexes = [
            models.Index(fields=["created_at", "number"], name="requests_by_age"),
            models.Index(
                Upper("gpu_model"),
                F("number").desc(),
                name="request_by_gpu_model",
                condition=~Q(gpu_model=""),
            ),
            models.Index(
                fields=["job_type", "-number"], name="request_by_type", condition=~Q(job_type="batch")
            ),
            # Parts of names are looked for among `JobName`.
            models.Index(HashOfText("name"), name="request_by_whole_name"),
            models.Index(
                fields=["array_number", "array_index"],
                name="request_in_array",
                condition=Q(array_number__isnull=False),
            ),
            GinIndex(fields=["labels"], name="request_by_label", condition=~Q(labels={})),
            models.Index(fields=["upload"], name="request_by_upload", condition=Q(upload__isnull=False)),
            models.Index(
                fields=["deadline_at"], name="request_by_deadline", condition=Q(deadline_at__isnull=False)
            ),
            models.Index(
                fields=["reservation", "-number"],
                name="request_in_reservation",
                condition=Q(reservation__isnull=False),
            ),
            # Waits whose time may be up.
            models.Index(
                fields=["depends_until_at"],
                name="request_waits_until",
                condition=Q(depends_until_at__isnull=False),
            ),
        ]
        constraints = [
            models.CheckConstraint(name="job_priority_range", condition=Q(priority__lte=100)),
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
            models.CheckConstraint(
                name="job_deadline_action_known",
                condition=Q(deadline_action=DeadlineAction.NONE.value)
                | Q(deadline_action=DeadlineAction.END.value, deadline_at__isnull=False),
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
                name="job_min_tasks_within",
                condition=Q(min_tasks=None) | Q(min_tasks__range=(1, F("tasks"))),
            ),
            models.UniqueConstraint(
                name="array_element_once",
                fields=["array_id", "array_index"],
                condition=Q(array_id__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.number} {self.name}"
