"""Operations: what a document asks for, each tried until the rows that it needs are there or nothing moves any more.

Rows refer to each other in both directions: a profile is refused while a queue uses it in a way that the same document
ends, and a queue while its profile is not yet as the document says. So an operation that is refused is tried again once
others have been carried out. What is refused at the end is wrong whatever the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple


class LineProblem(NamedTuple):
    line: int
    message: str


class Blocked(Exception):
    """The row that an operation belongs to is not there: the refusal of that row says why."""


class OperationRefused(Exception):
    """What is wrong, each with its line."""

    def __init__(self, problems: Iterable[LineProblem]) -> None:
        super().__init__()
        self.problems = tuple(problems)


@dataclass(slots=True)
class Operation:
    """One row that is written or deleted; `do` leaves nothing behind where it raises."""

    do: Callable[[], None]
    #: Those of a lower stage come first in each pass.
    stage: int = 0


def carry_out(operations: Iterable[Operation]) -> list[LineProblem]:
    """Do all, in the order of their stages, and again what was refused, while a pass does anything."""
    waiting = sorted(operations, key=lambda one: one.stage)
    while True:
        refused: list[Operation] = []
        problems: list[LineProblem] = []
        for one in waiting:
            try:
                one.do()
            except OperationRefused as refusal:
                refused.append(one)
                problems.extend(refusal.problems)
            except Blocked:
                refused.append(one)
        if not refused or len(refused) == len(waiting):
            return list(dict.fromkeys(problems))
        waiting = refused
