"""How jobs and what belongs to them look in answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from rest_framework import serializers

from infra.times_in_text import written
from quotas.core.resources import MIB
from scheduler.api.base import MAX_REASON
from scheduler.api.schema import serializer_of
from scheduler.core.lifecycle import (
    DeadlineAction,
    FailureClass,
    PackLevel,
    PublicState,
    RestartPolicy,
    TaskFailure,
)
from scheduler.core.qos import QOS_WORDS
from scheduler.core.reason_codes import ReasonCategory, ReasonCode
from scheduler.core.reasons.causes import CauseCode, cause_of
from scheduler.core.snapshot.constraints import NUMA_WORDS
from scheduler.core.snapshot.relaxation import Relaxable
from scheduler.deadlines import DeadlineState, Relaxation, outlook, relaxations
from scheduler.job_lists import JobRow, ListedJob
from scheduler.models import Attempt, Job, JobEvent, WaitEnd
from scheduler.models.job_request import OPEN_MODES
from scheduler.services.changes.parse_change import WHILE_PENDING
from scheduler.services.planning.forecasts import expected_runtime
from scheduler.services.submission.fields_task import qos_word
from scheduler.services.submission.job_spec import JOB

#: Facts of a reason that are times in ISO 8601.
_TIMES_IN_ISO: Final = frozenset({"until", "since"})


def moment(value: datetime | None) -> str | None:
    """A time as every answer writes it: UTC, with a Z."""
    return value.isoformat().replace("+00:00", "Z") if value is not None else None


def priority_band(value: int) -> str:
    """Low, Normal or High, for those who think in three bands."""
    return "low" if value <= 33 else "normal" if value <= 66 else "high"


class CauseSerializer(serializers.Serializer[Any]):
    """What to change so that the job starts or waits for something else."""

    code = serializers.ChoiceField([c.value for c in CauseCode])
    subject = serializers.CharField(
        allow_blank=True, help_text="What the code is about, such as a taint, a label, a node or a resource."
    )


class ReasonSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    category = serializers.ChoiceField([c.value for c in ReasonCategory])
    text = serializers.CharField(help_text="Times in it are RFC 3339 in UTC.")
    details = serializers.DictField()
    cause = CauseSerializer()
    times = serializers.DictField(
        child=serializers.DateTimeField(), help_text="Times of the reason by name, such as begin_at."
    )


class JobAllocationSerializer(serializers.Serializer[Any]):
    rank = serializers.IntegerField()
    node = serializers.CharField()
    cpu_cores = serializers.FloatField()
    memory_bytes = serializers.IntegerField()
    storage_bytes = serializers.IntegerField()
    gpu_millis = serializers.IntegerField()
    device_ids = serializers.ListField(child=serializers.IntegerField())
    numa_domain = serializers.IntegerField(allow_null=True)
    held_at = serializers.DateTimeField()
    released_at = serializers.DateTimeField(allow_null=True)


class PackSerializer(serializers.Serializer[Any]):
    level = serializers.ChoiceField([level.value for level in PackLevel])
    required = serializers.BooleanField()  # type: ignore[assignment]


class JobDependencySerializer(serializers.Serializer[Any]):
    job = serializers.UUIDField(allow_null=True, help_text="null when it waits for data or an array.")
    number = serializers.IntegerField(allow_null=True)
    job_id = serializers.CharField(
        allow_null=True, help_text="The number, or 123_3 for an element of an array."
    )
    array = serializers.BooleanField(help_text="number is that of an array: all elements are waited for.")
    data = serializers.CharField(allow_null=True)  # type: ignore[assignment]
    type = serializers.ChoiceField(["completion", "success", "failure", "checkpoint", "data"])
    group = serializers.IntegerField(
        help_text="Dependencies of one group belong together; each of group 0 must be satisfied."
    )
    need = serializers.IntegerField(help_text="Number of dependencies of the group that must be satisfied.")
    satisfied = serializers.BooleanField(allow_null=True)


class LikelyStartSerializer(serializers.Serializer[Any]):
    """The last forecast of a pending job: the 10th, 50th and 90th percentile of its start; null = unknown."""

    p10_at = serializers.DateTimeField(allow_null=True)
    p50_at = serializers.DateTimeField(allow_null=True)
    p90_at = serializers.DateTimeField(allow_null=True)
    unknown = serializers.CharField(allow_blank=True)
    computed_at = serializers.DateTimeField()


class DeadlineOutlookSerializer(serializers.Serializer[Any]):
    """Whether the job meets its deadline, as far as time limit and forecast say."""

    state = serializers.ChoiceField(
        [state.value for state in DeadlineState],
        help_text="on-time and late: pending or running; met and missed: the deadline is settled.",
    )
    late_seconds = serializers.IntegerField(
        help_text="By how much it is or may be late; negative: before it."
    )
    text = serializers.CharField()


class ExpectedRuntimeSerializer(serializers.Serializer[Any]):
    """How long a job without a time limit is expected to run. It is for planning only: the job is not stopped."""

    seconds = serializers.IntegerField(
        help_text="Median of the earlier runs; once it has started, as planned."
    )
    planned_seconds = serializers.IntegerField(help_text="What the planner counts with.")
    runs = serializers.IntegerField(help_text="Earlier runs it is from; 0: UNLIMITED_JOB_SECONDS.")
    version = serializers.IntegerField(allow_null=True, help_text="Of the prediction; null after the start.")
    source = serializers.CharField()  # type: ignore[assignment]


class RelaxationSerializer(serializers.Serializer[Any]):
    """A constraint of placement that is required until it is relaxed."""

    constraint = serializers.ChoiceField([one.value for one in Relaxable])
    after = serializers.IntegerField(allow_null=True, help_text="Seconds of waiting in the queue.")
    after_failures = serializers.IntegerField(allow_null=True)
    at = serializers.DateTimeField(
        allow_null=True, help_text="When its wait has been that long; null while it does not wait."
    )
    relaxed = serializers.BooleanField()
    text = serializers.CharField()


class BoostSerializer(serializers.Serializer[Any]):
    """Points that an operator has added for a time; `priority` is without these points."""

    points = serializers.IntegerField()
    until = serializers.DateTimeField()


class JobSerializer(serializers.Serializer[Any]):
    """A whole job. Amounts are per task."""

    id = serializers.UUIDField()
    number = serializers.IntegerField()
    name = serializers.CharField()
    state = serializers.ChoiceField([s.value for s in PublicState])
    state_detail = serializers.CharField()
    reason = ReasonSerializer(allow_null=True)
    priority = serializers.IntegerField(min_value=0, max_value=100)
    boost = BoostSerializer(allow_null=True)
    priority_class = serializers.CharField(allow_null=True)
    priority_band = serializers.ChoiceField(["low", "normal", "high"])
    queue = serializers.CharField()
    project = serializers.CharField()
    user = serializers.CharField()
    command = serializers.CharField()
    script = serializers.CharField()
    job_type = serializers.CharField()
    tasks = serializers.IntegerField()
    nodes = serializers.IntegerField(allow_null=True)
    tasks_per_node = serializers.IntegerField(allow_null=True)
    min_tasks = serializers.IntegerField(
        allow_null=True, help_text="Minimum number of tasks to start; null: all."
    )
    elastic = serializers.BooleanField()
    on_task_failure = serializers.ChoiceField([rule.value for rule in TaskFailure])
    pack = PackSerializer(allow_null=True)
    assembly_timeout = serializers.IntegerField(allow_null=True, help_text="seconds")
    assembly_until = serializers.DateTimeField(allow_null=True, help_text="While nodes are kept for it.")
    cpu_cores = serializers.FloatField()
    memory_bytes = serializers.IntegerField()
    memory_gb = serializers.FloatField()
    storage_bytes = serializers.IntegerField()
    cpu_limit = serializers.FloatField(allow_null=True, help_text="What a task may use at most.")
    memory_limit_bytes = serializers.IntegerField(allow_null=True)
    qos = serializers.ChoiceField(list(QOS_WORDS.values()), help_text="Derived from requests and limits.")
    gpu_count = serializers.IntegerField()
    gpu_type = serializers.CharField()
    gpu_slice = serializers.CharField(help_text="A slice of one GPU, such as 1g.10gb.")
    gpu_share = serializers.FloatField(allow_null=True)
    numa = serializers.ChoiceField(NUMA_WORDS, help_text="one: each task in one NUMA domain, or it waits.")
    extras = serializers.DictField(child=serializers.IntegerField())
    time_limit = serializers.IntegerField(allow_null=True, help_text="seconds")
    expected_runtime = ExpectedRuntimeSerializer(
        allow_null=True, help_text="null: it has a time limit, or was just submitted."
    )
    env = serializers.DictField(
        child=serializers.CharField(allow_null=True),
        help_text="Values are null for all but its owner and the leads of its project: they may be secrets.",
    )
    secrets = serializers.ListField(
        child=serializers.DictField(child=serializers.CharField()),
        help_text="Secrets of the tasks: name, of (user or project), and env or file. No values.",
    )
    upload = serializers.UUIDField(allow_null=True, help_text="The uploaded folder that it begins with.")
    working_dir = serializers.CharField()
    artifacts = serializers.ListField(
        child=serializers.CharField(), help_text="Patterns of files that are stored when it ends."
    )
    image = serializers.CharField(allow_null=True, help_text="The container image that its tasks run in.")
    standard_output = serializers.CharField(help_text="A file that its output also goes to.")
    standard_error = serializers.CharField()
    open_mode = serializers.ChoiceField(OPEN_MODES)
    mail_type = serializers.CharField(
        help_text="When the owner gets mail; empty: the owner's preferences apply."
    )
    labels = serializers.DictField(child=serializers.CharField())
    node_selector = serializers.DictField(child=serializers.CharField())
    tolerations = serializers.ListField(child=serializers.DictField())
    affinity = serializers.DictField()
    relax = RelaxationSerializer(many=True, help_text="Constraints that are required until they are relaxed.")
    depends_on = JobDependencySerializer(many=True)
    depends_until = serializers.DateTimeField(allow_null=True)
    on_depends_timeout = serializers.ChoiceField([e.value for e in WaitEnd])
    saved_at = serializers.DateTimeField(allow_null=True, help_text="Its last checkpoint.")
    saved_path = serializers.CharField()
    job_id = serializers.CharField(
        help_text="As sbatch and squeue say it: 123_3 for element 3 of array 123, else the number."
    )
    array_id = serializers.IntegerField(
        allow_null=True, help_text="The number of the array, which is that of its first element."
    )
    array_index = serializers.IntegerField(allow_null=True)
    array_max_running = serializers.IntegerField(allow_null=True)
    restart_policy = serializers.ChoiceField([p.value for p in RestartPolicy])
    max_restarts = serializers.IntegerField()
    restart_rules = serializers.ListField(child=serializers.DictField())
    probes = serializers.ListField(child=serializers.DictField())
    restart_delay = serializers.IntegerField(allow_null=True, help_text="seconds")
    restart_delay_max = serializers.IntegerField(allow_null=True, help_text="seconds")
    checkpoint = serializers.DictField(
        help_text="Checkpoint settings; empty: no checkpoints. Times in seconds, sizes in MiB."
    )
    limit_signal = serializers.DictField(
        help_text="The signal before the time limit; empty: none. Times in seconds."
    )
    preemptible = serializers.BooleanField()
    created_at = serializers.DateTimeField()
    begin_at = serializers.DateTimeField(allow_null=True)
    deadline = serializers.DateTimeField(allow_null=True)
    deadline_action = serializers.ChoiceField([action.value for action in DeadlineAction])
    reservation = serializers.CharField(
        allow_null=True, help_text="The id of the reservation that it names and runs inside."
    )
    deadline_outlook = DeadlineOutlookSerializer(
        allow_null=True, help_text="null: no deadline, or cancelled before it."
    )
    wait_limit = serializers.IntegerField(allow_null=True, help_text="seconds")
    eligible_at = serializers.DateTimeField(allow_null=True)
    scheduled_at = serializers.DateTimeField(allow_null=True)
    started_at = serializers.DateTimeField(allow_null=True)
    completed_at = serializers.DateTimeField(allow_null=True)
    expected_start = serializers.DateTimeField(
        allow_null=True, help_text="The latest start that backfill guarantees."
    )
    likely_start = LikelyStartSerializer(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    exit_signal = serializers.IntegerField(allow_null=True)
    end_text = serializers.CharField()
    failure_class = serializers.ChoiceField(
        [one.value for one in FailureClass],
        allow_null=True,
        help_text="Of the last ended attempt, if unsuccessful.",
    )
    attempt = serializers.IntegerField(help_text="Number of starts; 0 before the first.")
    allocations = JobAllocationSerializer(many=True)
    submitted_via = serializers.CharField()

    def to_representation(self, job: Job) -> dict[str, Any]:
        """Written out by hand: one dictionary a job, and no query beyond what the selector brought."""
        return whole_job(job, self.context.get("priority_names", ()))


class JobRowSerializer(JobSerializer):
    """A job in a list, without command, script and environment, which may be long."""

    command = None  # type: ignore[assignment]
    script = None  # type: ignore[assignment]
    env = None  # type: ignore[assignment]
    secrets = None  # type: ignore[assignment]
    upload = None  # type: ignore[assignment]
    relax = None  # type: ignore[assignment]
    reservation = None  # type: ignore[assignment]
    expected_runtime = None  # type: ignore[assignment]

    def to_representation(self, job: Any) -> dict[str, Any]:
        listed: ListedJob = job
        return {
            **row_of(listed.row, self.context.get("priority_names", ())),
            **_relations(listed.dependencies, listed.allocations),
        }


def whole_job(job: Job, priority_names: Any, *, is_new: bool = False) -> dict[str, Any]:
    """All that an answer says about one job; `priority_names` are (value, name) of the priority classes.

    Nothing is read for the expected run time of a job that `is_new`.
    """
    attempts = sorted(job.attempts.all(), key=lambda attempt: attempt.epoch)
    held = attempts[-1].allocations.all() if attempts else []
    return {
        **row_of(job, priority_names),
        "command": job.command,
        "script": job.script,
        "env": job.env,
        "secrets": job.secrets,
        "upload": str(job.upload) if job.upload else None,
        "relax": [_relaxation(one) for one in relaxations(job)],
        "reservation": str(job.reservation.uuid) if job.reservation_id and job.reservation else None,
        "expected_runtime": None if is_new else _expected_runtime(job, attempts[-1] if attempts else None),
        **_relations(job.dependencies.all(), held),
    }


def row_of(job: Job | JobRow, priority_names: Any) -> dict[str, Any]:
    """What the job's own row and its queue, project and user say, but for what runs and its environment."""
    return {
        "id": str(job.uuid),
        "number": job.number,
        "job_id": job.said_number,
        "name": job.name,
        "state": job.public_state.value,
        "state_detail": str(job.state),
        "reason": _reason(job),
        "priority": job.priority,
        "boost": {"points": job.boost_now, "until": moment(job.boost_until_at)} if job.boost_now else None,
        "priority_class": class_name(job.priority, priority_names),
        "priority_band": priority_band(job.priority),
        "queue": job.queue.slug,
        "project": job.project.slug,
        "user": job.user.username,
        "job_type": job.job_type,
        "tasks": job.tasks,
        "nodes": job.nodes,
        "tasks_per_node": job.tasks_per_node,
        "min_tasks": job.min_tasks,
        "elastic": job.elastic,
        "on_task_failure": str(job.on_task_failure),
        "pack": {"level": str(job.pack), "required": job.pack_required} if job.pack else None,
        "assembly_timeout": job.assembly_timeout_seconds,
        "assembly_until": moment(job.assembly_until_at),
        "cpu_cores": job.cpu_millis / 1000,
        "memory_bytes": job.memory_mib * MIB,
        "memory_gb": round(job.memory_mib * MIB / 10**9, 3),
        "storage_bytes": job.storage_mib * MIB,
        "cpu_limit": job.cpu_limit_millis / 1000 if job.cpu_limit_millis else None,
        "memory_limit_bytes": job.memory_limit_mib * MIB if job.memory_limit_mib else None,
        "qos": qos_word(job),
        "gpu_count": job.gpus,
        "gpu_type": job.gpu_model,
        "gpu_slice": job.gpu_slice,
        "gpu_share": job.gpu_millis / 1000 if job.gpu_millis else None,
        "numa": job.numa,
        "extras": job.extras,
        "time_limit": job.time_limit_seconds,
        "working_dir": job.working_dir,
        **_files_of(job),
        "mail_type": job.mail_types or "",
        "labels": job.labels,
        "node_selector": job.node_selector,
        "tolerations": job.tolerations,
        "affinity": job.affinity,
        "depends_until": moment(job.depends_until_at),
        "on_depends_timeout": str(job.depends_on_timeout),
        "saved_at": moment(job.saved_at),
        "saved_path": job.saved_path,
        "array_id": job.array_number,
        "array_index": job.array_index,
        "array_max_running": job.array_max_running,
        "restart_policy": job.restart_policy,
        "max_restarts": job.max_restarts,
        "restart_rules": job.restart_rules,
        "probes": job.probes,
        "restart_delay": job.restart_delay_seconds,
        "restart_delay_max": job.restart_delay_max_seconds,
        "checkpoint": job.checkpoint,
        "limit_signal": job.limit_signal,
        "preemptible": job.preemptible,
        "created_at": moment(job.created_at),
        "begin_at": moment(job.begin_at),
        **_deadline_of(job),
        "eligible_at": moment(job.eligible_at),
        "scheduled_at": moment(job.scheduled_at),
        "started_at": moment(job.started_at),
        "completed_at": moment(job.completed_at),
        "expected_start": moment(job.expected_start_at),
        "likely_start": _likely_start(job),
        "exit_code": job.exit_code,
        "exit_signal": job.exit_signal,
        "end_text": job.end_text,
        "failure_class": job.failure_class or None,
        "attempt": job.epoch,
        "submitted_via": job.submitted_via,
    }


