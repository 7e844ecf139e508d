"""Budgets: made, changed and ended by operators; their periods opened ahead; corrections of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pgtrigger
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts import permissions
from accounts.models import Organization, Project, User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput
from infra.plain_text import check_lines
from quotas import outbox
from quotas.core.budgets import COUNTED
from quotas.core.ledger import Kind
from quotas.core.periods import DAY, Period, periods_between
from quotas.core.pricing import UNITS
from quotas.core.resources import MAX_AMOUNT
from quotas.models import Budget, BudgetPeriod, BudgetResource, LedgerEntry, OnSpent, PriceRow
from quotas.selectors.budgets import budgets_of_projects, sum_of_period, terms_of
from quotas.usage_source import usage_source

#: Periods are opened so far ahead; a longer job opens those it reaches into by itself.
AHEAD: Final = timedelta(days=40)
EDITABLE: Final = ("name", "amount", "on_spent", "ends_at")


def make_budget(
    *,
    subject: Organization | Project,
    name: str,
    resource: str,
    amount: int,
    period: str,
    by: User,
    reason: str,
    on_spent: str = OnSpent.REFUSE,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
) -> Budget:
    """Give a project, or all below an organization, so much of a resource each period.

    What was used since the period began counts at once, even where it was used before the budget was made.
    """
    _require(by, subject)
    check_lines(name=name, reason=reason)
    starts_at = starts_at or timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    values = {
        "name": name.strip(), "resource": resource, "amount": amount, "period": period, "on_spent": on_spent,
        "starts_at": starts_at, "ends_at": ends_at,
    }  # fmt: skip
    _check(values, reason)
    with transaction.atomic():
        budget = Budget.objects.create(
            organization=subject if isinstance(subject, Organization) else None,
            project=subject if isinstance(subject, Project) else None,
            **values,
        )
        open_periods(budget)
        usage_source().hold_running()
        outbox.wake_planners()
        audit.record(
            by=by,
            action="budget.make",
            thing=budget,
            after={name: audit.plain(value) for name, value in values.items()} | {"subject": str(subject)},
            reason=reason,
            project=budget.project,
        )
    return budget


def change_budget(
    *,
    budget: Budget,
    changes: Mapping[str, Any],
    by: User,
    reason: str,
    expected_generation: int | None = None,
) -> Budget:
    """Change what a budget is called, allows, or does when spent; the present and later periods follow.

    An amount below what is taken stops nobody who runs: nothing new starts until the next period. With
    `expected_generation` raises Conflict (412) when somebody has changed it since.
    """
    _require(by, budget.project or budget.organization)
    with transaction.atomic():
        budget = Budget.objects.select_for_update(of=("self",)).get(pk=budget.pk)
        if expected_generation is not None and expected_generation != budget.generation:
            raise _stale(budget)
        unknown = set(changes) - set(EDITABLE)
        if unknown:
            message = f"{sorted(unknown)[0]!r} of a budget cannot be changed; {', '.join(EDITABLE)} can."
            raise InvalidInput(message, problems=[FieldProblem(sorted(unknown)[0], message)])
        old = {name: getattr(budget, name) for name in (*EDITABLE, "starts_at", "period", "resource")}
        values = old | dict(changes)
        _check(values, reason)
        before, after = audit.changed(old, values)
        if not after:
            return budget
        for name in EDITABLE:
            setattr(budget, name, values[name])
        budget.generation += 1
        budget.save(update_fields=[*EDITABLE, "generation"])
        now = timezone.now()
        if "ends_at" in after and budget.ends_at is not None:
            # A period that begins after the new end is no period; the one it falls in ends with it.
            budget.periods.filter(starts_at__gte=budget.ends_at).delete()
            for row in budget.periods.filter(ends_at__gt=budget.ends_at):
                _count_again(row, budget.ends_at)
        _follow(budget, now)
        if "ends_at" in after:  # it may count again
            usage_source().hold_running()
        outbox.wake_planners()
        audit.record(
            by=by, action="budget.change", thing=budget, before=before, after=after, reason=reason,
            project=budget.project,
        )  # fmt: skip
    return budget


@transaction.atomic
def shift_budget(*, budget: Budget, by_amount: int, reason: str) -> int:
    """Let a budget allow so much more (or less) from now on, as a grant begins or ends; answers by how much it changed.

    The present and later periods follow. Less than what is taken stops nobody who runs.
    """
    row = Budget.objects.select_for_update(of=("self",)).get(pk=budget.pk)
    before, row.amount = row.amount, min(max(row.amount + by_amount, 0), MAX_AMOUNT)
    if row.amount == before:
        return 0
    row.generation += 1
    row.save(update_fields=["amount", "generation"])
    _follow(row, timezone.now())
    outbox.wake_planners()
    audit.record(
        by=None, action="budget.change", thing=row, before={"amount": before}, after={"amount": row.amount},
        reason=reason, project=row.project,
    )  # fmt: skip
    return row.amount - before


def _follow(budget: Budget, now: datetime) -> None:
    """Let the periods that are or come be as the budget is."""
    budget.periods.filter(ends_at__gt=now).update(
        amount=budget.amount, enforce=budget.on_spent == OnSpent.REFUSE
    )
    open_periods(budget, now=now)


def end_budget(
    *,
    budget: Budget,
    by: User,
    reason: str,
    at: datetime | None = None,
    expected_generation: int | None = None,
) -> Budget:
    """Let a budget end at the next midnight: its periods stay as they were."""
    midnight = (at or timezone.now()).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return change_budget(
        budget=budget,
        changes={"ends_at": midnight},
        by=by,
        reason=reason,
        expected_generation=expected_generation,
    )


def open_periods(budget: Budget, *, now: datetime | None = None) -> int:
    """Make the rows of the period that is and of those that come soon, with what the ledger has for them."""
    now = now or timezone.now()
    terms = terms_of(budget)
    wanted = periods_between(
        terms.period, int(now.timestamp()), int((now + AHEAD).timestamp()),
        from_s=terms.from_s, until_s=terms.until_s,
    )  # fmt: skip
    made = 0
    for begin_s, end_s in wanted:
        starts_at, ends_at = (datetime.fromtimestamp(moment, tz=UTC) for moment in (begin_s, end_s))
        row, created = BudgetPeriod.objects.get_or_create(
            budget=budget,
            starts_at=starts_at,
            defaults={
                "ends_at": ends_at,
                "amount": budget.amount,
                "enforce": budget.on_spent == OnSpent.REFUSE,
            },
        )
        made += created
        if created or row.ends_at != ends_at:
            _count_again(row, ends_at)
    return made


def _count_again(row: BudgetPeriod, ends_at: datetime) -> None:
    """A period with all that the ledger has for it until it ends: a new one, or one that was given another end."""
    with transaction.atomic():
        row = BudgetPeriod.objects.select_for_update(of=("self",)).select_related("budget").get(pk=row.pk)
        row.ends_at = ends_at
        total = sum_of_period(row)
        with pgtrigger.ignore("quotas.BudgetPeriod:budget_never_passed"):  # it is what is so
            BudgetPeriod.objects.filter(pk=row.pk).update(
                ends_at=ends_at, charged=total.charged, held=max(total.held, 0)
            )


def open_all_periods() -> int:
    """The periods that come soon, of every budget that has not ended."""
    now = timezone.now()
    running = Budget.objects.exclude(ends_at__lte=now)
    return sum(open_periods(budget, now=now) for budget in running)


def adjust(
    *, project: Project, resource: str, amount: int, by: User, reason: str, user: User | None = None,
    gpu_model: str = "", at: datetime | None = None,
) -> LedgerEntry:  # fmt: skip
    """Correct what was charged: a line of its own, for the ledger never changes.

    `amount` is in the unit of the resource (thousandths of GPUs or cores times seconds, or millionths of
    money), and negative to give back. Whole cores and GPUs only.
    """
    permissions.require(by, "edit_quota", project)
    problems = []
    if resource not in COUNTED:
        problems.append(FieldProblem("resource", f"Must be one of {', '.join(COUNTED)}."))
    if not amount or abs(amount) > MAX_AMOUNT:
        problems.append(FieldProblem("amount", "Give an amount: a whole number, negative for a refund."))
    if resource in ("gpu_milli_seconds", "cpu_milli_seconds") and amount % 1000:
        problems.append(FieldProblem("amount", "Correct by whole seconds of whole GPUs or cores."))
    if not reason.strip():
        problems.append(FieldProblem("reason", "Give a reason; it stays with the entry.", "required"))
    if problems:
        raise InvalidInput(problems[0].message, problems=problems)
    at = (at or timezone.now()).replace(microsecond=0)
    with transaction.atomic():
        seconds = 0 if resource == "money_micros" else amount // 1000
        entry = LedgerEntry.objects.create(
            kind=Kind.ADJUST, project=project, user=user, gpu_model=gpu_model,
            gpu_millis=1000 if resource == "gpu_milli_seconds" else 0,
            cpu_millis=1000 if resource == "cpu_milli_seconds" else 0,
            charged_seconds=seconds,
            charged_micros=amount if resource == "money_micros" else 0,
            starts_at=at, ends_at=at, at=timezone.now(), reason=reason.strip()[:200],
        )  # fmt: skip
        for row in _periods_at(project, resource, at):
            BudgetPeriod.objects.filter(pk=row.pk).update(charged=row.charged + amount)
        outbox.wake_planners()
        audit.record(
            by=by, action="ledger.adjust", thing=project, project=project, reason=reason,
            after={"resource": resource, "amount": amount, "entry": entry.pk, "user": str(user or "")},
        )  # fmt: skip
    return entry


def set_price(
    *, resource: str, micros_per_hour: int, valid_from: datetime, by: User, reason: str, gpu_model: str = ""
) -> PriceRow:
    """A price from a moment on, until the next one of the same thing; what was charged stays charged."""
    permissions.require(by, "operate")
    problems = []
    if resource not in UNITS:
        problems.append(FieldProblem("resource", f"Must be one of {', '.join(UNITS)}."))
    if gpu_model and resource != "gpu_millis":
        problems.append(FieldProblem("gpu_model", "Only GPUs have a model."))
    if not 0 <= micros_per_hour <= MAX_AMOUNT:
        problems.append(FieldProblem("micros_per_hour", "A price is not negative."))
    if not reason.strip():
        problems.append(FieldProblem("reason", "Give a reason; it goes into the audit trail.", "required"))
    if PriceRow.objects.filter(resource=resource, gpu_model=gpu_model, valid_from=valid_from).exists():
        problems.append(FieldProblem("valid_from", "A price with this start exists already."))
    if problems:
        raise InvalidInput(problems[0].message, problems=problems)
    same = PriceRow.objects.filter(resource=resource, gpu_model=gpu_model)
    with transaction.atomic():
        later = same.filter(valid_from__gt=valid_from).order_by("valid_from").first()
        same.filter(valid_from__lt=valid_from).filter(
            Q(valid_until__isnull=True) | Q(valid_until__gt=valid_from)
        ).update(valid_until=valid_from)
        price = PriceRow.objects.create(
            resource=resource, gpu_model=gpu_model, micros_per_hour=micros_per_hour, valid_from=valid_from,
            valid_until=later.valid_from if later else None,
        )  # fmt: skip
        outbox.wake_planners()
        audit.record(
            by=by, action="price.set", thing=price, reason=reason,
            after={"resource": resource, "gpu_model": gpu_model, "micros_per_hour": micros_per_hour,
                   "valid_from": valid_from.isoformat()},
        )  # fmt: skip
    return price


def _stale(budget: Budget) -> Conflict:
    return Conflict(
        "This budget was changed since you read it.",
        code="stale",
        status=412,
        way_out="Read the current values, then repeat your change.",
        extra={
            "generation": budget.generation,
            "current": {name: audit.plain(getattr(budget, name)) for name in EDITABLE},
        },
    )


def _require(by: User, subject: Organization | Project | None) -> None:
    """Operators give budgets; to a project or to an organization alike."""
    if isinstance(subject, Project):
        permissions.require(by, "edit_quota", subject)
    else:
        permissions.require(by, "operate")


def _check(values: Mapping[str, Any], reason: str) -> None:
    problems = []
    if not reason.strip():
        problems.append(FieldProblem("reason", "Give a reason; it goes into the audit trail.", "required"))
    if not values["name"] or len(values["name"]) > 80:
        problems.append(FieldProblem("name", "Give the budget a name of at most 80 characters.", "required"))
    if values["resource"] not in BudgetResource.values:
        problems.append(FieldProblem("resource", f"Must be one of {', '.join(BudgetResource.values)}."))
    amount = values["amount"]
    if isinstance(amount, bool) or not isinstance(amount, int) or not 0 <= amount <= MAX_AMOUNT:
        problems.append(FieldProblem("amount", f"An amount is a whole number from 0 to {MAX_AMOUNT}."))
    if values["period"] not in [period.value for period in Period]:
        problems.append(FieldProblem("period", "A period is month, week or window."))
    if values["on_spent"] not in OnSpent.values:
        problems.append(FieldProblem("on_spent", f"Must be one of {', '.join(OnSpent.values)}."))
    problems += _time_problems(values["starts_at"], values["ends_at"], values["period"])
    if problems:
        raise InvalidInput(problems[0].message, problems=problems)


def _time_problems(starts_at: datetime | None, ends_at: datetime | None, period: str) -> list[FieldProblem]:
    """Begin and end are at midnight UTC, the end is later, and a window has one."""
    problems = []
    for field, moment in (("starts_at", starts_at), ("ends_at", ends_at)):
        if moment is not None and (
            moment.tzinfo is None or int(moment.timestamp()) % DAY or moment.microsecond
        ):
            problems.append(FieldProblem(field, "Budgets begin and end at midnight UTC."))
    if ends_at is not None and starts_at is not None and ends_at <= starts_at:
        problems.append(FieldProblem("ends_at", "The end must be after the beginning."))
    if ends_at is None and period == Period.WINDOW:
        problems.append(FieldProblem("ends_at", "A window needs an end.", "required"))
    return problems


def _periods_at(project: Project, resource: str, at: datetime) -> list[BudgetPeriod]:
    budgets = Budget.objects.filter(
        pk__in=budgets_of_projects([project.pk]).get(project.pk, ()), resource=resource
    )
    return list(
        BudgetPeriod.objects.select_for_update(of=("self",))
        .filter(budget__in=budgets, starts_at__lte=at, ends_at__gt=at)
        .order_by("id")
    )
