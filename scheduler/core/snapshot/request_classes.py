"""Request classes: what makes two requests the same query, asked once a cycle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from quotas.core.gpu_models import slice_of
from quotas.core.resources import GPU_MILLIS, Resources
from scheduler.core.qos import Qos, qos_of

Labels = tuple[tuple[str, str], ...]  # sorted by key

NO_SCHEDULE: Final = "NoSchedule"
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
NO_EXECUTE: Final = "NoExecute"

#: What a job may say about NUMA domains: its devices are of one where that can be, or all of a task is, always.
NUMA_WORDS: Final = ("prefer", "one")

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
    stays; below 0 = for ever.
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


#: What jobs may be near to or apart in. Of a backend a cluster has one, so it is one domain.
TOPOLOGIES: Final = ("node", "rack", "zone", "region", "backend")

#: In `JobsLike.array_id`: the array that the job itself is in.
OWN_ARRAY: Final = -1


@dataclass(frozen=True, slots=True, order=True)
class JobsLike:
    """Which other jobs a term is about, always of the same project: all that is said must hold of them."""

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
    jobs: JobsLike
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


@dataclass(frozen=True, slots=True)
class RequestClass:
    """What every task of a job needs from its node: jobs of one class are one query.

    Equal classes must be equal values, so `node_selector`, `tolerations` and `partition_ids` are sorted
    (`request_class()` does that); how many tasks a job has is not part of its class.
    """

    per_task: Resources
    gpu_model: str = (
        ""  # "" = any; "H100" also matches "H100-80GB"; "A100|H100" = either; "MIG 1g.10gb" = a slice
    )
    gpu_memory_mib: int = 0  # least memory of each device; 0 = any
    node_selector: Labels = ()
    tolerations: tuple[Toleration, ...] = ()
    #: Terms joined by "or", each a list of conditions joined by "and"; () = no requirement.
    required_affinity: tuple[tuple[Requirement, ...], ...] = ()
    partition_ids: tuple[int, ...] = ()  # () = every partition its queue allows
    preferred_affinity: tuple[Preference, ...] = ()
    job_terms: tuple[JobTerm, ...] = ()
    task_term: TaskTerm | None = None
    cpu_limit_millis: int = 0  # what a task may use at most; 0 = whatever is idle
    memory_limit_mib: int = 0
    one_domain: bool = False  # CPUs, memory and devices of each task have to be of one NUMA domain

    @property
    def qos(self) -> Qos:
        return qos_of(
            cpu_millis=self.per_task.cpu_millis,
            memory_mib=self.per_task.memory_mib,
            cpu_limit_millis=self.cpu_limit_millis,
            memory_limit_mib=self.memory_limit_mib,
        )

    @property
    def shares_gpu(self) -> bool:
        """Asks for a part of one device, whichever; a slice is a device of its own."""
        return self.per_task.gpus == 1 and 0 < self.per_task.gpu_millis < 1000 and not self.gpu_slice

    @property
    def gpu_slice(self) -> str:
        """The slice of a device that each task asks for: `1g.10gb`; "" = none."""
        return slice_of(self.gpu_model.split("|", 1)[0]) if self.gpu_model else ""

    @property
    def device_millis(self) -> int:
        """What a task holds of each of its devices; 0 without any. A slice that counts for less is held whole."""
        if not self.per_task.gpus:
            return 0
        return self.per_task.gpu_millis or GPU_MILLIS

    @property
    def sort_key(self) -> str:
        """One fixed order over all classes, so that the order they were met in changes nothing."""
        return repr(self)


def request_class(
    per_task: Resources,
    *,
    gpu_model: str = "",
    gpu_memory_mib: int = 0,
    node_selector: Iterable[tuple[str, str]] = (),
    tolerations: Iterable[Toleration] = (),
    required_affinity: Iterable[Iterable[Requirement]] = (),
    partition_ids: Iterable[int] = (),
    preferred_affinity: Iterable[Preference] = (),
    job_terms: Iterable[JobTerm] = (),
    task_term: TaskTerm | None = None,
    cpu_limit_millis: int = 0,
    memory_limit_mib: int = 0,
    one_domain: bool = False,
) -> RequestClass:
    """Make a class in its one canonical form, whatever order the parts came in."""
    if per_task.gpu_millis >= 1000 or (per_task.gpu_millis and per_task.gpus != 1):
        # A "share" of a whole device, or of several, is the whole of each.
        per_task = Resources(
            cpu_millis=per_task.cpu_millis,
            memory_mib=per_task.memory_mib,
            gpus=per_task.gpus,
            storage_mib=per_task.storage_mib,
            extras=per_task.extras,
        )
    return RequestClass(
        per_task=per_task,
        gpu_model=_models(gpu_model) if per_task.gpus else "",
        gpu_memory_mib=gpu_memory_mib if per_task.gpus else 0,
        node_selector=tuple(sorted(set(node_selector))),
        tolerations=tuple(sorted(set(tolerations))),
        required_affinity=tuple(tuple(sorted(set(term))) for term in required_affinity),
        partition_ids=tuple(sorted(set(partition_ids))),
        preferred_affinity=tuple(
            sorted(
                Preference(wish.weight, tuple(sorted(set(wish.requirements)))) for wish in preferred_affinity
            )
        ),
        job_terms=tuple(sorted(set(job_terms))),
        task_term=task_term,
        cpu_limit_millis=cpu_limit_millis,
        memory_limit_mib=memory_limit_mib,
        one_domain=one_domain,
    )


def _models(wanted: str) -> str:
    """Alternatives in one order, each once."""
    return "|".join(sorted({model.strip() for model in wanted.split("|") if model.strip()}))


@dataclass(slots=True)
class ClassTable:
    """Numbers for request classes while rows are read: `table.intern(cls)` gives the column value.

    `Snapshot.build` sorts the table and renumbers, so the order of interning does not matter.
    """

    classes: list[RequestClass] = field(default_factory=list)
    _numbers: dict[RequestClass, int] = field(default_factory=dict)

    def intern(self, request: RequestClass) -> int:
        number = self._numbers.get(request)
        if number is None:
            number = self._numbers[request] = len(self.classes)
            self.classes.append(request)
        return number
