"""What a job of several tasks says about their number, their places, and the failure of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler.core.lifecycle import PackLevel, TaskFailure
from scheduler.services.submission.fields import Inputs, read_seconds

#: Nodes that stand idle for a gang are dear: a day is as long as anybody gathers.
MAX_ASSEMBLY_SECONDS: Final = 86_400

#: The fields of a job that are read here.
FIELDS: Final = frozenset({"min_tasks", "elastic", "on_task_failure", "pack", "assembly_timeout"})


@dataclass(frozen=True, slots=True)
class GangTerms:
    """Beside the number of tasks; a job of one task has the plain ones."""

    min_tasks: int | None = None
    elastic: bool = False
    on_task_failure: str = TaskFailure.FAIL
    pack: str = ""
    pack_required: bool = False
    assembly_timeout_seconds: int | None = None

    def columns(self) -> dict[str, Any]:
        return {
            "min_tasks": self.min_tasks,
            "elastic": self.elastic,
            "on_task_failure": self.on_task_failure,
            "pack": self.pack,
            "pack_required": self.pack_required,
            "assembly_timeout_seconds": self.assembly_timeout_seconds,
        }


def read_gang(inputs: Inputs, *, tasks: int, nodes: int | None, per_node: int | None) -> GangTerms:
    """`min_tasks`, `elastic`, `on_task_failure`, `pack` and `assembly_timeout`, checked against its layout."""
    if all(inputs.given(name) is None for name in FIELDS):
        return _PLAIN
    pack, required = _pack(inputs)
    least = inputs.integer("min_tasks", least=1, most=tasks)
    if least is not None and nodes is not None and (per_node is not None or least < nodes):
        inputs.wrong(
            "min_tasks",
            f"min_tasks leaves the size open, but nodes requests {nodes}; leave nodes out, or request a fixed size.",
            code="inconsistent",
        )
    elastic = inputs.flag("elastic", default=False)
    if elastic and (least is None or least == tasks):
        inputs.wrong(
            "elastic",
            "An elastic job needs min_tasks less than tasks.",
            code="inconsistent",
        )
    rule = inputs.choice("on_task_failure", TaskFailure, default=TaskFailure.FAIL)
    if rule == TaskFailure.CONTINUE and least is None:
        inputs.wrong(
            "on_task_failure",
            "Continuing with fewer tasks needs min_tasks.",
            code="inconsistent",
        )
    if pack == PackLevel.NODE and required and nodes is not None and nodes > 1:
        inputs.wrong("pack", f"Requires one node, but nodes requests {nodes}.", code="inconsistent")
    seconds: int | None = inputs.read("assembly_timeout", read_seconds)
    if seconds is not None and seconds > MAX_ASSEMBLY_SECONDS:
        inputs.wrong(
            "assembly_timeout", f"Must be at most {MAX_ASSEMBLY_SECONDS} seconds.", code="out-of-range"
        )
    return GangTerms(
        min_tasks=least if least != tasks or rule == TaskFailure.CONTINUE else None,
        elastic=elastic,
        on_task_failure=rule,
        pack=pack,
        pack_required=required,
        assembly_timeout_seconds=seconds or None,
    )


def _pack(inputs: Inputs) -> tuple[str, bool]:
    """`"rack"` wishes; `{"level": "rack", "required": true}` must."""
    value = inputs.given("pack")
    if not isinstance(value, Mapping):
        return inputs.choice("pack", PackLevel, default=""), False
    one = Inputs(value, under=f"{inputs.under}pack/")
    one.refuse_unknown(("level", "required"))
    level = one.choice("level", PackLevel, default="")
    if not level and one.given("level") is None:
        one.wrong("level", f"Required: one of {', '.join(PackLevel)}.", code="required")
    required = one.flag("required", default=False)
    inputs.problems += one.problems
    return level, required


_PLAIN: Final = GangTerms()