def _deadline_of(job: Job | JobRow) -> dict[str, Any]:
    """By when it is to be over and to have started, and whether it will."""
    return {
        "deadline": moment(job.deadline_at),
        "deadline_action": str(job.deadline_action),
        "deadline_outlook": _outlook(job),
        "wait_limit": job.wait_limit_seconds,
    }


def _relaxation(one: Relaxation) -> dict[str, Any]:
    return {
        "constraint": one.constraint.value,
        "after": one.after,
        "after_failures": one.after_failures,
        "at": moment(one.at),
        "relaxed": one.relaxed,
        "text": one.text,
    }


def _files_of(job: Job | JobRow) -> dict[str, Any]:
    """What is to be kept of the working folder, and where the output also goes."""
    return {
        "image": job.image,
        "artifacts": job.artifacts,
        "standard_output": job.output_path,
        "standard_error": job.error_path,
        "open_mode": job.open_mode,
    }


def class_name(priority: int, names: Any) -> str | None:
    """The highest class at or below a priority; `names` are (value, name), highest first."""
    return next((name for value, name in names if value <= priority), None)


def _expected_runtime(job: Job, latest: Attempt | None) -> dict[str, Any] | None:
    found = expected_runtime(job, latest)
    return None if found is None else asdict(found) | {"source": found.source}


