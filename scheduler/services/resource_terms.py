"""What a task may use beyond what it requests: limits, read and checked against the request (R4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from quotas.core.resources import Resources, cores_to_millis, parse_mib, show_cpus, show_mib
from scheduler.core.qos import QOS_WORDS, qos_of
from scheduler.services.inputs import Inputs

#: The fields of a job that are read here.
FIELDS: Final = frozenset({"cpu_limit", "memory_limit"})


@dataclass(frozen=True, slots=True)
class ResourceTerms:
    """Beside the amounts that are requested; None is no limit."""

    cpu_limit_millis: int | None = None
    memory_limit_mib: int | None = None

    def columns(self) -> dict[str, Any]:
        return {
            "cpu_limit_millis": self.cpu_limit_millis,
            "memory_limit_mib": self.memory_limit_mib,
        }

    def of_class(self) -> dict[str, Any]:
        """The same as a request class has it."""
        return {
            "cpu_limit_millis": self.cpu_limit_millis or 0,
            "memory_limit_mib": self.memory_limit_mib or 0,
        }


def read_limits(inputs: Inputs) -> ResourceTerms:
    """`cpu_limit` and `memory_limit`, as they are said; `check_limits` holds them to the request."""
    if all(inputs.given(name) is None for name in FIELDS):
        return _PLAIN
    return ResourceTerms(
        cpu_limit_millis=inputs.read("cpu_limit", cores_to_millis) or None,
        memory_limit_mib=inputs.read("memory_limit", parse_mib) or None,
    )


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
