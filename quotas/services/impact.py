"""What a change of a project's limit would mean: who waits for it, who runs, and whether the cluster has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from django.conf import settings
from django.db.models import Sum
from django.utils.module_loading import import_string

from accounts.models import Project
from quotas.core.resources import show_cpus, show_mib
from quotas.models import Quota


@dataclass(frozen=True, slots=True)
class Demand:
    """A project's jobs at this moment, and what those that wait ask for of one resource."""

    running_jobs: int = 0
    pending_jobs: int = 0
    #: Of the pending ones, those that a limit keeps waiting.
    waiting_for_quota: int = 0
    asked: int = 0


class QuotaFacts(Protocol):
    """What only the scheduler knows (settings.QUOTA_FACTS_SOURCE)."""

    def demand(self, project_id: int, resource: str, gpu_model: str) -> Demand: ...

    def capacity(self, resource: str, gpu_model: str) -> int | None:
        """Of all nodes that can work; None where a resource has none (counts of jobs)."""
        ...

    def lately(self, project_id: int) -> Mapping[str, Any]:
        """Jobs of the last 30 days and how long they waited, for the evidence of a request."""
        ...


def quota_facts() -> QuotaFacts:
    facts: QuotaFacts = import_string(settings.QUOTA_FACTS_SOURCE)()
    return facts


@dataclass(frozen=True, slots=True)
class Impact:
    """A limit before and after, against demand, and the sum of all projects' limits against the cluster."""

    resource: str
    gpu_model: str
    bound_before: int | None
    bound_after: int | None
    used: int
    demand: Demand
    sum_before: int
    sum_after: int
    capacity: int | None
    headroom_percent: int

    @property
    def usable(self) -> int | None:
        """Of the capacity, what limits should add up to at most (U13)."""
        return None if self.capacity is None else self.capacity * (100 - self.headroom_percent) // 100

    @property
    def over_headroom(self) -> bool:
        return self.usable is not None and self.sum_after > self.usable

    @property
    def over_by_cut(self) -> int:
        """More would be in use than the new bound allows; nothing is stopped, and nothing new starts."""
        return 0 if self.bound_after is None else max(self.used - self.bound_after, 0)

    @property
    def sentences(self) -> tuple[str, ...]:
        demand = self.demand
        found = [
            f"{_jobs(demand.running_jobs, 'running')} and {_jobs(demand.pending_jobs, 'pending')} of the project"
            f" are affected; {demand.waiting_for_quota} of them wait for a limit."
        ]
        if self.over_by_cut:
            found.append(
                f"{self.show(self.over_by_cut)} more would be in use than allowed: nothing is stopped, and"
                " nothing new starts until use has gone down."
            )
        if self.usable is not None and self.capacity is not None:
            found.append(
                f"All projects' limits add up to {self.show(self.sum_after)} of {self.show(self.capacity)} in the"
                f" cluster{'' if self.sum_before == self.sum_after else f' (now {self.show(self.sum_before)})'}."
            )
        if self.over_headroom and self.usable is not None:
            found.append(
                f"That is more than {self.show(self.usable)}, which leaves {self.headroom_percent} % headroom:"
                " projects may not all get at once what their limits say."
            )
        return tuple(found)

    def show(self, amount: int) -> str:
        return shown(self.resource, amount)


def shown(resource: str, amount: int) -> str:
    """`shown("gpu_millis", 4000)` -> `4 GPUs`."""
    if resource.endswith("_mib"):
        return show_mib(amount)
    if resource.endswith("_millis"):
        noun = "GPU" if resource == "gpu_millis" else "CPU"
        return f"{show_cpus(amount)} {noun if amount == 1000 else noun + 's'}"
    return _jobs(amount, resource.removesuffix("_jobs"))


def impact_of(*, project: Project, resource: str, gpu_model: str = "", bound_after: int | None) -> Impact:
    """What it would mean to set the project's hard bound of this resource; reads, changes nothing."""
    facts = quota_facts()
    lines = Quota.objects.filter(
        project__isnull=False, user__isnull=True, job_type="", resource=resource, gpu_model=gpu_model,
        project__active=True,
    )  # fmt: skip
    before, used = lines.filter(project=project).values_list("hard", "used").first() or (None, 0)
    total = lines.aggregate(total=Sum("hard"))["total"] or 0
    return Impact(
        resource=resource,
        gpu_model=gpu_model,
        bound_before=before,
        bound_after=bound_after,
        used=used,
        demand=facts.demand(project.pk, resource, gpu_model),
        sum_before=total,
        sum_after=total - (before or 0) + (bound_after or 0),
        capacity=facts.capacity(resource, gpu_model),
        headroom_percent=settings.QUOTA_HEADROOM_PERCENT,
    )


def _jobs(count: int, kind: str) -> str:
    return f"{count:,} {kind} job{'' if count == 1 else 's'}"
