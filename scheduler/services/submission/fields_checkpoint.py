"""The field of a job that makes checkpoints: how it is asked for them, and what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from quotas.core.resources import parse_mib
from scheduler.core.checkpoints import DEFAULT_GRACE, DEFAULT_KEEP, RECEIVERS, SIGNALS, CheckpointPolicy
from scheduler.services.submission.declaration import (
    Kind,
    Schema,
    amount,
    choice,
    declared,
    duration,
    integer,
)
from scheduler.services.submission.fields import Inputs

MAX_GRACE: Final = 3600
LEAST_EVERY: Final = 10
MAX_KEEP: Final = 100


def _read_signal(inputs: Inputs, name: str) -> str:
    given = inputs.given(name)
    word = str(given).strip().upper().removeprefix("SIG") if isinstance(given, str) else ""
    if word not in SIGNALS:
        inputs.wrong(name, f"Must be one of {', '.join(SIGNALS)}.", code="bad-choice")
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
