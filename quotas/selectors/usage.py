"""Reads of the ledger and of budgets, for those who may see the projects; every figure opens to its entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from django.db.models import Case, F, Q, QuerySet, Sum, Value, When
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Coalesce, TruncDate
from django.utils import timezone

from accounts import permissions
from accounts.models import Project, User
from accounts.selectors import visible_projects
from infra.request_cost import too_many_rows
from quotas.core.budgets import COUNTED, first_period
from quotas.core.forecast import LATELY, Forecast, forecast
from quotas.core.ledger import Kind
from quotas.models import Budget, BudgetPeriod, LedgerEntry
from quotas.selectors.budgets import budgets_of_projects, projects_of, terms_of

#: What usage may be grouped by, and the columns that say which group.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "day": (),
    "gpu_model": ("gpu_model",),
    "project": ("project_id", "project__slug", "project__name"),
    "user": ("user_id", "user__username"),
}
#: Days of one question at most.
MOST_DAYS: Final = 400


def visible_entries(user: User) -> QuerySet[LedgerEntry]:
    """The lines of every project that the person may see."""
    entries = LedgerEntry.objects.select_related("project", "user", "roll_up")
    if permissions.sees_everything(user):
        return entries
    return entries.filter(project__in=list(visible_projects(user).order_by().values_list("pk", flat=True)))


def within(
    entries: QuerySet[LedgerEntry],
    *,
    begin: datetime | None = None,
    end: datetime | None = None,
    project_ids: Iterable[int] | None = None,
    user_id: int | None = None,
    job_number: int | None = None,
    kinds: Sequence[str] = (),
    gpu_model: str | None = None,
) -> QuerySet[LedgerEntry]:
    """The lines that count from one moment until another, of these projects, this person, that job."""
    wanted = Q()
    if begin is not None:
        wanted &= Q(starts_at__gte=begin)
    if end is not None:
        wanted &= Q(starts_at__lt=end)
    if project_ids is not None:
        wanted &= Q(project_id__in=list(project_ids))
    if user_id is not None:
        wanted &= Q(user_id=user_id)
    if job_number is not None:
        wanted &= Q(job_number=job_number)
    if kinds:
        wanted &= Q(kind__in=kinds)
    if gpu_model is not None:
        wanted &= Q(gpu_model=gpu_model)
    return entries.filter(wanted)


@dataclass(frozen=True, slots=True)
class Usage:
    """What one group used: amounts times seconds, and what became of it."""

    group: tuple[Any, ...]
    gpu_milli_seconds: int = 0
    cpu_milli_seconds: int = 0
    memory_mib_seconds: int = 0
    storage_mib_seconds: int = 0
    money_micros: int = 0
    #: GPU time that was given back (work lost) and what people corrected; both signed as in the ledger.
    forgiven_gpu_milli_seconds: int = 0
    adjusted_gpu_milli_seconds: int = 0
    #: GPU and CPU time that was set aside and not needed: asked for too long.
    unused_gpu_milli_seconds: int = 0
    unused_cpu_milli_seconds: int = 0
    #: GPU time that is set aside at this moment.
    held_gpu_milli_seconds: int = 0

    @property
    def given_back_gpu_milli_seconds(self) -> int:
        """What was forgiven, as people say it: more than nothing."""
        return -self.forgiven_gpu_milli_seconds

    @property
    def efficiency_percent(self) -> float | None:
        """Of the time that was asked for, how much was used; by GPU time, by CPU time where there is none."""
        used, unused = self.gpu_milli_seconds, self.unused_gpu_milli_seconds
        if used + unused == 0:
            used, unused = self.cpu_milli_seconds, self.unused_cpu_milli_seconds
        return round(100 * used / (used + unused), 1) if used + unused else None


def usage(
    entries: QuerySet[LedgerEntry], group: str | tuple[str, ...] = (), *, most: int | None = None
) -> list[Usage]:
    """Sums of these lines by `GROUPS` (several: a group is all their columns), largest use of GPUs first.

    Raises InvalidInput where there are more than `most` groups; days times people times models can be many.
    """
    names = (group,) if isinstance(group, str) else group
    columns = [column for name in names for column in (("day",) if name == "day" else GROUPS[name])]
    rows = entries.order_by()
    if "day" in names:
        rows = rows.annotate(day=TruncDate("starts_at", tzinfo=UTC))
    used, refund = Q(kind=Kind.CHARGE), Q(kind=Kind.REFUND)
    sums = {
        "gpu_milli_seconds": _sum("gpu_millis", "charged_seconds", used),
        "cpu_milli_seconds": _sum("cpu_millis", "charged_seconds", used),
        "memory_mib_seconds": _sum("memory_mib", "charged_seconds", used),
        "storage_mib_seconds": _sum("storage_mib", "charged_seconds", used),
        "money_micros": Coalesce(Sum("charged_micros"), 0),
        "forgiven_gpu_milli_seconds": _sum("gpu_millis", "charged_seconds", refund),
        "adjusted_gpu_milli_seconds": _sum("gpu_millis", "charged_seconds", Q(kind=Kind.ADJUST)),
        "unused_gpu_milli_seconds": _unused("gpu_millis"),
        "unused_cpu_milli_seconds": _unused("cpu_millis"),
        "held_gpu_milli_seconds": _sum("gpu_millis", "held_seconds", Q()),
    }
    grouped: Any = rows.values(*columns) if columns else rows.annotate(all=Value(1)).values("all")
    found = grouped.annotate(**sums)
    answers = [
        Usage(tuple(row[column] for column in columns), **{name: int(row[name]) for name in sums})
        for row in (found if most is None else found[: most + 1])
    ]
    if most is not None and len(answers) > most:
        raise too_many_rows(
            f"These sums have more than {most:,} groups, the most that one request may ask for.",
            field="group", way_out="Group by fewer things, or ask for fewer days.",
        )  # fmt: skip
    return sorted(answers, key=lambda one: (-one.gpu_milli_seconds, -one.cpu_milli_seconds, repr(one.group)))


def _sum(amount: str, seconds: str, which: Q, *, sign: int = 1) -> Coalesce:
    return Coalesce(Sum(F(amount) * F(seconds) * sign, filter=which or None), 0)


def _unused(amount: str) -> CombinedExpression:
    """What was reserved and given back, and what attempts without a budget did not use of their time limit."""
    given_back = _sum(amount, "held_seconds", Q(kind=Kind.REFUND), sign=-1)
    return given_back + _sum(amount, "unused_seconds", Q())


def total(entries: QuerySet[LedgerEntry]) -> Usage:
    found = usage(entries)
    return found[0] if found else Usage(())


# ------------------------------------------------------------------ budgets


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget in the period that is: what it had, what is gone, and when it will be spent."""

    budget: Budget
    period: BudgetPeriod
    forecast: Forecast
    #: Charged in all until the end of each day of the period, from its first to today.
    days: tuple[tuple[date, int], ...] = field(default=())

    @property
    def left(self) -> int:
        return self.period.left

    @property
    def spent(self) -> bool:
        return self.period.held + self.period.charged >= self.period.amount

    @property
    def percent(self) -> float:
        taken = self.period.held + self.period.charged
        return round(100 * taken / self.period.amount, 1) if self.period.amount else 100.0

    @property
    def owner(self) -> str:
        return str(self.budget.project or self.budget.organization)

    @property
    def runs_out_at(self) -> datetime | None:
        out = self.forecast.runs_out_s
        return None if out is None else datetime.fromtimestamp(out, tz=UTC)


