"""What a job says of its failures: whether it starts again, its probes, and how it is asked for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
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
    kept_objects,
    rule,
    text,
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
    return kept_objects(inputs, name, RESTART_RULE, most=MAX_RULES, has="on and action")


# ---------------------------------------------------------------- checkpoints

MAX_GRACE: Final = 3600
LEAST_EVERY: Final = 10
MAX_KEEP: Final = 100
#: As Slurm: a number of 16 bits.
MAX_BEFORE: Final = 65_535


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
        help="The signal that requests a checkpoint; sent only to processes that handle the signal.",
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


# ---------------------------------------------------------------- a signal before the time limit


@dataclass(slots=True)
class LimitSignalAsked:
    """Which signal the job gets before its time limit, when, and who gets it."""

    signal: str = declared(
        "signal", kind=Kind.CHOICE, read=_read_signal, default=SIGNALS[0], choices=SIGNALS,
        help="Sent only to processes that handle it.",
    )  # fmt: skip
    to: str = choice(
        "to", RECEIVERS, default=RECEIVERS[0],
        help="all: every process of a task that handles the signal. shell: its first process alone.",
    )  # fmt: skip
    before: int = duration(
        "before", most=MAX_BEFORE, default=DEFAULT_GRACE, help="How long before the time limit it is sent."
    )


LIMIT_SIGNAL: Final = Schema(LimitSignalAsked)


def read_limit_signal(inputs: Inputs, name: str) -> dict[str, Any]:
    """An object, {} for one with all defaults; in the form that the job's row keeps."""
    given = inputs.given(name)
    if not isinstance(given, Mapping):
        message = 'Must be an object, such as {"signal": "USR1", "before": "2m"}, or {}.'
        inputs.wrong(name, message, code="not-an-object")
        return {}
    asked, inner = LIMIT_SIGNAL.read(given, under=f"{inputs.under}{name}/")
    inputs.problems += inner.problems
    return {} if inner.problems else asdict(asked)


# ---------------------------------------------------------------- probes


MAX_PROBES: Final = 4
#: Seconds.
DEFAULT_EVERY: Final = 30
DEFAULT_TIMEOUT: Final = 10
MAX_EVERY: Final = 86_400
MAX_TIMEOUT: Final = 3600
MAX_LIMIT: Final = 30 * 86_400
MAX_COMMAND: Final = 2000
#: Failures in a row, where the probe does not say: a command or a server may fail once for no reason.
DEFAULT_FAILURES: Final = 3


class ProbeKind(StrEnum):
    """What is checked."""

    COMMAND = "command"  # a command ends with exit code 0
    HTTP = "http"  # a port of the node answers
    FILE = "file"  # a file is written now and then
    OUTPUT = "output"  # the job prints something now and then
    GPU = "gpu"  # its GPUs work now and then


_WITH_LIMIT: Final = (ProbeKind.FILE, ProbeKind.OUTPUT, ProbeKind.GPU)
#: The kinds that each field is for.
_FIELDS: Final[dict[str, tuple[ProbeKind, ...]]] = {
    "command": (ProbeKind.COMMAND,),
    "port": (ProbeKind.HTTP,),
    "path": (ProbeKind.HTTP, ProbeKind.FILE),
    "limit": _WITH_LIMIT,
    "timeout": (ProbeKind.COMMAND, ProbeKind.HTTP),
}


