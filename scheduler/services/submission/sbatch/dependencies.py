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
    for kind, said in found.times.dependencies:
        job = _ref_of(said, by) if by is not None else said.removesuffix("_*")
        if job is None:
            found.wrong("dependency", f"--dependency: there is no job {said} that you may see.", "not-found")
        else:
            wanted[kind, job] = {"job": job, "type": kind}
    if found.times.any_dependency and len(found.times.dependencies) > 1:
        _fill_any(found, wanted)
        return
    if found.times.singleton and by is not None:
        for job in _jobs_named_alike(found, by, name):
            wanted.setdefault(("afterany", job), {"job": job, "type": "afterany"})
    if len(wanted) > MAX_DEPENDENCIES:
        found.wrong(
            "dependency",
            f"--dependency: names {len(wanted)} jobs; a job waits for at most {MAX_DEPENDENCIES}.",
            "too-many",
        )
    elif wanted:
        found.fill("depends_on", list(wanted.values()))


def _fill_any(found: Directives, wanted: dict[tuple[str, str], dict[str, Any]]) -> None:
    if found.times.singleton:
        found.wrong(
            "dependency", "--dependency: singleton is not one of several choices here.", "not-supported"
        )
    elif wanted:
        found.fill("depends_on", [{"any": 1, "of": list(wanted.values())}])


def _ref_of(said: str, by: User) -> str | None:
    """What `12`, `12_3` and `12_*` name, as `depends_on` takes it; None for what the person cannot see."""
    number, _, index = said.partition("_")
    whole = index in ("", "*")
    jobs = visible_jobs(by).select_related(None)
    named = (
        jobs.filter(number=int(number))
        if whole
        else jobs.filter(array_number=int(number), array_index=int(index))
    )
    if not named.exists():
        return None
    return number if whole else said


def _jobs_named_alike(found: Directives, by: User, name: str) -> list[str]:
    """The person's jobs of the same name that have not ended."""
    if not name:
        found.wrong("dependency", "--dependency: singleton needs a name; add --job-name.", "required")
        return []
    jobs = Job.objects.filter(user=by, name=name).exclude(state__in=TERMINAL).order_by("number")
    return [str(number) for number in jobs.values_list("number", flat=True)[: MAX_DEPENDENCIES + 1]]
