"""What a job waits for besides resources, and the elements an array is made of."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Q

from accounts.models import User
from scheduler.models import DependencyKind, Job
from scheduler.selectors import visible_jobs
from scheduler.services.inputs import BadValue, Inputs, read_integer
from scheduler.state.dependencies import holds

MAX_DEPENDENCIES: Final = 200
MAX_ARRAY_INDEX: Final = 1_000_000

#: Ours, and the words Slurm's users know.
KINDS: Final[dict[str, str]] = {
    "completion": DependencyKind.COMPLETION,
    "success": DependencyKind.SUCCESS,
    "failure": DependencyKind.FAILURE,
    "afterany": DependencyKind.COMPLETION,
    "afterok": DependencyKind.SUCCESS,
    "afternotok": DependencyKind.FAILURE,
}
_ELEMENT = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?")


@dataclass(frozen=True, slots=True)
class DependsOn:
    """One job to wait for, and what has to become of it."""

    number: int
    name: str
    kind: str


def read_dependencies(inputs: Inputs, *, by: User) -> tuple[DependsOn, ...]:
    """`[17, "<uuid>", {"job": 17, "type": "success"}]`; a job that `by` may not see does not exist.

    A cycle cannot be made: only jobs that exist already can be named.
    """
    wanted: list[tuple[str, int | uuid.UUID, str]] = []
    for number, item in enumerate(inputs.listing("depends_on", most=MAX_DEPENDENCIES, or_one=True)):
        at, kind, job = f"depends_on/{number}", "success", item
        if isinstance(item, Mapping):
            for name in set(item) - {"job", "type"}:
                inputs.wrong(
                    f"{at}/{str(name)[:60]}",
                    "There is no such field; known are job and type.",
                    code="unknown-field",
                )
            kind, job = str(item.get("type") or "success").strip().lower(), item.get("job")
        ref = job_ref(job)
        if kind not in KINDS:
            inputs.wrong(f"{at}/type", f"Has to be one of {', '.join(KINDS)}.", code="unknown-choice")
        elif ref is None:
            inputs.wrong(at, "Has to be a job's number or id.", code="not-a-job")
        else:
            wanted.append((at, ref, KINDS[kind]))
    return _resolve(inputs, wanted, by=by) if wanted else ()


def _resolve(
    inputs: Inputs, wanted: list[tuple[str, int | uuid.UUID, str]], *, by: User
) -> tuple[DependsOn, ...]:
    numbers = [ref for _, ref, _ in wanted if isinstance(ref, int)]
    uuids = [ref for _, ref, _ in wanted if isinstance(ref, uuid.UUID)]
    rows = visible_jobs(by).filter(Q(number__in=numbers) | Q(uuid__in=uuids))
    jobs: dict[int | uuid.UUID, Job] = {}
    for job in rows.select_related(None).only("number", "uuid", "name", "state"):
        jobs[job.number] = jobs[job.uuid] = job
    found: dict[tuple[int, str], DependsOn] = {}
    for at, ref, kind in wanted:
        job = jobs.get(ref)
        if job is None:
            inputs.wrong(at, f"There is no job {ref} that you may see.", code="not-found")
        elif holds(kind, job.state) is False:
            inputs.wrong(
                at,
                f"Job {job.number} ({job.name}) has {job.state} already, so this can never be satisfied.",
                code="never-satisfied",
            )
        else:
            found[(job.number, kind)] = DependsOn(job.number, job.name, kind)
    return tuple(found[key] for key in sorted(found))


def job_ref(value: Any) -> int | uuid.UUID | None:
    """A job's number or id, as people write it; None when it is neither."""
    number = read_integer(value)
    if number is not None:
        return number if 0 < number < 2**63 else None
    if isinstance(value, uuid.UUID):
        return value
    try:
        return uuid.UUID(value) if isinstance(value, str) and len(value) <= 45 else None
    except ValueError:
        return None


def read_array(value: Any, *, most: int) -> tuple[tuple[int, ...], int | None]:
    """Indices and how many may run at once, from `"0-9"`, `"1,3,5"`, `"0-20:5"`, `"0-99%10"`."""
    text = str(value).strip() if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    ranges, percent, limit = text.partition("%")
    at_once = read_integer(limit) if percent else None
    if percent and (at_once is None or not 1 <= at_once <= most):
        raise BadValue(f"Has to say after % how many may run at once, 1 to {most}")
    found: set[int] = set()
    for part in ranges.split(","):
        match = _ELEMENT.fullmatch(part.strip())
        if match is None:
            raise BadValue(f"{text[:40]!r} is no array; write for example 0-9, 1,3,5 or 0-99%10")
        first, last = int(match[1]), int(match[2] or match[1])
        step = int(match[3] or 1)
        if last > MAX_ARRAY_INDEX:
            raise BadValue(f"Has index {last}; the highest is {MAX_ARRAY_INDEX}")
        if last < first or step < 1:
            raise BadValue(f"{part.strip()[:40]!r} counts nothing; write the lower index first")
        if len(range(first, last + 1, step)) + len(found) > most:
            raise BadValue(f"Makes more than {most} jobs, the most an array may have; split it")
        found.update(range(first, last + 1, step))
    return tuple(sorted(found)), at_once
