"""Reads a change of a job: the job as it is, with the changed fields read and judged as those of a new request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from accounts.models import User
from infra.errors import Conflict
from scheduler.core.lifecycle import HOW_ENDED, PENDING, JobState
from scheduler.models import Job, JobElements
from scheduler.services.submission.admission import asked_of, check_fit
from scheduler.services.submission.fields_placement import Pack
from scheduler.services.submission.job_spec import (
    CALLED_ELSEWHERE,
    FIELDS,
    JOB,
    Array,
    JobSpec,
    RequestInputs,
)
from scheduler.services.submission.submitter import catalogue_of_change

#: What may be other while a job waits.
WHILE_PENDING: Final = (
    "name", "queue", "priority", "time_limit", "tasks", "nodes", "tasks_per_node", "min_tasks", "cpu_cores", "memory",
    "cpu_limit", "memory_limit", "gpu_count", "gpu_type", "gpu_slice", "gpu_share", "storage_bytes", "extras",
    "begin_at", "deadline", "deadline_action", "wait_limit", "node_selector", "labels", "mail_type", "preemptible",
    "max_restarts", "depends_on", "relax", "reservation",
)  # fmt: skip
#: And while it runs; only operators make its time limit longer.
WHILE_RUNNING: Final = ("name", "time_limit", "labels", "mail_type")
#: What decides whether a job could ever start.
_SIZE: Final = frozenset({
    "queue", "tasks", "nodes", "tasks_per_node", "min_tasks", "cpu_cores", "memory", "cpu_limit", "memory_limit",
    "gpu_count", "gpu_type", "gpu_slice", "gpu_share", "storage_bytes", "extras",
})  # fmt: skip
#: Of a job that runs several elements of an array: one task, and a limit of each element.
_NOT_OF_ELEMENTS: Final = frozenset({"time_limit", "tasks", "nodes", "tasks_per_node", "min_tasks"})
#: Read together: a GPU type may name a slice.
_TOGETHER: Final = frozenset({"gpu_type", "gpu_slice"})


def parse_change(job: Job, changes: Mapping[str, Any], *, by: User) -> tuple[JobSpec, frozenset[str]]:
    """The job as it would be, and the names of the fields that were sent.

    Null resets a field to what it is when it is left out of a request. Only changed fields are read, and only rules
    about them are applied; queue and limits are those of the job's owner, the priority ceiling is that of `by`.
    Raises InvalidInput or NotAllowed naming every problem, and writes nothing.
    """
    spec = _as_it_is(job)
    inputs = RequestInputs(
        _as_sent(job, changes), draft=spec, catalogue=catalogue_of_change(by, owner=job.user), under="", in_batch=False
    )  # fmt: skip
    inputs.project, inputs.queue = job.project, inputs.catalogue.bounded(job.queue)
    known = {name: value for name, value in changes.items() if name in FIELDS}
    _refuse_unknown(inputs, changes)
    sent = frozenset(JOB.by_name[name].name for name in known)
    _refuse_unchangeable(inputs, job, sent)
    _read(spec, inputs, sent)
    if not inputs.problems and sent & _SIZE:
        check_fit(
            inputs, asked_of(spec), job_type=spec.job_type, bounds=inputs.catalogue.bounds(job.project),
            cluster_id=spec.queue.cluster_id,
        )  # fmt: skip
    if not inputs.problems and job.state not in PENDING | {JobState.PREEMPTED}:
        _refuse_longer(inputs, job, spec, sent, by=by)
    inputs.finish("The job cannot be changed")
    return spec, sent


def refuse_ended(job: Job) -> None:
    """Raise Conflict for a job whose request no longer decides anything."""
    if job.is_terminal or job.state == JobState.STOPPING:
        state = "is being stopped" if job.state == JobState.STOPPING else HOW_ENDED[job.state]
        raise Conflict(
            message=f"Job {job.said_number} {state} and can no longer be changed.",
            way_out="Submit the job again with the changes: GET the job, and POST its request fields.",
        )


def _as_it_is(job: Job) -> JobSpec:
    """The job's row as a request that was read."""
    spec = JobSpec()
    for column, attribute in JOB.columns().items():
        if "." not in attribute:
            setattr(spec, attribute, getattr(job, column))
    spec.project, spec.queue = job.project, job.queue
    spec.pack = Pack(job.pack, job.pack_required)
    spec.array = Array((), job.array_max_running)
    return spec


