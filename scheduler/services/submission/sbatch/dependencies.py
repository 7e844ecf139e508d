"""`--dependency`: which jobs a script waits for, those of an array and of its own name among them."""

from __future__ import annotations

import re
from typing import Any, Final

from accounts.models import User
from scheduler.core.lifecycle import TERMINAL
from scheduler.models import Job
from scheduler.selectors import visible_jobs
from scheduler.services.submission.fields import BadValue
from scheduler.services.submission.fields_dependencies import MAX_DEPENDENCIES
from scheduler.services.submission.sbatch.directives import Directives, NotSupported

_KINDS: Final = ("afterok", "afterany", "afternotok")
_ABSENT: Final = {
    "after": "waiting for the start of another job does not exist here; afterany waits for its end",
    "aftercorr": "waiting for the same index of another array does not exist here; afterok waits for all of it",
    "afterburstbuffer": "there are no burst buffers here; afterany waits for the end of a job",
    "expand": "running jobs are not enlarged by another; leave it out",
}
_JOB: Final = re.compile(r"([0-9]{1,18})(?:_([0-9]{1,9}|\*))?")


def read_dependency(found: Directives, value: str) -> None:
    """`afterok:12:13,afterany:14`: all of them; `afterok:12?afterok:13`: any; `singleton`; a bare number: afterany."""
    found.times.dependencies, found.times.any_dependency, found.times.singleton = [], "?" in value, False
    if not value:
        return
    if "?" in value and "," in value:
        raise BadValue("mixes , (all of them) and ? (any of them); Slurm takes one of the two")
    for part in re.split(r"[,?]", value):
        if part.lower() == "singleton":
            found.times.singleton = True
        else:
            kind, jobs = _read_part(part)
            found.times.dependencies += [(kind, job) for job in jobs]


def _read_part(part: str) -> tuple[str, list[str]]:
    """The kind and the jobs of `afterok:12:13`, or of a bare number."""
    word, *jobs = part.split(":")
    kind = word.lower()
    if _JOB.fullmatch(kind) and not jobs:
        return "afterany", [kind]
    if kind in _ABSENT and jobs and all(re.fullmatch(r"[0-9_]+(?:\+[0-9]+)?", job) for job in jobs):
        raise NotSupported(f"{kind}: {_ABSENT[kind]}")
    if kind not in _KINDS or not jobs:
        raise BadValue(f"{part[:40]!r} is no dependency; write for example afterok:123")
    for job in jobs:
        if not _JOB.fullmatch(job):
            raise BadValue(f"{job[:40]!r} is not the number of a job; write for example afterok:123")
    return kind, jobs


def fill_dependencies(found: Directives, by: User | None, *, name: str) -> None:
    """The field `depends_on` of a job of this name.

    The number of an array is that of its first job, and means the whole array.
    """
    wanted: dict[tuple[str, str], dict[str, Any]] = {}
    groups: list[list[dict[str, Any]]] = []
    for kind, said in found.times.dependencies:
        jobs = _jobs_of(said, by) if by is not None else [said.partition("_")[0]]
        if not jobs:
            found.wrong("dependency", f"--dependency: there is no job {said} that you may see.", "not-found")
        group = [{"job": job, "type": kind} for job in jobs]
        groups.append(group)
        wanted |= {(kind, job): one for job, one in zip(jobs, group, strict=True)}
    if found.times.any_dependency and len(groups) > 1:
        _fill_any(found, groups, wanted)
        return
    if found.times.singleton and by is not None:
        for job in _jobs_named_alike(found, by, name):
            wanted.setdefault(("afterany", job), {"job": job, "type": "afterany"})
    if len(wanted) > MAX_DEPENDENCIES:
        found.wrong(
            "dependency",
            f"--dependency: names {len(wanted)} jobs with those of arrays; a job waits for at most {MAX_DEPENDENCIES}.",
            "too-many",
        )
    elif wanted:
        found.fill("depends_on", list(wanted.values()))


def _fill_any(
    found: Directives, groups: list[list[dict[str, Any]]], wanted: dict[tuple[str, str], dict[str, Any]]
) -> None:
    if any(len(group) > 1 for group in groups):
        found.wrong(
            "dependency",
            "--dependency: any of several arrays cannot be waited for here; name single jobs, or use , for all.",
            "not-supported",
        )
    elif found.times.singleton:
        found.wrong(
            "dependency", "--dependency: singleton is not one of several choices here.", "not-supported"
        )
    else:
        found.fill("depends_on", [{"any": 1, "of": list(wanted.values())}])


def _jobs_of(said: str, by: User) -> list[str]:
    """The numbers that `12`, `12_3` and `12_*` mean: a job, an element of an array, or all of its elements."""
    number, _, index = said.partition("_")
    jobs = visible_jobs(by).select_related(None)
    first = jobs.filter(number=int(number)).values("array_id", "array_index").first()
    if first is None or first["array_id"] is None:
        return [number] if first is not None and index in ("", "*") else []
    array = jobs.filter(array_id=first["array_id"]).order_by("array_index")
    if index not in ("", "*"):
        array = array.filter(array_index=int(index))
    elif array.values_list("number", flat=True)[:1].get() != int(number):
        return [number]  # an element in the middle is meant by itself
    return [str(one) for one in array.values_list("number", flat=True)[: MAX_DEPENDENCIES + 1]]


def _jobs_named_alike(found: Directives, by: User, name: str) -> list[str]:
    """The person's jobs of the same name that have not ended."""
    if not name:
        found.wrong("dependency", "--dependency: singleton needs a name; add --job-name.", "required")
        return []
    jobs = Job.objects.filter(user=by, name=name).exclude(state__in=TERMINAL).order_by("number")
    return [str(number) for number in jobs.values_list("number", flat=True)[: MAX_DEPENDENCIES + 1]]
