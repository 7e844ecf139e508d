"""Quota impact: demand, capacity and recent waits, shown before a limit is changed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django.db.models import Avg, BigIntegerField, Case, Count, F, Q, QuerySet, Sum, When
from django.db.models.functions import Cast
from django.utils import timezone

from quotas.core.gpu_models import model_matches
from quotas.services.impact import Demand, Whose
from scheduler.core.lifecycle import ACTIVE, NodeState
from scheduler.core.reason_codes import ReasonCode
from scheduler.models import Attempt, Device, Job, Node

LATELY: Final = timedelta(days=30)
QUOTA_REASONS: Final = (
    ReasonCode.WAITING_FOR_QUOTA, ReasonCode.EXCEEDS_MAX_QUOTA, ReasonCode.QUOTA_ZERO,
)  # fmt: skip
#: What one task asks for, by the resource of a line.
_EACH: Final = {
    "cpu_millis": F("cpu_millis"),
    "memory_mib": F("memory_mib"),
    "storage_mib": F("storage_mib"),
}
#: Two columns multiplied are no wider than they are.
_LONG: Final = BigIntegerField()


class SchedulerFacts:
    """A `quotas.services.impact.QuotaFacts`."""

    def demand(self, whose: Whose, resource: str, gpu_model: str) -> Demand:
        jobs = Job.objects.filter(_counted(whose)).order_by()
        pending = Job.objects.pending().filter(_counted(whose)).order_by()
        counts = jobs.aggregate(
            running=Count("pk", filter=Q(state__in=list(ACTIVE))),
            waiting=Count("pk", filter=Q(reason_code__in=list(QUOTA_REASONS))),
        )
        return Demand(
            running_jobs=counts["running"],
            pending_jobs=pending.count(),
            waiting_for_quota=counts["waiting"],
            asked=self._asked(pending, resource, gpu_model),
        )

    def capacity(self, resource: str, gpu_model: str) -> int | None:
        nodes = Node.objects.filter(state=NodeState.UP)
        if resource == "gpu_millis":
            devices = Device.objects.filter(gone=False, node__in=nodes)
            parts = devices.order_by().values_list("model").annotate(Sum("share_millis"))
            return sum(int(part) for model, part in parts if not gpu_model or model_matches(gpu_model, model))
        column = {
            "cpu_millis": "cpu_millis_capacity",
            "memory_mib": "memory_mib_capacity",
            "storage_mib": "storage_mib",
        }.get(resource)
        if column is None:
            return None
        total: int | None = nodes.aggregate(total=Sum(column))["total"]
        return total or 0

    def lately(self, project_id: int) -> Mapping[str, Any]:
        since = timezone.now() - LATELY
        found = Attempt.objects.filter(job__project=project_id, started_at__gte=since).aggregate(
            starts=Count("pk"), wait=Avg(F("started_at") - F("job__created_at"))
        )
        wait = found["wait"]
        return {
            "days": LATELY.days,
            "jobs_submitted": Job.objects.filter(project=project_id, created_at__gte=since).count(),
            "jobs_started": found["starts"],
            "mean_wait_seconds": None if wait is None else round(wait.total_seconds()),
        }

    def _asked(self, pending: QuerySet[Job], resource: str, gpu_model: str) -> int:
        if resource in ("running_jobs", "pending_jobs"):
            return pending.count()
        if resource == "gpu_millis":
            whole = When(gpu_millis=0, then=Cast("gpus", _LONG) * 1000)
            each = Case(whole, default=F("gpu_millis"), output_field=_LONG)
            sums = pending.values_list("gpu_model").annotate(asked=Sum(each * F("tasks")))
            return sum(int(asked) for wish, asked in sums if not gpu_model or _asks(gpu_model, wish))
        return int(pending.aggregate(total=Sum(_EACH[resource] * F("tasks")))["total"] or 0)


def _asks(model: str, wish: str) -> bool:
    """Whether a request for this model, one of several models or a slice may count on a line for a model."""
    return any(model_matches(model, one) for one in wish.split("|"))


def _counted(whose: Whose) -> Q:
    wanted = Q()
    if whose.project_ids is not None:
        wanted &= Q(project__in=whose.project_ids)
    if whose.user_id is not None:
        wanted &= Q(user=whose.user_id)
    if whose.job_type:
        wanted &= Q(job_type=whose.job_type)
    return wanted
