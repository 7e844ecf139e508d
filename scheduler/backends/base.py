"""What every backend promises: to start a task once, to stop it, and to report what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scheduler.agent.protocol import Assignment, Report, Stop


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do; the planner asks for nothing else."""

    #: Muster calls it (`services.execution.backend_driver`); otherwise it calls Muster, as agents do.
    is_driven: bool
    runs_processes: bool = True
    reports_usage: bool = False
    streams_logs: bool = False
    shares_gpus: bool = False
    several_nodes: bool = True
    #: Processes can be suspended and resumed (SIGSTOP, SIGCONT): a job can make room without losing its work.
    suspends: bool = False
    #: Gives secrets to tasks, keeps them from everybody else, and masks them in logs.
    keeps_secrets: bool = False
    #: Puts an uploaded folder into the working folder of a task before it starts.
    takes_uploads: bool = False
    #: Runs the container image that a job names; where it is needed, each job has to name one.
    runs_images: bool = False
    #: Files in the working folder: artefacts, results, what an output file names.
    keeps_files: bool = True
    writes_output_files: bool = True
    makes_checkpoints: bool = True
    runs_probes: bool = True
    binds_numa: bool = True
    #: Several elements of an array in one task.
    runs_elements: bool = True
    #: A running job can give tasks back.
    resizes: bool = True
    needs_image: bool = False
    #: Sends the signal that a job asks for before its time limit.
    sends_limit_signals: bool = True
    #: Takes another time limit for tasks that run.
    changes_limits: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """What a backend has on one node: the tasks that it answers for (id -> epoch), and new reports on them."""

    known: Mapping[int, int] = field(default_factory=dict)
    reports: Sequence[Report] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes of one stream of a task (`stdout` or `stderr`) from this offset on."""

    task: int
    epoch: int
    stream: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Machine:
    """A node as its backend finds it: what agents report as their inventory, or why it does not answer."""

    name: str
    inventory: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""


class QuotaRefused(Exception):
    """A quota at the backend refused some of the tasks that were to start; the others were taken.

    `tasks` has the reason for each refused task, as the backend gave it.
    """

    def __init__(self, tasks: Mapping[int, str]) -> None:
        super().__init__(next(iter(tasks.values()), "The quota was refused."))
        self.tasks = dict(tasks)


class Backend(Protocol):
    """Where attempts of a cluster really run.

    Every call may be repeated: a known task is not started again, a task that is being stopped is not stopped
    anew, a report may come twice. Calls happen outside any transaction, and may fail.
    """

    name: str
    capabilities: Capabilities

    def submit(self, node: str, assignments: Sequence[Assignment]) -> None:
        """Start these tasks; raises QuotaRefused for tasks that a quota refuses, after it has taken all the others."""

    def stop(self, node: str, stops: Sequence[Stop]) -> None: ...

    def pause(self, node: str, pauses: Sequence[Sequence[int]]) -> None:
        """Suspend each (task, epoch) whose third number is 1, and resume it where the number is 0."""

    def verify(self, node: str, asked: Sequence[Sequence[int]]) -> None:
        """Report each of these (task, epoch) as lost that the node does not have."""

    def observe(self, node: str) -> Observation: ...

    def machines(self) -> Sequence[Machine]:
        """The nodes of the cluster, those that do not answer too; none for a backend that calls Muster."""

    def output(self, node: str) -> Sequence[Output]:
        """What tasks have printed and `keep_output` has not been called for; empty where logs are not read."""

    def keep_output(self, node: str, ends: Mapping[tuple[int, str], int]) -> None:
        """Muster has stored the streams of tasks (task, stream) up to these offsets."""

    def close(self) -> None:
        """Release connections and threads; tasks go on."""