def budget_states(
    projects: Iterable[Project] | None,
    *,
    now: datetime | None = None,
    days: bool = False,
    only: Budget | None = None,
) -> list[BudgetState]:
    """Every budget that these projects count on (None: every budget there is), as it is now."""
    now = now or timezone.now()
    periods = BudgetPeriod.objects.filter(starts_at__lte=now, ends_at__gt=now)
    if projects is not None:
        ids = {pk for found in budgets_of_projects([p.pk for p in projects]).values() for pk in found}
        periods = periods.filter(budget__in=ids)
    if only is not None:
        periods = periods.filter(budget=only)
    rows = periods.select_related("budget__project", "budget__organization").order_by("budget_id")
    return [_state(row, now, days=days) for row in rows]


def budget_state(budget: Budget, *, now: datetime | None = None) -> BudgetState:
    """One budget in the period that is; before its first one in that, and after its last one in that."""
    now = now or timezone.now()
    present = budget_states(None, now=now, only=budget)
    if present:
        return present[0]
    rows = budget.periods.order_by("starts_at")
    row = rows.filter(starts_at__gt=now).first() or rows.last()
    if row is None:  # it begins so late that no period was opened yet
        begin, end = (datetime.fromtimestamp(moment, tz=UTC) for moment in first_period(terms_of(budget)))
        row = BudgetPeriod(budget=budget, starts_at=begin, ends_at=end, amount=budget.amount)
    row.budget = budget
    return _state(row, now, days=False)


def _state(row: BudgetPeriod, now: datetime, *, days: bool) -> BudgetState:
    since = min(max(row.starts_at, now - timedelta(seconds=LATELY)), now)
    lately, by_day = _charged(row, since, now, days=days)
    outlook = forecast(
        left=row.left,
        used_lately=lately,
        since_s=int(since.timestamp()),
        now_s=int(now.timestamp()),
        ends_s=int(row.ends_at.timestamp()),
    )
    return BudgetState(row.budget, row, outlook, by_day)


def _charged(
    row: BudgetPeriod, since: datetime, now: datetime, *, days: bool
) -> tuple[int, tuple[tuple[date, int], ...]]:
    """What a budget was charged lately, and by the end of each day of its period."""
    counted = COUNTED[row.budget.resource]
    amount = F("charged_micros") if counted == "money_micros" else F(counted) * F("charged_seconds")
    entries = LedgerEntry.objects.filter(
        project__in=projects_of(row.budget),
        starts_at__gte=row.starts_at if days else since,
        starts_at__lt=row.ends_at,
    ).order_by()
    sums = (
        entries.annotate(day=TruncDate("starts_at", tzinfo=UTC))
        .values("day")
        .annotate(
            amount=Coalesce(Sum(amount), 0),
            lately=Coalesce(Sum(Case(When(starts_at__gte=since, then=amount), default=Value(0))), 0),
        )
        .order_by("day")
    )
    rows = [(one["day"], int(one["amount"]), int(one["lately"])) for one in sums]
    by_day: list[tuple[date, int]] = []
    if days:
        known = {day: amount for day, amount, _ in rows}
        at, sofar = row.starts_at.date(), 0
        while at <= min(now, row.ends_at - timedelta(seconds=1)).date():
            sofar += known.get(at, 0)
            by_day.append((at, sofar))
            at += timedelta(days=1)
    return sum(lately for _, _, lately in rows), tuple(by_day)


__all__ = [
    "GROUPS",
    "MOST_DAYS",
    "BudgetState",
    "Usage",
    "budget_state",
    "budget_states",
    "total",
    "usage",
    "visible_entries",
    "within",
]