def _likely_start(job: Job | JobRow) -> dict[str, Any] | None:
    row = job.likely_start
    if row is None:
        return None
    return {
        "p10_at": moment(row.p10_at),
        "p50_at": moment(row.p50_at),
        "p90_at": moment(row.p90_at),
        "unknown": row.unknown,
        "computed_at": moment(row.computed_at),
    }


def _outlook(job: Job | JobRow) -> dict[str, Any] | None:
    found = outlook(job)
    if found is None:
        return None
    return {"state": found.state.value, "late_seconds": found.seconds, "text": found.text}


def reason_times(details: Mapping[str, Any]) -> dict[str, str]:
    """Times among the facts of a reason, by name: `begin_ms` and an ISO `until` become `begin_at` and `until_at`."""
    found: dict[str, str] = {}
    for name, value in details.items():
        if name.endswith("_ms") and isinstance(value, int):
            found[f"{name.removesuffix('_ms')}_at"] = written(datetime.fromtimestamp(value / 1000, tz=UTC))
        elif name in _TIMES_IN_ISO and isinstance(value, str):
            found[f"{name}_at"] = written(datetime.fromisoformat(value))
    return found


def _reason(job: Job | JobRow) -> dict[str, Any] | None:
    if not job.reason_code:
        return None
    return {
        "code": job.reason_code,
        "category": job.reason_category,
        "text": job.reason_text,
        "details": job.reason_details,
        "cause": cause_of(ReasonCode(job.reason_code), job.reason_details)._asdict(),
        "times": reason_times(job.reason_details),
    }


