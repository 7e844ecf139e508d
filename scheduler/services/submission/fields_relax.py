"""What of a job's placement is given up when it has waited for long, or has failed: read into the form of its row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from scheduler.core.snapshot.relaxation import Relaxable
from scheduler.services.submission.declaration import Schema, choice, duration, integer, kept_objects, rule
from scheduler.services.submission.fields import BadValue, Inputs

MAX_FAILURES: Final = 1000


@dataclass(slots=True)
class RelaxAsked:
    """A constraint that is required until the job has waited or failed, and is preferred from then on."""

    constraint: str = choice(
        "constraint", Relaxable, default="",
        help="A field of the request, or a part of its affinity. gpu_type is dropped: any model will do.",
    )  # fmt: skip
    after: int | None = duration("after", help="How long the job waits in its queue, as time_limit.")
    after_failures: int | None = integer(
        "after_failures", least=1, most=MAX_FAILURES,
        help="How many of its attempts failed or lost their node; with after, whichever comes first.",
    )  # fmt: skip

    def kept(self) -> dict[str, Any]:
        """The form that the job's row keeps."""
        said = {"constraint": self.constraint, "after": self.after, "after_failures": self.after_failures}
        return {name: value for name, value in said.items() if value is not None}


@rule("constraint")
def it_names_a_constraint(asked: RelaxAsked, inputs: Inputs) -> None:
    """An entry of `relax` names a constraint."""
    if not asked.constraint and inputs.given("constraint") is None:
        inputs.wrong("constraint", f"Required: one of {', '.join(Relaxable)}.", code="required")


@rule("after", "after_failures")
def it_says_when(asked: RelaxAsked, inputs: Inputs) -> None:
    """An entry of `relax` says after which wait, after how many failures, or both."""
    if inputs.given("after") is None and inputs.given("after_failures") is None:
        inputs.wrong("after", "Required: after, as 10m, or after_failures.", code="required")


RELAX: Final = Schema(RelaxAsked, [it_names_a_constraint, it_says_when])


def read_relax(inputs: Inputs, name: str) -> list[dict[str, Any]]:
    """A list of constraints to relax, in the form that the job's row keeps."""
    return kept_objects(
        inputs, name, RELAX, most=len(Relaxable), has="constraint, and after or after_failures"
    )


def relax_from_text(line: str) -> dict[str, Any]:
    """A line of the submit form or of the command line: `pack,after=10m`; raises BadValue for any other."""
    constraint, *parts = (part.strip() for part in line.split(","))
    found: dict[str, Any] = {"constraint": constraint}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or key not in ("after", "after_failures") or not value:
            raise BadValue(f"{line[:60]!r} is not as pack,after=10m or gpu_type,after_failures=2")
        found[key] = value
    return found


def relax_as_text(kept: dict[str, Any]) -> str:
    """The line that `relax_from_text` reads as this."""
    return ",".join(
        [kept["constraint"], *(f"{k}={kept[k]}" for k in ("after", "after_failures") if k in kept)]
    )
