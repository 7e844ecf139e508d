"""What a job says beside amounts: limits on what a task uses, a slice of a GPU, one NUMA domain (R4, R10, R11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from quotas.core.gpu_models import read_slice
from quotas.core.resources import Resources, cores_to_millis, parse_mib, show_cpus, show_mib
from scheduler.core.qos import QOS_WORDS, qos_of
from scheduler.core.snapshot.request_classes import NUMA_WORDS
from scheduler.services.submission.fields import BadValue, Inputs

#: The fields of a job that are read here.
FIELDS: Final = frozenset({"cpu_limit", "memory_limit", "gpu_slice", "numa"})


@dataclass(frozen=True, slots=True)
class ResourceTerms:
    """Beside the amounts that are requested; None is no limit, "" no slice."""

    cpu_limit_millis: int | None = None
    memory_limit_mib: int | None = None
    gpu_slice: str = ""
    numa: str = NUMA_WORDS[0]

    def columns(self) -> dict[str, Any]:
        return {
            "cpu_limit_millis": self.cpu_limit_millis,
            "memory_limit_mib": self.memory_limit_mib,
            "gpu_slice": self.gpu_slice,
            "numa": self.numa,
        }

    def of_class(self) -> dict[str, Any]:
        """The same as a request class has it."""
        return {
            "cpu_limit_millis": self.cpu_limit_millis or 0,
            "memory_limit_mib": self.memory_limit_mib or 0,
            "one_domain": self.numa == "one",
        }


def read_terms(inputs: Inputs) -> ResourceTerms:
    """`cpu_limit`, `memory_limit`, `gpu_slice` and `numa`, as said; `check_limits` holds limits to the request.

    A slice may also be named as the model: `gpu_type: "H100 1g.10gb"`.
    """
    asked = inputs.given("gpu_type")
    named = read_slice(asked) if isinstance(asked, str) else None
    if named is None and all(inputs.given(name) is None for name in FIELDS):
        return _PLAIN
    return ResourceTerms(
        cpu_limit_millis=inputs.read("cpu_limit", cores_to_millis) or None,
        memory_limit_mib=inputs.read("memory_limit", parse_mib) or None,
        gpu_slice=inputs.read("gpu_slice", _slice, default=named[1] if named else ""),
        numa=inputs.choice("numa", NUMA_WORDS, default=NUMA_WORDS[0]),
    )


def _slice(value: Any) -> str:
    found = read_slice(value) if isinstance(value, str) else None
    if found is None or found[0]:
        raise BadValue("Must be the name of a slice, such as 1g.10gb")
    return found[1]


def check_limits(inputs: Inputs, terms: ResourceTerms, per_task: Resources) -> None:
    """A limit below what is requested would stop a job that takes no more than was promised to it."""
    for name, limit, request, show in (
        ("cpu_limit", terms.cpu_limit_millis, per_task.cpu_millis, show_cpus),
        ("memory_limit", terms.memory_limit_mib, per_task.memory_mib, show_mib),
    ):
        if limit is not None and limit < request:
            inputs.wrong(
                name,
                f"Is {show(limit)}, but {show(request)} is requested; raise the limit or request less.",
                code="inconsistent",
            )


def qos_word(job: Any) -> str:
    """The class of service of a job's row: guaranteed, burstable or best-effort."""
    return QOS_WORDS[
        qos_of(
            cpu_millis=job.cpu_millis,
            memory_mib=job.memory_mib,
            cpu_limit_millis=job.cpu_limit_millis or 0,
            memory_limit_mib=job.memory_limit_mib or 0,
        )
    ]


_PLAIN: Final = ResourceTerms()
