"""Quotas kept in Muster's own rows (U2): the counters that apply and settle move, checked and recounted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pgtrigger
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts.errors import Conflict
from quotas.core.limits import Line, charge, short_lines
from quotas.core.resources import Resources
from quotas.models import Provider, Quota, QuotaResource
from quotas.providers.base import Drift, LineView, QuotaCheck, QuotaSheet, Shortfall
from quotas.providers.registry import usage_source


class LocalQuotaProvider:
    """One row a resource; a bound holds however many processes start jobs, for the database refuses more."""

    name = Provider.LOCAL.value

    def get_quota(self, project_id: int) -> QuotaSheet:
        return sheet_of(project_id, Quota.objects.plain().filter(project_id=project_id))

    def check_quota(
        self, project_id: int, resources: Resources, job_type: str = "batch", *, tasks: int = 1
    ) -> QuotaCheck:
        """Whether a job may start now, or ever could; a local line is the same for every job type."""
        rows = list(Quota.objects.plain().filter(project_id=project_id).order_by("id"))
        short = _short(rows, resources, tasks)
        return QuotaCheck(
            allowed=not short,
            possible=all(shortfall.needed <= shortfall.hard for shortfall in short),
            shortfalls=short,
            soft_passed=tuple(
                row.resource
                for row in rows
                if row.soft is not None and row.used + charge(row.resource, resources, tasks) > row.soft
            ),
        )

    @transaction.atomic
    def allocate_quota(
        self, project_id: int, resources: Resources, job_type: str = "batch", *, tasks: int = 1
    ) -> None:
        """Count a start on every line, or raise Conflict and count nothing."""
        rows = _locked(project_id)
        short = _short(rows, resources, tasks)
        if short:
            first = short[0]
            raise Conflict(
                f"The quota of {first.resource} has no room: {first.used} of {first.hard} in use,"
                f" {first.needed} needed.",
                code="quota-exceeded",
                way_out="Wait until jobs of the project end, or ask an operator for more.",
            )
        self._move(rows, resources, tasks, sign=1)

    @transaction.atomic
    def release_quota(
        self, project_id: int, resources: Resources, job_type: str = "batch", *, tasks: int = 1
    ) -> None:
        self._move(_locked(project_id), resources, tasks, sign=-1)

    @transaction.atomic
    def sync(self, project_id: int) -> tuple[Drift, ...]:
        """Recount what the project holds and put every counter right; answers those that were not.

        1. The lines are locked: whoever starts or ends a job moves them in the same transaction as its
           allocations, so nobody is half-way while we count.
        2. Only then is counted, in a statement of its own that sees all that was committed before.
        3. What is found is written even where it passes the bound: it is what is so.
        """
        rows = _locked(project_id)
        held = usage_source().usage([project_id]).get(project_id, {})
        now = timezone.now()
        drifts = []
        with pgtrigger.ignore("quotas.Quota:quota_never_passed"):
            for row in rows:
                found = held.get(row.resource, 0)
                if row.used != found:
                    drifts.append(Drift(row.resource, row.used, found))
                Quota.objects.filter(pk=row.pk).update(used=found, synced_at=now)
        return tuple(drifts)

    def _move(self, rows: Iterable[Quota], resources: Resources, tasks: int, *, sign: int) -> None:
        for row in rows:
            amount = charge(row.resource, resources, tasks)
            if amount:
                Quota.objects.filter(pk=row.pk).update(used=F("used") + sign * amount)


def sheet_of(project_id: int, rows: Iterable[Quota], held: Mapping[str, int] | None = None) -> QuotaSheet:
    """The lines that there are, and for each resource without one an unbounded line with what is held.

    `held` is what the usage source says, when the caller has asked for many projects at once.
    """
    by_resource = {row.resource: row for row in rows}
    if held is None:
        complete = len(by_resource) == len(QuotaResource.counted())
        held = {} if complete else usage_source().usage([project_id]).get(project_id, {})
    return QuotaSheet(
        project_id=project_id,
        provider=next((row.provider for row in by_resource.values()), LocalQuotaProvider.name),
        lines=tuple(
            _view(by_resource[resource])
            if resource in by_resource
            else LineView(resource.value, None, None, None, True, held.get(resource, 0), 0, None)
            for resource in QuotaResource.counted()
        ),
    )


def _view(row: Quota) -> LineView:
    return LineView(
        resource=row.resource,
        nominal=row.nominal,
        soft=row.soft,
        hard=row.hard,
        enforce=row.enforce,
        used=row.used,
        generation=row.generation,
        synced_at=row.synced_at,
    )


def _locked(project_id: int) -> list[Quota]:
    """By rising id, as every other writer of these rows takes them."""
    return list(
        Quota.objects.plain().select_for_update(of=("self",)).filter(project_id=project_id).order_by("id")
    )


def _short(rows: Iterable[Quota], resources: Resources, tasks: int) -> tuple[Shortfall, ...]:
    bounded = [Line(row.resource, row.hard, row.used, row.enforce) for row in rows if row.hard is not None]
    return tuple(
        Shortfall(line.resource, need, line.hard, line.used)
        for line, need in short_lines(bounded, resources, tasks)
    )
