"""What a change of a project's limit would mean: who waits for it, who runs, and whether the cluster has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from django.conf import settings
from django.db.models import F, QuerySet, Sum
from django.db.models.functions import Coalesce, Least
from django.utils.module_loading import import_string

from accounts.models import Organization, Project
from quotas.core.limits import NONE, UNBOUNDED, bound_of
from quotas.core.resources import show_cpus, show_mib
from quotas.models import Quota
from quotas.selectors.fair_share_report import span


@dataclass(frozen=True, slots=True)
class Whose:
    """The jobs that a line counts: of these projects (None: of all), of one person, of one type."""

    project_ids: tuple[int, ...] | None
    user_id: int | None = None
    job_type: str = ""


@dataclass(frozen=True, slots=True)
class Demand:
    """The jobs of a subject at this moment, and what those that wait ask for of one resource."""

    running_jobs: int = 0
    pending_jobs: int = 0
    #: Of the pending ones, those that a limit keeps waiting.
    waiting_for_quota: int = 0
    asked: int = 0


class QuotaFacts(Protocol):
    """What only the scheduler knows (settings.QUOTA_FACTS_SOURCE)."""

    def demand(self, whose: Whose, resource: str, gpu_model: str) -> Demand: ...

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
    #: In words: whose jobs, and whose limits are added up.
    of: str = "the project"
    together: str = "All projects' limits"
    enforce: bool = True
    #: When jobs are stopped until a cut is kept; None: never.
    converges_after_seconds: int | None = None

    @property
    def usable(self) -> int | None:
        """Of the capacity, what limits should add up to at most."""
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
            f"{_jobs(demand.running_jobs, 'running')} and {_jobs(demand.pending_jobs, 'pending')} of {self.of}"
            f" are affected; {demand.waiting_for_quota} of them wait for a limit."
        ]
        if self.over_by_cut:
            found.append(f"{self.show(self.over_by_cut)} more would be in use than allowed: {self._then}")
        if self.usable is not None and self.capacity is not None:
            found.append(
                f"{self.together} add up to {self.show(self.sum_after)} of {self.show(self.capacity)} in the"
                f" cluster{'' if self.sum_before == self.sum_after else f' (now {self.show(self.sum_before)})'}."
            )
        if self.over_headroom and self.usable is not None:
            found.append(
                f"That is more than {self.show(self.usable)}, which leaves {self.headroom_percent} % headroom:"
                " not all projects can use their full limits at the same time."
            )
        return tuple(found)

    @property
    def _then(self) -> str:
        if not self.enforce:
            return "the limit only reports, so jobs start as before."
        if self.converges_after_seconds is None:
            return "running jobs continue, and no new job starts until usage is below the limit."
        return (
            f"no new job starts, and after {span(self.converges_after_seconds)} jobs are stopped with notice"
            " until usage is below the limit."
        )

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
    lines = _lines_beside(Quota(project=project, resource=resource, gpu_model=gpu_model))
    assert lines is not None
    before, used = lines.filter(project=project).values_list("hard", "used").first() or (None, 0)
    total = lines.aggregate(total=Sum("hard"))["total"] or 0
    return Impact(
        resource=resource,
        gpu_model=gpu_model,
        bound_before=before,
        bound_after=bound_after,
        used=used,
        demand=facts.demand(Whose((project.pk,)), resource, gpu_model),
        sum_before=total,
        sum_after=total - (before or 0) + (bound_after or 0),
        capacity=facts.capacity(resource, gpu_model),
        headroom_percent=settings.QUOTA_HEADROOM_PERCENT,
    )


def impact_of_line(line: Quota, changes: Mapping[str, Any]) -> Impact:
    """What it would mean to change these fields of any line, or to make it so; reads, changes nothing."""
    facts = quota_facts()
    words = dict(changes)
    after = Quota(**{
        name: words.get(name, getattr(line, name))
        for name in ("organization", "project", "user", "resource", "gpu_model", "job_type", "nominal",
                     "borrowing_limit", "hard", "enforce", "converge_after_seconds")
    })  # fmt: skip
    beside = _lines_beside(after)
    total = 0
    if beside is not None:
        said = Coalesce(Least("hard", F("nominal") + F("borrowing_limit")), "nominal", "hard")
        total = beside.exclude(pk=line.pk).aggregate(total=Sum(said))["total"] or 0
    return Impact(
        resource=line.resource,
        gpu_model=line.gpu_model,
        bound_before=None if line.pk is None else _bound(line),
        bound_after=_bound(after),
        used=line.used,
        demand=facts.demand(_whose(after), line.resource, line.gpu_model),
        sum_before=total + (0 if line.pk is None else _said(line)),
        sum_after=total + _said(after),
        capacity=None if beside is None else facts.capacity(line.resource, line.gpu_model),
        headroom_percent=settings.QUOTA_HEADROOM_PERCENT,
        of=after.owner,
        together="All projects' limits"
        if after.organization is None
        else "The limits of organizations beside it",
        enforce=after.enforce,
        converges_after_seconds=after.converge_after_seconds,
    )


def _lines_beside(line: Quota) -> QuerySet[Quota] | None:
    """The lines that share the cluster with this one, itself included; None where a sum says nothing."""
    if line.user is not None or line.job_type:
        return None
    same = Quota.objects.filter(
        user__isnull=True, job_type="", resource=line.resource, gpu_model=line.gpu_model
    ).order_by()
    if line.organization is not None:
        return same.filter(organization__isnull=False, organization__parent=line.organization.parent_id)
    return same.filter(project__isnull=False, project__active=True)


def _whose(line: Quota) -> Whose:
    user = None if line.user is None else line.user.pk
    if line.organization is not None:
        return Whose(below(line.organization), user, line.job_type)
    return Whose(None if line.project is None else (line.project.pk,), user, line.job_type)


def below(organization: Organization) -> tuple[int, ...]:
    """The projects of an organization and of all those under it."""
    found, level = {organization.pk}, [organization.pk]
    while level:
        level = list(
            Organization.objects.filter(parent__in=level).exclude(pk__in=found).values_list("pk", flat=True)
        )
        found |= set(level)
    return tuple(Project.objects.filter(organization__in=found).order_by("pk").values_list("pk", flat=True))


def _bound(line: Quota) -> int | None:
    """The most that may be in use, whether it blocks or only reports."""
    amounts = {
        name: NONE if (value := getattr(line, name)) is None else int(value)
        for name in ("hard", "nominal", "borrowing_limit")
    }
    top = line.organization is not None and line.organization.parent_id is None
    bound = bound_of(**amounts, enforce=True, has_parent=not top, is_pool=top)
    return None if bound == UNBOUNDED else bound


def _said(line: Quota) -> int:
    bound = _bound(line)
    return (line.nominal or 0) if bound is None else bound


def _jobs(count: int, kind: str) -> str:
    return f"{count:,} {kind} job{'' if count == 1 else 's'}"
