"""Whose turn it is: `--qos`, `--priority` and `--nice` as a priority of 0 to 100."""

from __future__ import annotations

from typing import Final

from accounts.models import User
from scheduler.models import PriorityClass
from scheduler.services.submission.sbatch.directives import Directives
from scheduler.services.submission.submitter import DEFAULT_PRIORITY, MAX_PRIORITY

#: Slurm's number of `--nice` that lowers a priority of 0 to 100 by one; its default of 100 lowers it by ten.
NICE_STEP: Final = 10


def fill_priority(found: Directives, by: User | None) -> None:
    """The field `priority`. A QOS is a priority class; a number that Slurm would not take from a user is capped."""
    ceiling = int(by.priority_ceiling) if by is not None else MAX_PRIORITY
    asked = found.fields.get("priority")
    if found.qos and "priority" not in found.said:
        asked = _of_qos(found)
    if asked is not None and str(asked).upper() == "TOP":
        asked = ceiling
    if isinstance(asked, int) and asked > ceiling and "priority" in found.said:
        found.note(
            "priority",
            f"Priorities are 0 to {MAX_PRIORITY} here, and yours at most {ceiling}: the job has that.",
        )
        asked = ceiling
    if found.nice:
        start = (
            asked if isinstance(asked, int) else _named(asked) if asked else min(DEFAULT_PRIORITY, ceiling)
        )
        asked = max(0, (start if start is not None else DEFAULT_PRIORITY) - -(-found.nice // NICE_STEP))
        found.note(
            "nice", f"Lowers the priority of 0 to {MAX_PRIORITY} by one for each {NICE_STEP}: it is {asked}."
        )
    if asked is not None:
        found.fill("priority", asked)


def _of_qos(found: Directives) -> int | None:
    value = _named(found.qos)
    if value is None:
        names = ", ".join(PriorityClass.objects.values_list("name", flat=True))
        found.wrong(
            "qos", f"--qos: there is no priority class {found.qos[:60]!r}, which a QOS is here; there are {names}.",
            "not-found",
        )  # fmt: skip
    return value


def _named(name: str) -> int | None:
    """The number of a priority class by its name or an alias, in any case."""
    for row in PriorityClass.objects.all():
        if name.upper() in (row.name.upper(), *(str(alias).upper() for alias in row.aliases)):
            return int(row.value)
    return None
