"""Budget preview: what a request would set aside of budgets, with those that only warn."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.utils import timezone

from quotas.core.budgets import COUNTED
from quotas.core.ledger import hold
from quotas.core.pricing import Price, Rates
from quotas.models import PriceRow
from quotas.selectors.usage import budget_states
from scheduler.core.reasons.messages import budget_amount
from scheduler.services.submission.job_spec import JobSpec


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """What the job would set aside of a budget in its present period, and whether so much is left."""

    budget_id: int
    name: str
    resource: str
    needs: int
    left: int
    amount: int
    on_spent: str
    passed: bool
    text: str


def budget_uses(spec: JobSpec) -> tuple[BudgetUse, ...]:
    """What the job would set aside of every budget that it counts on, with those that only warn."""
    found = []
    for state in budget_states([spec.project]):
        budget, period = state.budget, state.period
        seconds = spec.time_limit_seconds or spec.queue.max_wall_seconds or settings.LEDGER_OPEN_HOLD_SECONDS
        now = timezone.now()
        seconds = min(seconds, int((period.ends_at - now).total_seconds()))
        rates = Rates(
            spec.per_task.cpu_millis * spec.tasks, spec.per_task.memory_mib * spec.tasks,
            spec.per_task.gpu_millis_charged * spec.tasks, spec.per_task.storage_mib * spec.tasks,
            spec.gpu_models,
        )  # fmt: skip
        begin = int(now.timestamp())
        entry = hold([rates], at_s=begin, seconds=max(seconds, 1), prices=_prices(budget.resource))[0]
        needs = entry.amount(COUNTED[budget.resource]).held
        if needs <= 0:
            continue
        facts: dict[str, int | str] = {
            "resource": budget.resource,
            "needs": needs,
            "left": state.left,
            "limit": period.amount,
        }
        passed = needs > state.left
        text = (
            f"Reserves {budget_amount(facts, 'needs')} of the budget {budget.name} of {state.owner}; "
            f"{budget_amount(facts, 'left')} of {budget_amount(facts, 'limit')} are left."
        )
        if passed:
            text += {
                "refuse": " The job has to wait for the next period.",
                "demote": " When the budget is used up, jobs get the lowest priority.",
                "warn": " The job starts anyway.",
            }[budget.on_spent]
        found.append(
            BudgetUse(
                budget.pk, budget.name, budget.resource, needs, state.left, period.amount, budget.on_spent,
                passed, text,
            )
        )  # fmt: skip
    return tuple(found)


def _prices(resource: str) -> list[Price]:
    if resource != "money_micros":
        return []
    return [
        Price(
            row.resource, row.micros_per_hour, int(row.valid_from.timestamp()),
            int(row.valid_until.timestamp()) if row.valid_until else None, row.gpu_model,
        )
        for row in PriceRow.objects.order_by("id")
    ]  # fmt: skip
