"""Relaxation: constraints that are required until a job has waited or failed, and preferred from then on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from scheduler.core.snapshot.constraints import JobTerm, Preference, Requirement, TaskTerm
from scheduler.core.snapshot.request_classes import RequestClass, request_class


class Relaxable(StrEnum):
    """What of a request may be relaxed, by the names of its fields."""

    PACK = "pack"
    PREFERRED = "preferred"  # of `affinity`, as are the next three
    REQUIRED = "required"
    JOBS = "jobs"
    TASKS = "tasks"
    NODE_SELECTOR = "node_selector"
    GPU_TYPE = "gpu_type"
    NUMA = "numa"


#: Constraint, and what it is called in a sentence.
WORDS: Final[Mapping[Relaxable, str]] = {
    Relaxable.PACK: "one topology domain for all tasks (pack)",
    Relaxable.PREFERRED: "the preferred node labels (affinity.preferred)",
    Relaxable.REQUIRED: "the required node labels (affinity.required)",
    Relaxable.JOBS: "the affinity to other jobs (affinity.jobs)",
    Relaxable.TASKS: "the spread of the tasks (affinity.tasks)",
    Relaxable.NODE_SELECTOR: "the node labels (node_selector)",
    Relaxable.GPU_TYPE: "the GPU model (gpu_type)",
    Relaxable.NUMA: "one NUMA domain for each task (numa)",
}
#: Of these nothing is left once they are relaxed: the planner has no score for them.
DROPPED: Final = frozenset({Relaxable.GPU_TYPE})

#: The weight of a requirement that has become a preference.
WEIGHT: Final = 100


def with_relaxations(
    request: RequestClass, *, kept: Collection[str], relaxed: Collection[str]
) -> RequestClass:
    """A request whose constraints `kept` are required, preferences too, and whose constraints `relaxed` are not.

    Of several preferences of node labels that are kept, a node has to meet one.
    """
    required, preferred = request.required_affinity, list(request.preferred_affinity)
    if Relaxable.REQUIRED in relaxed:
        preferred += [Preference(WEIGHT, term) for term in required]
        required = ()
    selector = request.node_selector
    if Relaxable.NODE_SELECTOR in relaxed and selector:
        terms = tuple(Requirement(key, "In", (value,)) for key, value in selector)
        preferred, selector = [*preferred, Preference(WEIGHT, terms)], ()
    if Relaxable.PREFERRED in kept:
        required = tuple(_both(required or ((),), request.preferred_affinity)) or required
    return request_class(
        request.per_task,
        gpu_model="" if Relaxable.GPU_TYPE in relaxed and not request.gpu_slice else request.gpu_model,
        gpu_memory_mib=request.gpu_memory_mib,
        node_selector=selector,
        tolerations=request.tolerations,
        required_affinity=required,
        partition_ids=request.partition_ids,
        preferred_affinity=preferred,
        job_terms=_job_terms(request, kept, relaxed),
        task_term=_task_term(request, kept, relaxed),
        cpu_limit_millis=request.cpu_limit_millis,
        memory_limit_mib=request.memory_limit_mib,
        one_domain=request.one_domain and Relaxable.NUMA not in relaxed,
        features=request.features,
    )


def _job_terms(request: RequestClass, kept: Collection[str], relaxed: Collection[str]) -> tuple[JobTerm, ...]:
    if Relaxable.JOBS in kept:
        return tuple(replace(one, weight=0) for one in request.job_terms)
    if Relaxable.JOBS in relaxed:
        return tuple(replace(one, weight=one.weight or WEIGHT) for one in request.job_terms)
    return request.job_terms


def _task_term(request: RequestClass, kept: Collection[str], relaxed: Collection[str]) -> TaskTerm | None:
    term = request.task_term
    if term is None or Relaxable.TASKS not in {*kept, *relaxed}:
        return term
    return replace(term, soft=Relaxable.TASKS in relaxed)


def _both(
    required: Iterable[tuple[Requirement, ...]], preferred: Iterable[Preference]
) -> Iterable[tuple[Requirement, ...]]:
    wishes = [wish.requirements for wish in preferred]
    for term in required:
        for wish in wishes:
            yield (*term, *wish)


def pack_required(required: bool, *, kept: Collection[str], relaxed: Collection[str]) -> bool:
    """Whether the tasks have to share the topology domain that the job names."""
    return (required or Relaxable.PACK in kept) and Relaxable.PACK not in relaxed


def names_of(relax: Iterable[Mapping[str, Any]]) -> list[str]:
    """The constraints that a job lets be relaxed, as its row keeps these."""
    return [str(one["constraint"]) for one in relax]
