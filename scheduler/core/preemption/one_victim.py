"""Preemption in its simplest form: one victim, amounts without nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from quotas.core.resources import Resources
from scheduler.core.preemption_policy import PreemptionPolicy


class Stoppable(Protocol):
    """A job as the thin form sees it; a running one has an id, an amount and a start."""

    @property
    def id(self) -> int: ...

    @property
    def priority(self) -> int: ...

    @property
    def total(self) -> Resources: ...

    @property
    def preemptible(self) -> bool: ...


J = TypeVar("J", bound=Stoppable)


def should_preempt(running_jobs: Iterable[J], new_job: Stoppable, rules: PreemptionPolicy) -> J | None:
    """The one running job to stop so that the new one has room in its place; None when there is none.

    Only sets of one victim, and amounts without nodes: the planner's `choose_victims` does it in full.
    """
    wanted = new_job.total
    fitting = [
        job
        for job in running_jobs
        if job.preemptible
        and rules.enabled
        and rules.may_stop(new_job.priority, job.priority)
        and job.total.cpu_millis >= wanted.cpu_millis
        and job.total.memory_mib >= wanted.memory_mib
        and job.total.storage_mib >= wanted.storage_mib
        and job.total.gpus >= wanted.gpus
    ]
    return min(
        fitting, key=lambda job: (job.priority, job.total.gpus, job.total.cpu_millis, -job.id), default=None
    )