@dataclass(slots=True)
class ProbeAsked:
    """One check that is repeated while the job runs."""

    kind: str = choice(
        "kind", ProbeKind, default="",
        help="command: ends with exit code 0. http: a port of the node's loopback address answers GET with 200 to "
        "399. file: a file is no older than limit. output: the job printed something within limit. gpu: the job's "
        "GPUs worked within limit.",
    )  # fmt: skip
    name: str = text(
        "name", most=40, help="The name of the probe in messages.", default="", left_out="its kind"
    )
    command: str = text(
        "command", most=MAX_COMMAND, lines=True, default="",
        help="Of kind command: run by /bin/sh with the job's account, environment and isolation.",
    )  # fmt: skip
    port: int | None = integer("port", least=1, most=65_535, help="Of kind http.", default=None)
    path: str = text(
        "path", most=1000, default="",
        help="Of kind http: the path with its query. Of kind file: the file, from the working directory.",
        left_out="/ for kind http",
    )  # fmt: skip
    limit: int | None = duration(
        "limit", most=MAX_LIMIT, help="Of kinds file, output and gpu: the longest time without a sign of life.",
        example="10m",
    )  # fmt: skip
    every: int | None = duration(
        "every", most=MAX_EVERY, help="From one check to the next.", left_out=f"{DEFAULT_EVERY} seconds"
    )
    timeout: int | None = duration(
        "timeout", most=MAX_TIMEOUT, help="Of kinds command and http: a check that takes longer has failed.",
        left_out=f"{DEFAULT_TIMEOUT} seconds",
    )  # fmt: skip
    failures: int | None = integer(
        "failures", least=1, most=1000, help="The job is unhealthy after this number of failures in a row.",
        left_out=f"{DEFAULT_FAILURES} for kinds command and http, 1 for others", default=None,
    )  # fmt: skip
    start_after: int | None = duration(
        "start_after", most=MAX_LIMIT, help="Checks begin this long after the start.", left_out="at once"
    )

    def kept(self) -> dict[str, Any]:
        """The form that the job's row keeps: with all defaults filled in, and what is of other kinds left out."""
        kept: dict[str, Any] = {
            "kind": self.kind,
            "every": self.every or DEFAULT_EVERY,
            "timeout": self.timeout or DEFAULT_TIMEOUT,
            "failures": self.failures or (1 if self.kind in _WITH_LIMIT else DEFAULT_FAILURES),
            "start_after": self.start_after or 0,
        }
        if self.kind == ProbeKind.HTTP and not self.path:
            kept["path"] = "/"
        own = {"name": self.name} | {
            name: getattr(self, name) for name in ("command", "port", "path", "limit")
        }
        return kept | {name: value for name, value in own.items() if value}


@rule("kind")
def a_probe_has_a_kind(asked: ProbeAsked, inputs: Inputs) -> None:
    """A probe has a kind."""
    if not asked.kind and inputs.given("kind") is None:
        inputs.wrong("kind", f"Required: one of {', '.join(ProbeKind)}.", code="required")


@rule(*_FIELDS)
def a_probe_says_what_its_kind_needs(asked: ProbeAsked, inputs: Inputs) -> None:
    """A probe has `command`, `port`, `path` or `limit` as its kind needs it, and no field of another kind."""
    if not asked.kind:
        return
    for name, kinds in _FIELDS.items():
        given = inputs.given(name) is not None
        optional = name == "timeout" or (name == "path" and asked.kind == ProbeKind.HTTP)
        if given and asked.kind not in kinds:
            inputs.wrong(name, f"Not used with kind {asked.kind}; leave it out.", code="inconsistent")
        elif not given and asked.kind in kinds and not optional:
            inputs.wrong(name, f"Required for kind {asked.kind}.", code="required")


@rule("path")
def a_path_of_http_is_one_line(asked: ProbeAsked, inputs: Inputs) -> None:
    """The path of a probe of kind http begins with a slash and has no blanks."""
    path = asked.path
    if (
        asked.kind == ProbeKind.HTTP
        and path
        and (path[0] != "/" or not path.isascii() or len(path.split()) > 1)
    ):
        inputs.wrong("path", "Must begin with / and have no blanks; write others as %20.", code="bad-path")


PROBE: Final = Schema(
    ProbeAsked, [a_probe_has_a_kind, a_probe_says_what_its_kind_needs, a_path_of_http_is_one_line]
)


def read_probes(inputs: Inputs, name: str) -> list[dict[str, Any]]:
    """A list of probes, in the form that the job's row keeps."""
    return kept_objects(inputs, name, PROBE, most=MAX_PROBES, has="kind")
