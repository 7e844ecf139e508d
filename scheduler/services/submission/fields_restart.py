"""The rules of a job that say, by exit code or failure class, whether it starts again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler.core.lifecycle import FailureClass
from scheduler.core.restart_rules import CLASSES, LEAST_CODE, MOST_CODE, RestartAction, read_codes
from scheduler.services.submission.declaration import Kind, Schema, choice, declared, rule
from scheduler.services.submission.fields import Inputs

MAX_RULES: Final = 64
MAX_WORDS: Final = 64


def _read_on(inputs: Inputs, name: str) -> list[str]:
    found = []
    for number, value in enumerate(inputs.listing(name, most=MAX_WORDS, or_one=True)):
        word = str(value).strip().lower().replace("_", "-") if isinstance(value, str) else value
        if isinstance(word, str) and word in CLASSES:
            found.append(word)
            continue
        try:
            if isinstance(word, bool) or not isinstance(word, (int, str)):
                raise ValueError
            read_codes(str(word))
        except ValueError:
            inputs.wrong(
                f"{name}/{number}",
                f"Must be an exit code or a range of {LEAST_CODE} to {MOST_CODE}, as 75 or 10-19, or a failure "
                f"class: {', '.join(FailureClass)}.",
                code="bad-failure",
            )
        else:
            found.append(str(word))
    return found


@dataclass(slots=True)
class RestartRuleAsked:
    """What becomes of the job after certain failures."""

    on: list[str] = declared(
        "on", kind=Kind.TEXT_LIST, read=_read_on, default=[], most=MAX_WORDS,
        help=f"Exit codes, ranges of them, and failure classes: {', '.join(FailureClass)}.",
    )  # fmt: skip
    action: str = choice(
        "action", RestartAction, default="", help="restart: the job starts again. fail: the job fails."
    )

    def kept(self) -> dict[str, Any]:
        """The form that the job's row keeps."""
        return {"on": self.on, "action": self.action}


@rule("on")
def a_rule_names_failures(asked: RestartRuleAsked, inputs: Inputs) -> None:
    """A restart rule names the failures that it is for."""
    if not asked.on and inputs.given("on") is None:
        inputs.wrong(
            "on", 'Required: exit codes or failure classes, as [75, "out-of-memory"].', code="required"
        )


@rule("action")
def a_rule_has_an_action(asked: RestartRuleAsked, inputs: Inputs) -> None:
    """A restart rule has an action."""
    if not asked.action and inputs.given("action") is None:
        inputs.wrong("action", f"Required: one of {', '.join(RestartAction)}.", code="required")


RESTART_RULE: Final = Schema(RestartRuleAsked, [a_rule_names_failures, a_rule_has_an_action])


def read_restart_rules(inputs: Inputs, name: str) -> list[dict[str, Any]]:
    """A list of restart rules, in the form that the job's row keeps."""
    found: list[dict[str, Any]] = []
    for number, item in enumerate(inputs.listing(name, most=MAX_RULES)):
        at = f"{name}/{number}"
        if not isinstance(item, Mapping):
            inputs.wrong(at, "Must be an object with on and action.", code="not-an-object")
            continue
        read, one = RESTART_RULE.read(item, under=f"{inputs.under}{at}/")
        inputs.problems += one.problems
        found.append(read.kept())
    return found