def _relations(dependencies: Iterable[Any], held: Iterable[Any]) -> dict[str, Any]:
    """What a job waits for and what its latest attempt holds, from objects of the models or rows of a list."""
    return {
        "depends_on": [
            {
                "job": str(d.on.uuid) if d.on else None,
                "number": d.on_array or d.on_id,
                "job_id": str(d.on_array) if d.on_array else d.on.said_number if d.on else None,
                "array": d.on_array is not None,
                "data": d.data or None,
                "type": str(d.kind),
                "group": d.group,
                "need": d.need,
                "satisfied": d.satisfied,
            }
            for d in dependencies
        ],
        "allocations": [
            {
                "rank": a.rank,
                "node": a.node.name,
                "cpu_cores": a.cpu_millis / 1000,
                "memory_bytes": a.memory_mib * MIB,
                "storage_bytes": a.storage_mib * MIB,
                "gpu_millis": a.gpu_millis,
                "device_ids": a.device_ids,
                "numa_domain": a.numa_domain,
                "held_at": moment(a.held_at),
                "released_at": moment(a.released_at),
            }
            for a in held
        ],
    }


class JobEventSerializer(serializers.ModelSerializer[Any]):
    """An event of a job, as a sentence."""

    actor = serializers.CharField(source="actor.username", allow_null=True, default=None)
    epoch = serializers.IntegerField(allow_null=True)

    class Meta:
        model = JobEvent
        fields = ["id", "at", "kind", "because", "epoch", "actor", "details"]


class LogSerializer(serializers.Serializer[Any]):
    stream = serializers.ChoiceField(["stdout", "stderr", "merged"])
    offset = serializers.IntegerField()
    next_offset = serializers.IntegerField()
    eof = serializers.BooleanField()
    awaited_bytes = serializers.IntegerField(
        allow_null=True, help_text="Output that has not arrived yet; null while the job runs."
    )
    text = serializers.CharField()


#: What of a job may be changed; only for the schema: `parse_change` reads it.
JobChangesSerializer = serializer_of(
    JOB, name="JobChangesSerializer", only=WHILE_PENDING,
    about="Fields of a job to change; what is left out stays as it is, null resets a field.",
)  # fmt: skip


class JobChangeSerializer(JobChangesSerializer):  # type: ignore[misc, valid-type]
    """Fields of a job to change; what is left out stays as it is, null resets a field to its default."""

    reason = serializers.CharField(
        required=False, allow_blank=True, max_length=MAX_REASON, help_text="Recorded in the audit trail."
    )


#: A job as it is submitted; only for the schema: `parse_job` reads it.
JobRequestSerializer = serializer_of(
    JOB, name="JobRequestSerializer", about="A job as it is submitted; amounts are per task."
)
