"""Quotas kept in Muster's own rows: the counters that apply and settle move, checked and recounted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pgtrigger
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts.models import Project
from infra.errors import Conflict
from quotas.core.limits import charge
from quotas.core.resources import Resources
from quotas.models import Provider, Quota, QuotaResource
from quotas.providers.base import Drift, LineView, QuotaCheck, QuotaSheet, Shortfall
from quotas.selectors.quota_status import Standings, find_lines
from quotas.usage_source import usage_source


class LocalQuotaProvider:
    """One row a resource; a bound holds however many processes start jobs, for the database refuses more."""

    name = Provider.LOCAL.value

    def get_quota(self, project_id: int) -> QuotaSheet:
        return sheet_of(project_id, Quota.objects.plain().filter(project_id=project_id))

    def check_quota(
        self,
        project_id: int,
        resources: Resources,
        job_type: str = "batch",
        *,
        tasks: int = 1,
        user_id: int | None = None,
        devices: Mapping[str, int] | None = None,
    ) -> QuotaCheck:
        """Whether a job may start now, or ever could, by every line from the project's up to the root.

        With `user_id` the person's own lines count too, in the project and everywhere; with `devices`
        (thousandths by model) those of single GPU models.
        """
        charges = _charges(project_id, resources, job_type, tasks, user_id, devices)
        short = _short(Standings([line for line, _ in charges]), charges)
        return QuotaCheck(
            allowed=not short,
            possible=all(shortfall.needed <= shortfall.hard for shortfall in short),
            shortfalls=short,
            soft_passed=tuple(
                line.resource
                for line, amount in charges
                if line.soft is not None and line.used + amount > line.soft
            ),
        )

    @transaction.atomic
    def allocate_quota(
        self,
        project_id: int,
        resources: Resources,
        job_type: str = "batch",
        *,
        tasks: int = 1,
        user_id: int | None = None,
        devices: Mapping[str, int] | None = None,
        key: str = "",
    ) -> None:
        """Count a start on every line of its way up, or raise Conflict and count nothing.

        The key is for providers that keep rows of their own: here the caller's transaction counts a start once.
        """
        charges = _locked_charges(_charges(project_id, resources, job_type, tasks, user_id, devices))
        short = _short(Standings([line for line, _ in charges]), charges)
        if short:
            first = short[0]
            raise Conflict(
                f"The quota of {first.resource} of {first.owner} is used up: {first.used} of {first.hard} in"
                f" use, {first.needed} needed.",
                code="quota-exceeded",
                way_out="Wait until jobs of the project end, or ask an operator for a higher limit.",
            )
        _move(charges, sign=1)

    @transaction.atomic
    def release_quota(
        self,
        project_id: int,
        resources: Resources,
        job_type: str = "batch",
        *,
        tasks: int = 1,
        user_id: int | None = None,
        devices: Mapping[str, int] | None = None,
        key: str = "",
    ) -> None:
        """Give back what `allocate_quota` counted when it was asked the same."""
        _move(_locked_charges(_charges(project_id, resources, job_type, tasks, user_id, devices)), sign=-1)

    @transaction.atomic
    def sync(self, project_id: int) -> tuple[Drift, ...]:
        """Recount what the project holds and put every counter right; answers those that were not.

        1. The lines are locked: every start and end of a job moves them in the same transaction as its
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


#: What a start counts for on each line of its way up, the lowest first.
Charges = list[tuple[Quota, int]]


def _charges(
    project_id: int,
    resources: Resources,
    job_type: str,
    tasks: int,
    user_id: int | None,
    devices: Mapping[str, int] | None,
) -> Charges:
    project = Project.objects.filter(pk=project_id).first()
    if project is None:
        return []
    found = find_lines([project], user_id=user_id)
    counted = (
        (line, charge(line.resource, resources, tasks, gpu_model=line.gpu_model, devices=devices))
        for line in (*found.of_project[project_id], *found.of_person)
        if line.job_type in ("", job_type)
    )
    return [(line, amount) for line, amount in counted if amount]


def _locked_charges(charges: Charges) -> Charges:
    """The same on rows as they are now, locked by rising id as every other writer takes them."""
    rows = Quota.objects.select_for_update(of=("self",)).select_related("project", "organization", "user")
    locked = {row.pk: row for row in rows.filter(pk__in=[line.pk for line, _ in charges]).order_by("id")}
    return [(locked[line.pk], amount) for line, amount in charges if line.pk in locked]


def _short(standings: Standings, charges: Charges) -> tuple[Shortfall, ...]:
    missing = standings.short([(line.pk, amount) for line, amount in charges])
    found = []
    for line, amount in charges:
        if line.pk in missing:
            # Where the rest is kept back for others, that is the most that could be in use at this moment.
            bound = min(standings.bound_of(line.pk), line.used + amount)
            most = bound if line.used + amount > bound else line.used + amount - missing[line.pk]
            found.append(Shortfall(line.resource, amount, most, line.used, line.owner))
    return tuple(found)


def _move(charges: Charges, *, sign: int) -> None:
    for line, amount in charges:
        Quota.objects.filter(pk=line.pk).update(used=F("used") + sign * amount)
