"""What every backend promises: start tasks once, stop them, and say what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scheduler.agent.protocol import Assignment, Report, Stop


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do; what it cannot is said, not pretended."""

    #: We ask it and tell it (`reconcile.drive_backend`); otherwise it asks us, as agents do.
    is_driven: bool
    runs_processes: bool = True
    reports_usage: bool = False
    streams_logs: bool = False
    shares_gpus: bool = False
    several_nodes: bool = True
    #: Processes can be suspended and resumed (SIGSTOP, SIGCONT), so a job can be preempted without losing work.
    suspends: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """What a backend has on one node: the tasks it answers for (id -> epoch), and what is new of them."""

    known: Mapping[int, int] = field(default_factory=dict)
    reports: Sequence[Report] = ()


class QuotaRefused(Exception):
    """The quota provider of the backend refused some of them; the others were taken.

    `tasks` has the reason for each task that was refused, in the words of who refused it.
    """

    def __init__(self, tasks: Mapping[int, str]) -> None:
        super().__init__(next(iter(tasks.values()), "The quota was refused."))
        self.tasks = dict(tasks)


class Backend(Protocol):
    """Where attempts of a cluster really run.

    Every call may be repeated: a task that is known is not started again, a stop that was asked is not
    asked anew, a report may be given twice. Calls happen outside any transaction, and may fail.
    """

    name: str
    capabilities: Capabilities

    def submit(self, node: str, assignments: Sequence[Assignment]) -> None:
        """Raises QuotaRefused, once all the others are taken, for those that a quota there does not let in."""

    def stop(self, node: str, stops: Sequence[Stop]) -> None: ...

    def pause(self, node: str, pauses: Sequence[Sequence[int]]) -> None:
        """Suspend each (task, epoch) where the third number is 1, resume it where it is 0."""

    def verify(self, node: str, asked: Sequence[Sequence[int]]) -> None:
        """Say of each (task, epoch) that is not there that it is lost."""

    def observe(self, node: str) -> Observation: ...
