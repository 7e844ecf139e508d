"""Limits: what a start counts for on a quota line, and what is left on the lines up to the root."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from quotas.core.resources import NAMES, Resources

#: The line that counts jobs instead of amounts.
RUNNING_JOBS: Final = "running_jobs"


@dataclass(frozen=True, slots=True)
class Line:
    """One bound on what may be in use at once: a project's own, or one of those above it."""

    resource: str
    hard: int
    used: int = 0
    enforce: bool = True

    @property
    def left(self) -> int:
        """What may still be taken; 0 when a later cut of the bound left more in use than it allows (I3)."""
        return max(self.hard - self.used, 0)


def charge(resource: str, per_task: Resources, tasks: int) -> int:
    """What a job of so many equal tasks counts for on a line of this resource.

    GPUs in thousandths count whole devices as 1000 each, a share as what it is.
    """
    if resource == RUNNING_JOBS:
        return 1
    if resource == "gpu_millis":
        return per_task.gpu_millis_charged * tasks
    if resource in NAMES:
        return int(getattr(per_task, resource)) * tasks
    return dict(per_task.extras).get(resource, 0) * tasks


def short_lines(lines: Iterable[Line], per_task: Resources, tasks: int) -> list[tuple[Line, int]]:
    """The enforced lines that have no room for this job now, with what it needs there, in the given order."""
    needs = ((line, charge(line.resource, per_task, tasks)) for line in lines if line.enforce)
    return [(line, need) for line, need in needs if need > line.left]


def room_on_path(lines: Iterable[Line], resource: str) -> int | None:
    """The most of a resource that every enforced line on a path still allows; None = no line bounds it."""
    left = [line.left for line in lines if line.enforce and line.resource == resource]
    return min(left) if left else None
