"""Constraints of placement: taints and tolerations, requirements on labels, affinity to jobs, spread of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Labels = tuple[tuple[str, str], ...]  # sorted by key

NO_SCHEDULE: Final = "NoSchedule"
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
NO_EXECUTE: Final = "NoExecute"

#: `prefer`: the GPUs of a task come from one NUMA domain if possible; `one`: its CPUs, memory and GPUs all must.
NUMA_WORDS: Final = ("prefer", "one")

#: The key by which a requirement names nodes themselves. No label has it.
NODE_NAME: Final = "@node"

#: Effects that keep a new task off a node; PreferNoSchedule only lowers its score.
HARD_EFFECTS: Final = frozenset({NO_SCHEDULE, NO_EXECUTE})


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """A node's mark that keeps tasks away unless they tolerate it."""

    key: str
    value: str = ""
    effect: str = NO_SCHEDULE
    since_ms: int = 0  # when it was put


@dataclass(frozen=True, slots=True, order=True)
class Toleration:
    """A job's word that a taint does not bother it.

    `operator` is `Equal` (key and value) or `Exists` (key alone; an empty key means every taint).
    An empty `effect` means every effect. `seconds`: for how long after a NoExecute taint was put a running job
    stays; below 0 = without limit.
    """

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int = -1

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.operator == "Exists":
            return not self.key or self.key == taint.key
        return self.key == taint.key and self.value == taint.value


@dataclass(frozen=True, slots=True, order=True)
class Requirement:
    """One condition on a node's labels: `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`."""

    key: str
    operator: str = "In"
    values: tuple[str, ...] = ()

    def holds_for(self, labels: dict[str, str]) -> bool:
        """Say whether a node with these labels meets it; an unknown operator or a bad number never does."""
        value = labels.get(self.key)
        if self.operator == "In":
            return value is not None and value in self.values
        if self.operator == "NotIn":
            return value is None or value not in self.values
        if self.operator == "Exists":
            return value is not None
        if self.operator == "DoesNotExist":
            return value is None
        if self.operator in {"Gt", "Lt"} and value is not None and len(self.values) == 1:
            try:
                have, bound = int(value), int(self.values[0])
            except ValueError:
                return False
            return have > bound if self.operator == "Gt" else have < bound
        return False


@dataclass(frozen=True, slots=True, order=True)
class Preference:
    """A wish about a node's labels: all conditions together, worth its weight (1 to 100) where they hold."""

    weight: int
    requirements: tuple[Requirement, ...]


#: What jobs may be near to or apart in. A cluster has one backend, so that level is the whole cluster.
TOPOLOGIES: Final = ("node", "rack", "zone", "region", "backend")

#: In `JobSelector.array_id`: the array that the job itself is in.
OWN_ARRAY: Final = -1


@dataclass(frozen=True, slots=True, order=True)
class JobSelector:
    """Selects jobs of the same project; every condition that is set must match."""

    labels: Labels = ()
    name: str = ""
    array_id: int = 0  # 0 = any

    def matches(self, labels: Labels, name: str, array_id: int) -> bool:
        return (
            set(self.labels) <= set(labels)
            and (not self.name or self.name == name)
            and (not self.array_id or self.array_id == array_id)
        )

    @property
    def words(self) -> str:
        """`labelled app=db`, to follow "jobs"."""
        found = (
            [f"labelled {', '.join(f'{key}={value}' for key, value in self.labels)}"] if self.labels else []
        )
        found += [f"named {self.name}"] if self.name else []
        found += ["of its array" if self.array_id == OWN_ARRAY else "of that array"] if self.array_id else []
        return " ".join(found)


@dataclass(frozen=True, slots=True, order=True)
class JobTerm:
    """Near to, or apart from, other jobs that run: in the same node, rack, zone, region or backend.

    Weight 0 is a must, and an `apart` that is a must holds both ways: whom it keeps away from stays away from
    it. A `near` that is a must is met anywhere as long as no such job runs, if the job itself is one of them.
    """

    topology: str
    jobs: JobSelector
    apart: bool = False
    weight: int = 0  # 1..100 = a wish


@dataclass(frozen=True, slots=True, order=True)
class TaskTerm:
    """How a job's own tasks are spread over domains: over how many domains, and how many tasks in each."""

    topology: str
    least: int = 1
    most: int = 0  # 0 = any number
    per_domain: int = 0  # tasks in one domain at most; 0 = any number
    soft: bool = False  # a wish
