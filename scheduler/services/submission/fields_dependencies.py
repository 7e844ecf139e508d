"""What a job waits for besides resources, and the elements an array is made of."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.db.models import Q

from accounts.models import User
from scheduler.core.lifecycle import HOW_ENDED
from scheduler.models import DependencyKind, Job
from scheduler.selectors import visible_jobs
from scheduler.services.submission.declaration import Kind, Schema, choice, declared, integer, text
from scheduler.services.submission.fields import BadValue, Inputs, read_integer
from scheduler.state.lifecycle.arrays import array_holds, ends_of_arrays
from scheduler.state.lifecycle.dependencies import holds

MAX_DEPENDENCIES: Final = 200
MAX_ARRAY_INDEX: Final = 1_000_000
#: Enough for 10,000 indices of seven digits, one by one.
MAX_ARRAY_TEXT: Final = 81_920

#: Ours, and the words Slurm's users know.
KINDS: Final[dict[str, str]] = {
    "completion": DependencyKind.COMPLETION,
    "success": DependencyKind.SUCCESS,
    "failure": DependencyKind.FAILURE,
    "checkpoint": DependencyKind.CHECKPOINT,
    "afterany": DependencyKind.COMPLETION,
    "afterok": DependencyKind.SUCCESS,
    "afternotok": DependencyKind.FAILURE,
}
#: Names of datasets, and of jobs within one request.
DATA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@:+-]{0,199}")
DATA_NAME_RULE: Final = (
    "Must be a name of at most 200 letters, digits and . _ / @ : + -, such as faces/2027-01."
)
MAX_DATA_NAME: Final = 200
_ELEMENT_REF: Final = re.compile(r"([0-9]{1,18})_([0-9]{1,7})", re.ASCII)
_ELEMENT = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?")


def _raw(inputs: Inputs, name: str) -> Any:
    return inputs.given(name)


@dataclass(frozen=True, slots=True)
class DependsOn:
    """One thing to wait for: a job and what has to become of it, or data of the project.

    Those of one `group` belong together and `need` of them are enough; in group 0 each has to hold.
    """

    number: int
    name: str
    kind: str
    group: int = 0
    need: int = 1
    #: Another job of the same request, by the `ref` it has there; its number is not known yet.
    ref: str = ""
    #: The other job's project.
    project_id: int = 0
    #: The number is that of an array: all of its elements are waited for.
    is_array: bool = False
    #: The number of an element as people say it, `123_3`.
    said: str = ""


@dataclass(slots=True)
class Entry:
    """One thing to wait for, as a request says it: a job, another job of the same request, data, or some of several."""

    job: Any = declared(
        "job", kind=Kind.NAME_OR_NUMBER, read=_raw, example=17,
        help="The number or id of a job; the number of an array means all elements, 17_3 element 3.",
    )  # fmt: skip
    type: str = choice("type", KINDS, default="success", help="The condition on that job.")
    ref: str = text("ref", most=MAX_DATA_NAME, help="Instead of job: the ref of a job of the same request.")
    data: str = text("data", most=MAX_DATA_NAME, help="The name of data that have to be ready.")
    any: int | None = integer(
        "any", least=1, most=MAX_DEPENDENCIES, default=1, help="With of: the number that is enough."
    )
    of: list[Any] = declared(
        "of",
        kind=Kind.ENTRIES,
        read=_raw,
        default=[],
        most=MAX_DEPENDENCIES,
        help="Entries that belong together.",
    )


ENTRY: Final = Schema(Entry)
#: The fields that stand together in one entry.
_OF_A_JOB: Final = ("job", "type", "ref")
_OF_DATA: Final = ("data",)
_OF_SEVERAL: Final = ("any", "of")


class ElementRef(NamedTuple):
    """An element of an array, as `123_3` names it."""

    array: int
    element: int

    def __str__(self) -> str:
        return f"{self.array}_{self.element}"


@dataclass(frozen=True, slots=True)
class _Asked:
    """One entry as it was written, before anybody has looked for its job."""

    at: str
    kind: str
    ref: int | uuid.UUID | ElementRef | str
    group: int
    need: int


def read_dependencies(inputs: Inputs, name: str, *, by: User) -> tuple[DependsOn, ...]:
    """`[17, "<uuid>", {"job": 17, "type": "success"}, {"any": 2, "of": [3, 4, 5]}, {"data": "faces"}]`.

    A job that `by` may not see does not exist. Jobs that exist already cannot wait for this one; those of
    the same request, named by `{"ref": "prepare"}`, are looked at in `find_circle`.
    """
    asked: list[_Asked] = []
    groups = 0
    for number, item in enumerate(inputs.listing(name, most=MAX_DEPENDENCIES, or_one=True)):
        at = f"{name}/{number}"
        if isinstance(item, Mapping) and ("any" in item or "of" in item):
            groups += 1
            asked += _read_group(inputs, item, at=at, group=groups)
        elif one := _read_one(inputs, item, at=at):
            asked.append(one)
    if len(asked) > MAX_DEPENDENCIES:
        inputs.wrong(name, f"Names {len(asked)} jobs; the maximum is {MAX_DEPENDENCIES}.", code="too-many")
        return ()
    return _resolve(inputs, asked, by=by) if asked else ()


def _read_group(inputs: Inputs, item: Mapping[str, Any], *, at: str, group: int) -> list[_Asked]:
    """`{"any": 2, "of": [...]}`: two of these are enough."""
    _refuse_others(inputs, item, _OF_SEVERAL, at=at)
    need, members = read_integer(item.get("any", 1)), item.get("of")
    if not isinstance(members, (list, tuple)) or not members:
        inputs.wrong(f"{at}/of", "Must be a list of dependencies.", code="not-a-list")
        return []
    if len(members) > MAX_DEPENDENCIES:
        inputs.wrong(
            f"{at}/of", f"Has {len(members)} entries; the maximum is {MAX_DEPENDENCIES}.", code="too-many"
        )
        return []
    if need is None or not 1 <= need <= len(members):
        inputs.wrong(
            f"{at}/any", f"Must be from 1 to {len(members)}, the number of entries.", code="out-of-range"
        )
        return []
    read = [
        _read_one(inputs, member, at=f"{at}/of/{number}", group=group, need=need)
        for number, member in enumerate(members)
    ]
    return [one for one in read if one is not None]


def _read_one(inputs: Inputs, item: Any, *, at: str, group: int = 0, need: int = 1) -> _Asked | None:
    kind, job = "success", item
    if isinstance(item, Mapping):
        if item.get("data") is not None:
            _refuse_others(inputs, item, _OF_DATA, at=at)
            name = item["data"]
            if not isinstance(name, str) or not DATA_NAME.fullmatch(name):
                inputs.wrong(f"{at}/data", DATA_NAME_RULE, code="bad-name")
                return None
            return _Asked(at, DependencyKind.DATA, name, group, need)
        _refuse_others(inputs, item, _OF_A_JOB, at=at)
        kind, job = str(item.get("type") or "success").strip().lower(), item.get("job")
        if job is None and isinstance(item.get("ref"), str):
            job = item["ref"].strip()
            if kind in KINDS and job:
                return _Asked(at, KINDS[kind], job, group, need)
    ref = job_ref(job)
    if kind not in KINDS:
        inputs.wrong(f"{at}/type", f"Must be one of {', '.join(KINDS)}.", code="unknown-choice")
    elif ref is None:
        inputs.wrong(at, "Must be a job's number or id, or an element as 17_3.", code="not-a-job")
    else:
        return _Asked(at, KINDS[kind], ref, group, need)
    return None


def _refuse_others(inputs: Inputs, item: Mapping[str, Any], known: tuple[str, ...], *, at: str) -> None:
    for name in set(item) - set(known):
        inputs.wrong(
            f"{at}/{str(name)[:60]}",
            f"There is no such field; known are {', '.join(known)}.",
            code="unknown-field",
        )


def _resolve(inputs: Inputs, asked: list[_Asked], *, by: User) -> tuple[DependsOn, ...]:
    jobs = _jobs_named(asked, by)
    found: dict[tuple[int, int, str, str], DependsOn] = {}
    lost: dict[int, int] = {}
    for one in asked:
        if isinstance(one.ref, str):
            ref = "" if one.kind == DependencyKind.DATA else one.ref
            found[(one.group, 0, one.kind, one.ref)] = DependsOn(
                0, one.ref, one.kind, one.group, one.need, ref
            )
            continue
        job = jobs.get(one.ref)
        if job is None:
            inputs.wrong(one.at, f"There is no job {one.ref} that you may see.", code="not-found")
            continue
        if job.array_number is not None and job.array_number == one.ref:
            if (whole := _whole_array(inputs, one, job, lost=lost, size=_size(asked, one.group))) is not None:
                found[(one.group, whole.number, one.kind, "array")] = whole
            continue
        if holds(one.kind, job.state, job.saved_at is not None) is False:
            lost[one.group] = lost.get(one.group, 0) + 1
            if not one.group or _size(asked, one.group) - lost[one.group] < one.need:
                how = HOW_ENDED[job.state]
                inputs.wrong(
                    one.at,
                    f"Job {job.said_number} ({job.name}) {how} already: "
                    "this dependency can never be satisfied.",
                    code="never-satisfied",
                )
        key = (one.group, job.number, one.kind, "")
        if key in found and one.group:
            inputs.wrong(one.at, f"Names job {job.said_number} twice in one group.", code="twice")
        found[key] = DependsOn(
            job.number,
            job.name,
            one.kind,
            one.group,
            one.need,
            project_id=job.project_id,
            said=job.said_number,
        )
    return tuple(found[key] for key in sorted(found))


def _whole_array(
    inputs: Inputs, one: _Asked, job: Job, *, lost: dict[int, int], size: int
) -> DependsOn | None:
    """A wait for all elements of the array that this job is the first of; None where there is no such wait."""
    if one.kind == DependencyKind.CHECKPOINT:
        text = f"{one.ref} is an array, which makes no checkpoint as a whole; name an element, as {job.said_number}."
        inputs.wrong(one.at, text, code="not-a-job")
        return None
    assert job.array_number is not None
    if array_holds(one.kind, ends_of_arrays([job.array_number])[job.array_number]) is False:
        lost[one.group] = lost.get(one.group, 0) + 1
        if not one.group or size - lost[one.group] < one.need:
            text = f"The elements of array {one.ref} ({job.name}) have ended so that this can never be satisfied."
            inputs.wrong(one.at, text, code="never-satisfied")
    return DependsOn(
        job.array_number, job.name, one.kind, one.group, one.need, project_id=job.project_id, is_array=True
    )


def _jobs_named(asked: list[_Asked], by: User) -> dict[Any, Job]:
    """Those that `by` may see, as they were named: by number, by id, or as the element of an array."""
    numbers = [one.ref for one in asked if isinstance(one.ref, int)]
    uuids = [one.ref for one in asked if isinstance(one.ref, uuid.UUID)]
    elements = [one.ref for one in asked if isinstance(one.ref, ElementRef)]
    jobs: dict[Any, Job] = {}
    if numbers or uuids or elements:
        wanted = Q(number__in=numbers) | Q(uuid__in=uuids)
        for element in elements:
            wanted |= Q(array_number=element.array, array_index=element.element)
        rows = visible_jobs(by).filter(wanted).select_related(None)
        for job in rows.only(
            "number", "uuid", "name", "state", "saved_at", "project_id", "array_number", "array_index"
        ):
            jobs[job.number] = jobs[job.uuid] = job
            if job.array_number is not None and job.array_index is not None:
                jobs[ElementRef(job.array_number, job.array_index)] = job
    return jobs


def _size(asked: list[_Asked], group: int) -> int:
    return sum(one.group == group for one in asked)


def find_circle(waits: Mapping[str, Iterable[str]]) -> list[str]:
    """The names of jobs that wait for each other in a circle, the first once more at the end; [] = none.

    Jobs that go on with some of those they wait for are in a circle all the same: none of it can begin.
    """
    done: set[str] = set()
    for first in waits:
        path: list[str] = []
        stack = [(first, iter(waits.get(first, ())))] if first not in done else []
        path.append(first)
        on_path = {first}
        while stack:
            name, rest = stack[-1]
            following = next((other for other in rest if other not in done), None)
            if following is None:
                done.add(name)
                stack.pop()
                on_path.discard(path.pop())
            elif following in on_path:
                return [*path[path.index(following) :], following]
            elif following in waits:
                path.append(following)
                on_path.add(following)
                stack.append((following, iter(waits[following])))
            else:
                done.add(following)
    return []


def refs_named(value: Any) -> tuple[list[str], int]:
    """Of a `depends_on` as it was sent: the refs of jobs of the same request, and how many other things it names."""
    refs: list[str] = []
    others = 0
    for item in value if isinstance(value, (list, tuple)) else [value] if value else []:
        members = item.get("of") if isinstance(item, Mapping) else None
        for one in members if isinstance(members, (list, tuple)) else [item]:
            ref = one.get("ref") if isinstance(one, Mapping) else None
            if isinstance(ref, str):
                refs.append(ref.strip())
            else:
                others += 1
    return refs, others


def job_ref(value: Any) -> int | uuid.UUID | ElementRef | None:
    """A job's number or id, or an element as `123_3`, as people write it; None when it is none of these."""
    if isinstance(value, str) and (match := _ELEMENT_REF.fullmatch(value.strip())):
        return ElementRef(int(match[1]), int(match[2]))
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
    ranges, at_once = _ranges(value, most)
    found: set[int] = set()
    for indices in ranges:
        found.update(indices)
    return tuple(sorted(found)), at_once


