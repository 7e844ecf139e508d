"""Request classes: what makes two requests the same query, asked once a cycle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from quotas.core.gpu_models import slice_of
from quotas.core.resources import GPU_MILLIS, Resources
from scheduler.core.qos import Qos, qos_of
from scheduler.core.snapshot.constraints import (
    JobTerm,
    Labels,
    Preference,
    Requirement,
    TaskTerm,
    Toleration,
)


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
    features: int = 0  # what the agent has to know, bits of `agent_features.FEATURES`; 0 = any agent will do
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
    features: int = 0,
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
        features=features,
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
