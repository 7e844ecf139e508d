"""Reads requests for jobs: how much they ask for together, then each of them by its declared fields and rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from django.conf import settings

from accounts.models import User
from infra.request_cost import check_rows, check_text
from quotas.core.limits import PENDING_JOBS
from scheduler.selectors import idle_cluster
from scheduler.services.submission.admission import asked_of, check_fit, never_allowed_outside
from scheduler.services.submission.fields import BadValue
from scheduler.services.submission.fields_dependencies import array_size, refs_named
from scheduler.services.submission.job_spec import CALLED_ELSEWHERE, FIELDS, JOB, JobSpec, RequestInputs
from scheduler.services.submission.submitter import Catalogue

# ---------------------------------------------------------------- how much

_WAY_OUT: Final = "Make the arrays smaller, or send the jobs in several requests."


def check_sizes(payloads: Sequence[Any], *, field: str) -> None:
    """Refuse requests that together make more rows, or hold more text, than one request may.

    A row is a job, or one thing that one job waits for: an array of 100 that waits for an array of 50 of the same
    request is 100 jobs and 5,000 waits. What cannot be read counts as one job; its reader says what is wrong.
    Raises InvalidInput with the code too-many-rows.
    """
    known = [payload for payload in payloads if isinstance(payload, Mapping)]
    sizes = [_jobs_of(payload) for payload in known]
    named: dict[str, int] = {}
    for payload, size in zip(known, sizes, strict=True):
        if isinstance(ref := payload.get("ref"), str):
            named[ref.strip()] = named.get(ref.strip(), 0) + size
    rows = text = 0
    for payload, size in zip(known, sizes, strict=True):
        refs, others = refs_named(payload.get("depends_on"))
        rows += size * (1 + others + sum(named.get(ref, 1) for ref in refs))
        text += size * _text_of(payload)
    what = "jobs" if rows == sum(sizes) else "rows, of jobs and of what each of them waits for"
    check_rows(rows, what=what, field=field, way_out=_WAY_OUT)
    check_text(text, field=field, way_out=_WAY_OUT)


def _jobs_of(payload: Mapping[str, Any]) -> int:
    array = payload.get("array")
    if not array:
        return 1
    try:
        return array_size(array, most=settings.MUSTER_MAX_ARRAY_SIZE)
    except BadValue:
        return 1


def _text_of(payload: Mapping[str, Any]) -> int:
    """Characters that each job of it repeats."""
    size = sum(len(value) for name in ("command", "script") if isinstance(value := payload.get(name), str))
    for name in ("env", "labels"):
        if isinstance(value := payload.get(name), Mapping):
            size += sum(len(key) + len(str(one)) for key, one in value.items() if isinstance(key, str))
    return size


# ---------------------------------------------------------------- one request

#: What differs from job to job of a sweep. No rule compares one of these with any other field, so that the others
#: need to be read only once for all requests that have them in common.
OWN: Final = ("command", "script", "name", "env", "secrets", "labels", "upload", "working_dir", "artifacts")
_OWN_STEPS: Final = JOB.steps_of(OWN)
_NOT_LASTING: Final = frozenset(field.name for field in JOB.fields if not field.lasting)
#: Of one catalogue, and in characters of what they have in common.
MOST_KINDS: Final = 256
MAX_KIND: Final = 4096

_SHARED: Final = {c: a for c, a in JOB.columns().items() if a not in OWN}
_shared_values: Final = attrgetter(*_SHARED.values())
OWN_COLUMNS: Final = tuple(column for column in JOB.columns() if column not in _SHARED)
#: The values of `OWN_COLUMNS`; all other columns that a request decides are `spec.kind.columns`.
own_columns: Final = attrgetter(*(JOB.columns()[column] for column in OWN_COLUMNS))


class JobKind:
    """What requests have in common that differ in the fields `OWN` at most: as it was read, and as columns."""

    __slots__ = ("columns", "values")

    def __init__(self, spec: JobSpec) -> None:
        self.values = {name: value for name, value in vars(spec).items() if name not in OWN}
        self.columns = dict(zip(_SHARED, _shared_values(spec), strict=True))

    def new_spec(self) -> JobSpec:
        """A request of this kind of which nothing of its own was read yet."""
        spec = JobSpec.__new__(JobSpec)
        spec.__dict__ = {**self.values, "command": "", "script": "", "name": "", "env": {}, "secrets": [],
                         "labels": {}, "upload": None, "working_dir": "", "artifacts": [], "kind": self}  # fmt: skip
        return spec


def parse_job(
    payload: Mapping[str, Any],
    *,
    by: User,
    catalogue: Catalogue | None = None,
    under: str = "",
    in_batch: bool = False,
) -> JobSpec:
    """Read a request of `by`; raises InvalidInput or NotAllowed naming every problem, and writes nothing.

    `catalogue` is what many requests of one person share; `under` stands before each field in problems.
    Only jobs that are sent together (`in_batch`) may name each other by `ref`.
    """
    catalogue = catalogue or Catalogue(by)
    key = _key_of_kind(payload)
    kind = catalogue.kinds.get(key) if key is not None else None
    spec = _read_own(kind, payload, catalogue) if kind is not None else None
    if spec is not None:
        return spec
    spec = JobSpec()
    inputs = RequestInputs(payload, draft=spec, catalogue=catalogue, under=under, in_batch=in_batch)
    inputs.refuse_unknown(FIELDS, called_elsewhere=CALLED_ELSEWHERE)
    JOB.read_into(spec, inputs)
    if inputs.project is not None and inputs.queue is not None and not inputs.problems:
        _check_fit(spec, inputs)
    inputs.finish("The job is invalid")
    spec.waits_on = tuple(
        bound
        for bound in catalogue.bounds(spec.project)
        if bound.resource == PENDING_JOBS and bound.job_type in ("", spec.job_type)
    )
    spec.kind = JobKind(spec)
    if key is not None and len(catalogue.kinds) < MOST_KINDS:
        catalogue.kinds[key] = spec.kind
    return spec


def _key_of_kind(payload: Mapping[str, Any]) -> str | None:
    """Equal for requests that differ in the fields `OWN` at most; None where a reading does not last."""
    shared = {name: value for name, value in payload.items() if name not in OWN}
    if not _NOT_LASTING.isdisjoint(shared):
        return None
    key = repr(shared)
    return key if len(key) <= MAX_KIND else None


def _read_own(kind: JobKind, payload: Mapping[str, Any], catalogue: Catalogue) -> JobSpec | None:
    """A request of a kind that was read before; None where something is wrong, so that it is read as a whole."""
    spec = kind.new_spec()
    own = {name: payload[name] for name in OWN if name in payload}
    inputs = RequestInputs(own, draft=spec, catalogue=catalogue, under="", in_batch=False)
    inputs.project, inputs.queue = spec.project, spec.queue
    JOB.read_into(spec, inputs, _OWN_STEPS)
    if not inputs.problems:
        _check_fit(spec, inputs)
    return spec if not inputs.problems else None


def _check_fit(spec: JobSpec, inputs: RequestInputs) -> None:
    """Refuse what could never start; a size that was found to fit the same machines is not looked at again."""
    catalogue, cluster_id = inputs.catalogue, spec.queue.cluster_id
    machines = idle_cluster(cluster_id)
    if spec.kind is not None and catalogue.fits(spec.kind, machines):
        return
    size = (
        spec.per_task, spec.gpu_models, spec.cpu_limit_millis, spec.memory_limit_mib, spec.numa, spec.tasks,
        spec.min_tasks, spec.pack, spec.nodes, spec.tasks_per_node, spec.project.pk, cluster_id, spec.job_type,
    )  # fmt: skip
    if not catalogue.fits(size, machines):
        check_fit(
            inputs, asked_of(spec), job_type=spec.job_type, bounds=catalogue.bounds(spec.project),
            cluster_id=cluster_id,
        )  # fmt: skip
        if not inputs.problems and (text := never_allowed_outside(spec, catalogue.user.pk)):
            inputs.wrong("project", text, code="exceeds-quota")
    if not inputs.problems:
        catalogue.found_to_fit(machines, size, spec.kind or size)