def array_size(value: Any, *, most: int) -> int:
    """How many jobs an array makes at most, without making a list of them; raises as `read_array` does."""
    return sum(map(len, _ranges(value, most)[0]))


def _ranges(value: Any, most: int) -> tuple[list[range], int | None]:
    text = str(value).strip() if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    if len(text) > MAX_ARRAY_TEXT:
        raise BadValue(f"Has {len(text)} characters; an array is written in at most {MAX_ARRAY_TEXT}")
    ranges, percent, limit = text.partition("%")
    at_once = read_integer(limit) if percent else None
    if percent and (at_once is None or not 1 <= at_once <= most):
        raise BadValue(f"Needs the number of elements that may run at once after %, 1 to {most}")
    found: list[range] = []
    size = 0
    for part in ranges.split(","):
        match = _ELEMENT.fullmatch(part.strip())
        if match is None:
            raise BadValue(f"{text[:40]!r} is not an array; write for example 0-9, 1,3,5 or 0-99%10")
        found.append(_range(match))
        size += len(found[-1])
        if size > most:
            raise BadValue(f"Makes more than {most} jobs, the most an array may have; split it")
    return found, at_once


def _range(match: re.Match[str]) -> range:
    """The indices of one element: `7`, `0-9` or `0-20:5`."""
    first, last = int(match[1]), int(match[2] or match[1])
    step = int(match[3] or 1)
    if last > MAX_ARRAY_INDEX:
        raise BadValue(f"Has index {last}; the highest is {MAX_ARRAY_INDEX}")
    if step < 1:
        raise BadValue(f"{match[0][:40]!r} has step {step}; the least is 1")
    if last < first:
        raise BadValue(f"{match[0][:40]!r} is empty; write the lower index first")
    return range(first, last + 1, step)
