"""Rules that say, by exit code or failure class, whether a job that failed starts again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from scheduler.core.lifecycle import FailureClass

#: Of a process: 0 is success, and a shell can say no more than 255.
LEAST_CODE: Final = 1
MOST_CODE: Final = 255
#: Seconds before the first restart where the job names none, and the longest wait.
DEFAULT_DELAY: Final = 5
DEFAULT_DELAY_MAX: Final = 15 * 60
CLASSES: Final = frozenset(one.value for one in FailureClass)


class RestartAction(StrEnum):
    """What becomes of a job that failed."""

    RESTART = "restart"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class RestartRule:
    """Applies to a failure of one of these classes, or with an exit code in one of these ranges (both ends in)."""

    action: RestartAction
    classes: frozenset[FailureClass]
    codes: tuple[tuple[int, int], ...]

    def applies(self, failure: FailureClass, exit_code: int | None) -> bool:
        if failure in self.classes:
            return True
        return exit_code is not None and any(low <= exit_code <= high for low, high in self.codes)


def action_of(rules: Iterable[RestartRule], failure: FailureClass, exit_code: int | None) -> bool | None:
    """Whether the first rule that applies starts the job again; None where none applies."""
    for rule in rules:
        if rule.applies(failure, exit_code):
            return rule.action == RestartAction.RESTART
    return None


def rules_of(kept: Sequence[Mapping[str, Any]]) -> tuple[RestartRule, ...]:
    """The rules of a job, from the form that its row keeps: `[{"on": ["10-19", "time-limit"], "action": "fail"}]`."""
    return tuple(_rule(RestartAction(one["action"]), one["on"]) for one in kept)


def _rule(action: RestartAction, on: Iterable[str]) -> RestartRule:
    classes, codes = set(), []
    for word in on:
        if word in CLASSES:
            classes.add(FailureClass(word))
        else:
            codes.append(read_codes(word))
    return RestartRule(action, frozenset(classes), tuple(codes))


def read_codes(word: str) -> tuple[int, int]:
    """`75` -> (75, 75), `10-19` -> (10, 19). Raises ValueError for other words and for codes out of range."""
    low, dash, high = word.partition("-")
    if not low.isascii() or not low.isdecimal() or (dash and not (high.isascii() and high.isdecimal())):
        raise ValueError(word)
    first, last = int(low), int(high) if dash else int(low)
    if not LEAST_CODE <= first <= last <= MOST_CODE:
        raise ValueError(word)
    return first, last