def _as_sent(job: Job, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What readers and rules look up beside the changed fields, in the words of a request, and the changes."""
    given = {
        "command": job.command, "script": job.script, "gpu_count": job.gpus, "gpu_type": job.gpu_model,
        "gpu_slice": job.gpu_slice, "assembly_timeout": job.assembly_timeout_seconds or 0,
        "wait_limit": job.wait_limit_seconds, "deadline": job.deadline_at, "pack": job.pack,
        "relax": job.relax,
    }  # fmt: skip
    if changes.get("gpu_type") and "gpu_slice" not in changes:
        del given["gpu_slice"]
    return given | dict(changes)


def _refuse_unknown(inputs: RequestInputs, changes: Mapping[str, Any]) -> None:
    """Name each field that no request has; those that the job brought along are known."""
    inputs.payload = changes
    inputs.refuse_unknown(FIELDS, called_elsewhere=CALLED_ELSEWHERE)


def _refuse_unchangeable(inputs: RequestInputs, job: Job, sent: Collection[str]) -> None:
    running = job.state not in PENDING | {JobState.PREEMPTED}
    in_turn = bool(_NOT_OF_ELEMENTS & set(sent)) and JobElements.objects.filter(job=job.pk).exists()
    for name in sorted(sent):
        if name not in WHILE_PENDING:
            inputs.wrong(
                name, "Cannot be changed after the submission; cancel the job and submit it again.",
                code="not-changeable",
            )  # fmt: skip
        elif running and name not in WHILE_RUNNING:
            inputs.wrong(
                name,
                f"Cannot be changed while the job is {job.public_state}; requeue the job, hold it and change it then.",
                code="not-changeable",
            )
        elif in_turn and name in _NOT_OF_ELEMENTS:
            inputs.wrong(
                name, "Cannot be changed: the job runs several elements of its array one after another.",
                code="not-changeable",
            )  # fmt: skip


def _read(spec: JobSpec, inputs: RequestInputs, sent: Collection[str]) -> None:
    """Read the fields that were sent, then apply the rules that compare one of them."""
    read = set(sent) & set(WHILE_PENDING)
    if read & _TOGETHER:
        read |= _TOGETHER
    if "gpu_slice" in read and spec.gpu_slice and "gpu_share" not in read:
        spec.gpu_millis = 0  # a share that followed from the slice
    for field in JOB.fields:
        if field.name not in read:
            continue
        if any(inputs.given(name) is not None for name in field.names) or field.always:
            setattr(spec, field.attribute, field.read(inputs, field.name))
        else:
            setattr(spec, field.attribute, _left_out(field.default))
    for rule in JOB.rules:
        if read & set(rule.fields):
            rule.check(spec, inputs)


def _left_out(default: Any) -> Any:
    return type(default)(default) if isinstance(default, (dict, list)) else default


def is_longer(before: int | None, after: int | None) -> bool:
    """Whether a job may run longer with the time limit `after` than with `before`; None is no limit."""
    return before is not None and (after is None or after > before)


def _refuse_longer(
    inputs: RequestInputs, job: Job, spec: JobSpec, sent: Collection[str], *, by: User
) -> None:
    """Others were planned behind a running job by its time limit: only an operator makes it longer, as in Slurm."""
    before = job.time_limit_seconds
    if "time_limit" in sent and is_longer(before, spec.time_limit_seconds) and not by.is_operator:
        inputs.wrong(
            "time_limit",
            f"The time limit of a running job is {before} seconds; you can shorten it, and an operator can make it "
            "longer. Ask an operator, or submit the rest of the work as another job.",
            code="not-changeable",
        )
