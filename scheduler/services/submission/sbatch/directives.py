"""What the options of a script ask for, before amounts of nodes become amounts of tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from infra.errors import FieldProblem
from scheduler.services.submission.fields import BadValue
from scheduler.services.submission.job_spec import FIELDS

#: The code of a problem that says that a feature of Slurm does not exist here.
NOT_SUPPORTED = "not-supported"


class NotSupported(BadValue):
    """What an option asks for does not exist here; the text says so and names a way out."""


@dataclass(frozen=True, slots=True)
class Unhonoured:
    """A line of a script that has no effect here, or less than its whole: the line (0: no line), its text, and why."""

    line: int
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Said:
    """Where an option was given: a line of the script, the command line, or a variable of the shell (line 0)."""

    line: int
    text: str
    variable: str = ""

    def problem(self, message: str, code: str) -> FieldProblem:
        """A problem of this option, with its place."""
        at = f"Line {self.line}: " if self.line else f"{self.variable or 'Command line'}: "
        return FieldProblem("script", f"{at}{message}", code)


@dataclass(frozen=True, slots=True)
class Gpus:
    """A number of GPUs, and their model if one is named."""

    count: int
    model: str = ""


@dataclass(slots=True)
class Shape:
    """How many tasks on how many nodes."""

    nodes: int | None = None
    most_nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    #: Tasks on each node at most, once the layout is known.
    on_a_node: int = 1
    #: All of each node, or all its memory.
    whole_node: bool = False
    whole_memory: bool = False


@dataclass(slots=True)
class Amounts:
    """How much, by what Slurm counts it."""

    cpus_per_task: int | None = None
    cpus_per_gpu: int | None = None
    cpus_per_node: int | None = None
    gres: Gpus | None = None
    gpus_per_node: Gpus | None = None
    gpus_per_task: Gpus | None = None
    gpus_total: Gpus | None = None
    memory_per_node_mib: int | None = None
    memory_per_cpu_mib: int | None = None
    memory_per_gpu_mib: int | None = None
    disk_per_node_mib: int | None = None


@dataclass(slots=True)
class Places:
    """Where: queues, features of nodes (alternatives, each a list of those a node has together), nodes by name."""

    partitions: list[str] = field(default_factory=list)
    features: list[list[str]] = field(default_factory=list)
    preferred: list[list[str]] = field(default_factory=list)
    nodelist: list[str] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Times:
    """When and for how long: `dependencies` are kinds and numbers of jobs as they were written."""

    dependencies: list[tuple[str, str]] = field(default_factory=list)
    any_dependency: bool = False
    singleton: bool = False
    no_time_limit: bool = False
    #: Seconds.
    time_min: int | None = None


@dataclass(slots=True)
class Directives:
    """Fields of a job, and what Slurm counts by node, by GPU or by CPU until the layout is known."""

    fields: dict[str, Any] = field(default_factory=dict)
    said: dict[str, Said] = field(default_factory=dict)
    unhonoured: list[Unhonoured] = field(default_factory=list)
    problems: list[FieldProblem] = field(default_factory=list)
    #: Variables of the environment that Slurm sets from what was asked for.
    variables: dict[str, str] = field(default_factory=dict)
    #: Of the person's shell, as far as they were sent.
    submit_env: dict[str, str] = field(default_factory=dict)
    shape: Shape = field(default_factory=Shape)
    amounts: Amounts = field(default_factory=Amounts)
    places: Places = field(default_factory=Places)
    times: Times = field(default_factory=Times)
    qos: str = ""
    nice: int = 0
    mail_user: str = ""
    ignore_pbs: bool = False

    def fill(self, name: str, value: Any) -> None:
        """Set a field of the job; KeyError for one that no job has."""
        if name not in FIELDS:
            raise KeyError(name)
        self.fields[name] = value

    def add(self, name: str, key: str, value: str) -> None:
        """Set one entry of a field that is an object of text; KeyError for a field that no job has."""
        self.fill(name, self.fields.get(name, {}))
        self.fields[name][key] = value

    def wrong(self, option: str, message: str, code: str = "inconsistent") -> None:
        """Keep a problem of an option that was given, with its place."""
        said = self.said.get(option) or Said(0, "")
        self.problems.append(said.problem(message, code))

    def note(self, option: str, reason: str) -> None:
        """Say that an option that was given has no effect, or less than its whole."""
        said = self.said.get(option) or Said(0, f"--{option}")
        self.unhonoured.append(Unhonoured(said.line, said.text[:300], reason))
