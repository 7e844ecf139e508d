"""When a running task is asked for a checkpoint, and what comes of it: written in time, or not."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from scheduler.agent import processes
from scheduler.agent.protocol import Stop, TaskRecord
from scheduler.agent.tasks.local_task import LocalTask, is_suspended

#: Why a checkpoint is made.
OWN, PERIODIC, ASKED, TIME_LIMIT, STOP = "own", "periodic", "asked", "time_limit", "stop"
#: Stops that wait for a checkpoint: the job starts again and goes on from it.
_STOPS: Final = frozenset({"preempted", "evicted", "drained"})
#: What a task has to end after a stop that waited longer than its grace.
_LEAST_GRACE_SECONDS: Final = 5.0


@dataclass(slots=True)
class Request:
    """A task was asked for a checkpoint, by `why`; `until` is on the monotonic clock."""

    why: str
    until: float
    #: A process has the signal.
    reached: bool = False
    #: The server knows of it.
    said: bool = False

    @property
    def seconds_left(self) -> int:
        return max(0, round(self.until - time.monotonic()))


class Asked:
    """The requests of one task; `stop` has its processes end, with a grace in seconds."""

    def __init__(self, entry: LocalTask, stop: Callable[[str, float], None]) -> None:
        self.entry = entry
        self.request: Request | None = None
        self._stop = stop
        #: A stop that waits for the checkpoint, and until when (monotonic).
        self._stop_order: tuple[Stop, float] | None = None
        self._stopped = False
        self._last_at: float | None = None
        #: The time limit before which it was asked; 0 = before none.
        self._limit_asked = 0
        self._number = 0

    # ------------------------------------------------------------ reasons to ask

    def hold(self, order: Stop) -> bool:
        """Whether this stop waits for a checkpoint; the same order may come often."""
        terms, record = self.entry.checkpoint_terms, self.entry.record
        if terms is None or record is None or order["reason"] not in _STOPS or order["stale"]:
            self._stop_order = None
            return False
        if record["state"] != "running" or record["stop_reason"] or is_suspended(record) or self._stopped:
            return False
        if self._stop_order is None:
            now = time.monotonic()
            self._stop_order = order, now + order["grace_seconds"]
            seconds = min(terms["grace_seconds"], order["grace_seconds"])
            if self.request is None:
                self.request = Request(STOP, now + seconds)
            else:
                self.request.why, self.request.until = STOP, min(self.request.until, now + seconds)
        return True

    def ask(self, number: int) -> None:
        """Somebody wants a checkpoint now; the same request may come twice."""
        terms = self.entry.checkpoint_terms
        if terms is None or number <= self._number:
            return
        self._number = number
        if self.request is None:
            self.request = Request(ASKED, time.monotonic() + terms["grace_seconds"])

    def ask_when_due(self) -> None:
        """Ask where the time limit is near, or a period is over."""
        terms, record = self.entry.checkpoint_terms, self.entry.record
        if self.request is not None or terms is None or record is None or record["state"] != "running":
            return
        if record["stop_reason"] or is_suspended(record):
            return
        now = time.monotonic()
        limit, left = _limit_of(record), _seconds_to_limit(record)
        if left is not None and left <= terms["grace_seconds"] and self._limit_asked != limit:
            self._limit_asked = limit
            self.request = Request(TIME_LIMIT, now + max(0.0, left))
        elif terms["every_seconds"]:
            if self._last_at is None:
                self._last_at = now - _age_seconds(record) % terms["every_seconds"]
            if now - self._last_at >= terms["every_seconds"]:
                self.request = Request(PERIODIC, now + terms["grace_seconds"])

    # ------------------------------------------------------------ what comes of it

    def signal(self) -> None:
        """Send the signal to the processes that handle it, once there are some."""
        request, terms, record = self.request, self.entry.checkpoint_terms, self.entry.record
        if request is None or terms is None or record is None or record["state"] != "running":
            return
        if not request.reached and processes.is_running(record["pid"], record["start_ticks"]):
            tree = terms["to"] == "all"
            request.reached = processes.signal_handlers(record["pid"], terms["signal"], tree=tree) > 0
        if request.reached and self._stop_order is not None:
            # Where its program ends by itself now, with whatever code, it was stopped all the same.
            self.entry.held_stop = self._stop_order[0]["reason"]

    def saved(self) -> str:
        """A checkpoint is finished: why it was made. A stop that waited for it is carried out."""
        why = self.request.why if self.request else OWN
        self._last_at = time.monotonic()
        self._go_on()
        return why

    def missed(self) -> str:
        """Why the request came to nothing, when its time is up; "" otherwise."""
        request, record = self.request, self.entry.record
        if request is None or record is None:
            return ""
        if record["state"] == "running" and time.monotonic() < request.until:
            return ""
        self._last_at = time.monotonic()
        self._go_on()
        if record["state"] != "running":
            return "The job ended without a checkpoint."
        terms = self.entry.checkpoint_terms
        name = signal.Signals(terms["signal"]).name if terms else "the signal"
        if not request.reached:
            return f"No process of the job handles {name}."
        return "The job wrote no checkpoint in time after the request."

    def _go_on(self) -> None:
        """Forget the request, and carry out the stop that waited."""
        self.request = None
        if self._stop_order is not None:
            order, until = self._stop_order
            self._stopped = True  # from now on the same order goes to the shim as any other
            self._stop(order["reason"], max(_LEAST_GRACE_SECONDS, until - time.monotonic()))


def _age_seconds(record: TaskRecord) -> float:
    return (processes.boot_ms() - record["started_boot_ms"]) / 1000


def _limit_of(record: TaskRecord) -> int:
    """The task's time limit in seconds as it is now; 0 = none."""
    limit: int = record.get("changed_limit", record["meta"].get("limit_seconds") or 0)
    return limit


def _seconds_to_limit(record: TaskRecord) -> float | None:
    """How long the task may still run; None without a time limit."""
    limit = _limit_of(record)
    if not limit:
        return None
    seconds: float = limit + record.get("suspended_ms", 0) / 1000 - _age_seconds(record)
    return seconds
