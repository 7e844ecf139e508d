"""What projects hold at this moment, from allocations and live attempts: the truth behind quota counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from django.db.models import Count, Sum

from scheduler.models import Allocation, Attempt


class HeldAllocations:
    """A `quotas.providers.base.UsageSource`; two queries, however many projects are asked about."""

    def usage(self, project_ids: Iterable[int]) -> Mapping[int, Mapping[str, int]]:
        wanted = list(project_ids)
        held = (
            Allocation.objects.held()
            .filter(attempt__job__project__in=wanted)
            .order_by()
            .values("attempt__job__project")
            .annotate(
                cpu_millis=Sum("cpu_millis"),
                memory_mib=Sum("memory_mib"),
                gpu_millis=Sum("gpu_millis"),
                storage_mib=Sum("storage_mib"),
            )
        )
        amounts: dict[int, dict[str, int]] = {
            row.pop("attempt__job__project"): {name: int(amount) for name, amount in row.items()}
            for row in held
        }
        running = (
            Attempt.objects.live()
            .filter(job__project__in=wanted)
            .order_by()
            .values_list("job__project")
            .annotate(jobs=Count("pk"))
        )
        for project_id, jobs in running:
            amounts.setdefault(project_id, {})["running_jobs"] = jobs
        return amounts
