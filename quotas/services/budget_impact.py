"""What another budget or another price would mean, before anybody saves it: from use as it was of late."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db.models import F, Sum
from django.utils import timezone

from accounts.models import Organization, Project
from infra.times_in_text import written
from quotas.core.budgets import COUNTED
from quotas.core.forecast import forecast
from quotas.core.pricing import UNITS
from quotas.models import Budget, BudgetPeriod, BudgetResource, LedgerEntry, OnSpent
from quotas.selectors.budgets import projects_of
from quotas.services.impact import Demand, Whose, below, quota_facts
from quotas.usage_source import usage_source

LATELY: Final = timedelta(days=7)
MONTH: Final = timedelta(days=30)
_THEN: Final = {
    OnSpent.REFUSE: "new jobs wait for the next period; running jobs continue.",
    OnSpent.DEMOTE: "new jobs get the lowest priority; running jobs continue.",
    OnSpent.WARN: "people are notified, and jobs start as before.",
}


@dataclass(frozen=True, slots=True)
class BudgetImpact:
    """A budget as it would be, against what its present period has taken already."""

    resource: str
    amount: int
    taken: int
    on_spent: str
    demand: Demand
    runs_out_at: datetime | None
    ends_at: datetime | None

    @property
    def is_spent(self) -> bool:
        return self.taken >= self.amount

    @property
    def sentences(self) -> tuple[str, ...]:
        demand = self.demand
        found = [
            f"{demand.running_jobs:,} running and {demand.pending_jobs:,} pending jobs use this budget.",
            f"{amount_shown(self.resource, self.taken)} of {amount_shown(self.resource, self.amount)} are used or"
            " reserved in the current period.",
        ]
        then = _THEN[OnSpent(self.on_spent)]
        if self.is_spent:
            found.append(f"The budget is used up: {then}")
        elif self.runs_out_at is not None:
            found.append(
                f"At the rate of the last 7 days, the budget runs out at {written(self.runs_out_at)}; then {then}"
            )
        elif self.ends_at is not None:
            found.append(
                f"At the rate of the last 7 days, the budget lasts until the period ends at {written(self.ends_at)}."
            )
        return tuple(found)


def impact_of_budget(
    budget: Budget | None,
    *,
    subject: Project | Organization | None,
    resource: str,
    amount: int,
    on_spent: str,
    now: datetime | None = None,
) -> BudgetImpact:
    """`subject` for a budget that is to be made; what was used since its period began counts at once."""
    now = now or timezone.now()
    if budget is not None:
        projects = tuple(projects_of(budget))
    else:
        projects = below(subject) if isinstance(subject, Organization) else (subject.pk,) if subject else ()
    period = (
        None
        if budget is None
        else BudgetPeriod.objects.filter(budget=budget, starts_at__lte=now, ends_at__gt=now).first()
    )
    begin = period.starts_at if period else now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    ends_at = period.ends_at if period else None
    taken = (
        period.held + period.charged
        if period
        else _sum(resource, projects, begin, now, also_held=True) + _to_hold(resource, projects)
    )
    since = max(begin, now - LATELY)
    outlook = forecast(
        left=max(amount - taken, 0),
        used_lately=_sum(resource, projects, since, now),
        since_s=int(since.timestamp()),
        now_s=int(now.timestamp()),
        ends_s=int((ends_at or now + MONTH).timestamp()),
    )
    out = outlook.runs_out_s
    return BudgetImpact(
        resource=resource,
        amount=amount,
        taken=taken,
        on_spent=on_spent,
        demand=quota_facts().demand(Whose(projects), "gpu_millis", ""),
        runs_out_at=None if out is None else datetime.fromtimestamp(out, tz=UTC),
        ends_at=ends_at,
    )


def _to_hold(resource: str, projects: tuple[int, ...]) -> int:
    """What would be set aside for jobs that run now."""
    return sum(entry.amount(COUNTED[resource]).held for entry in usage_source().to_hold(projects))


def impact_of_price(*, resource: str, gpu_model: str, before: int | None, after: int) -> tuple[str, ...]:
    """What the use of the last 30 days would have cost, at the price that is and at the new one."""
    entries = LedgerEntry.objects.filter(starts_at__gte=timezone.now() - MONTH).order_by()
    if gpu_model:
        entries = entries.filter(gpu_model=gpu_model)
    used = entries.aggregate(total=Sum(F(resource) * F("charged_seconds")))["total"] or 0
    money = Budget.objects.filter(resource=BudgetResource.MONEY).count()
    cost = [f"{used * price / UNITS[resource] / 3600 / 1_000_000:,.2f}" for price in (before or 0, after)]
    return (
        f"The use of the last 30 days would have cost {cost[1]} at this price, and {cost[0]} at the one before.",
        f"{money:,} budget{'' if money == 1 else 's'} of money {'follows' if money == 1 else 'follow'} it from then"
        " on; what was charged stays as it was.",
    )


def amount_shown(resource: str, amount: int) -> str:
    if resource == BudgetResource.MONEY:
        return f"{amount / 1_000_000:,.2f}"
    noun = "GPU-hours" if resource == BudgetResource.GPU else "core-hours"
    return f"{amount / 3_600_000:,.1f} {noun}"


def _sum(
    resource: str, projects: tuple[int, ...], begin: datetime, end: datetime, *, also_held: bool = False
) -> int:
    counted = COUNTED[resource]
    entries = LedgerEntry.objects.filter(project__in=projects, starts_at__gte=begin, starts_at__lte=end)
    charged, held = (
        (F("charged_micros"), F("held_micros"))
        if counted == "money_micros"
        else (F(counted) * F("charged_seconds"), F(counted) * F("held_seconds"))
    )
    return int(
        entries.order_by().aggregate(total=Sum(charged + held if also_held else charged))["total"] or 0
    )
