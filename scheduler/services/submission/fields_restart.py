"""How a job starts again: its rules by exit code or failure class, and how it is asked for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from quotas.core.resources import parse_mib
from scheduler.core.lifecycle import FailureClass
from scheduler.core.restart_rules import CLASSES, LEAST_CODE, MOST_CODE, RestartAction, read_codes
from scheduler.models.results.checkpoint_policy import (
    DEFAULT_GRACE,
    DEFAULT_KEEP,
    RECEIVERS,
    SIGNALS,
    CheckpointPolicy,
)
from scheduler.services.submission.declaration import (
    Kind,
    Schema,
    amount,
    choice,
    declared,
    duration,
    integer,
    rule,
)
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


# ---------------------------------------------------------------- checkpoints

MAX_GRACE: Final = 3600
LEAST_EVERY: Final = 10
MAX_KEEP: Final = 100


def _read_signal(inputs: Inputs, name: str) -> str:
    given = inputs.given(name)
    word = str(given).strip().upper().removeprefix("SIG") if isinstance(given, str) else ""
    if word not in SIGNALS:
        inputs.wrong(name, f"Must be one of {', '.join(SIGNALS)}.", code="unknown-choice")
        return SIGNALS[0]
    return word


@dataclass(slots=True)
class CheckpointAsked:
    """How the job is asked for a checkpoint, and what is kept of them."""

    signal: str = declared(
        "signal", kind=Kind.CHOICE, read=_read_signal, default=SIGNALS[0], choices=SIGNALS,
        help="The signal that asks the job for a checkpoint; only processes that handle it get it.",
    )  # fmt: skip
    to: str = choice(
        "to", RECEIVERS, default=RECEIVERS[0],
        help="all: every process of a task that handles the signal. shell: its first process alone.",
    )  # fmt: skip
    grace: int = duration(
        "grace", most=MAX_GRACE, default=DEFAULT_GRACE,
        help="How long before its time limit the job is asked, and how long preemption waits for the checkpoint.",
    )  # fmt: skip
    every: int | None = duration(
        "every",
        help=f"From one request to the next, at least {LEAST_EVERY} s.",
        left_out="no periodic requests",
    )
    keep: int = integer(
        "keep", least=1, most=MAX_KEEP, default=DEFAULT_KEEP, help="The newest checkpoints that stay stored."
    )
    max_size_mib: int | None = amount(
        "max_size", parse_mib, unit="MiB", help="A larger checkpoint of a task is refused, as memory.",
        left_out="what the site allows",
    )  # fmt: skip

    def kept(self) -> dict[str, Any]:
        """The form that the job's row keeps."""
        return asdict(
            CheckpointPolicy(self.signal, self.to, self.grace, self.every, self.keep, self.max_size_mib)
        )


CHECKPOINT: Final = Schema(CheckpointAsked)


def read_checkpoint(inputs: Inputs, name: str) -> dict[str, Any]:
    """An object, {} for one with all defaults; in the form that the job's row keeps."""
    given = inputs.given(name)
    if not isinstance(given, Mapping):
        message = 'Must be an object, such as {"signal": "USR1", "every": "1h"}, or {}.'
        inputs.wrong(name, message, code="not-an-object")
        return {}
    asked, inner = CHECKPOINT.read(given, under=f"{inputs.under}{name}/")
    if asked.every is not None and asked.every < LEAST_EVERY:
        inner.wrong("every", f"Must be at least {LEAST_EVERY} seconds.", code="out-of-range")
    inputs.problems += inner.problems
    return {} if inner.problems else asked.kept()
