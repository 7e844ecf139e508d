"""What of a plan no longer held when it was to be written, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

#: One of the victims, or the job they were to be stopped for, is no longer as it was planned.
VICTIM_CHANGED: Final = "VictimChanged"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One start that no longer held when it was to be written."""

    job: int
    code: str
    message: str

    def as_dict(self) -> dict[str, Any]:
        return {"job": self.job, "code": self.code, "message": self.message}
