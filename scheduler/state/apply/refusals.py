"""Decisions of a plan that no longer hold when it is written, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

#: The database refused the start after every check had passed: an invariant would have broken.
REFUSED_BY_CONSTRAINT: Final = "RefusedByConstraint"
#: The job is no longer queued as planned.
JOB_CHANGED: Final = "JobChanged"
#: A victim, or the job for which victims were to be stopped, is no longer as it was planned.
VICTIM_CHANGED: Final = "VictimChanged"
#: A suspended job cannot resume now: its CPUs are in use, a limit is reached, or it has changed.
CANNOT_RESUME: Final = "CannotResume"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One decision that no longer held when it was to be written."""

    job: int
    code: str
    message: str

    def as_dict(self) -> dict[str, Any]:
        return {"job": self.job, "code": self.code, "message": self.message}
