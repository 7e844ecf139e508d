"""What a grant raises for its time: a limit of its project, or one of its project's budgets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from accounts.models import Project
from quotas.core.budgets import COUNTED
from quotas.core.resources import MAX_AMOUNT
from quotas.models import Budget, Grant, Quota, QuotaResource
from quotas.selectors.usage import budget_state
from quotas.services.budget_impact import BudgetImpact, amount_shown, impact_of_budget
from quotas.services.budgets import shift_budget
from quotas.services.impact import Impact, Whose, impact_of, quota_facts, shown
from quotas.services.quota_lines import Subject, set_line


@dataclass(frozen=True, slots=True)
class Raised:
    """By how much it was raised: a limit and its share, or the amount of a budget."""

    hard: int = 0
    nominal: int = 0


def line_of(project: Project, resource: str, gpu_model: str, *, lock: bool = False) -> Quota | None:
    """The project's plain line of a resource."""
    if lock:  # the project first, as every edit of its quota does
        Project.objects.select_for_update(no_key=True, of=("self",)).get(pk=project.pk)
    rows = Quota.objects.filter(
        project=project, user__isnull=True, organization__isnull=True, resource=resource, gpu_model=gpu_model,
        job_type="",
    )  # fmt: skip
    return (rows.select_for_update(of=("self",)) if lock else rows).first()


def bound_of(grant: Grant) -> int | None:
    """What is allowed now; None = there is nothing to raise."""
    if grant.budget is not None:
        return grant.budget.amount
    line = line_of(grant.project, grant.resource, grant.gpu_model)
    return None if line is None else line.hard


def raise_for(grant: Grant, reason: str) -> Raised:
    """Raise it by what was granted; a bound that was taken away meanwhile needs no raising."""
    assert grant.granted is not None
    if grant.budget is not None:
        return Raised(shift_budget(budget=grant.budget, by_amount=grant.granted, reason=reason))
    line = line_of(grant.project, grant.resource, grant.gpu_model, lock=True)
    if line is None:
        return Raised()
    raised = {
        name: min(bound + grant.granted, MAX_AMOUNT) - bound
        for name in ("hard", "nominal")
        if (bound := getattr(line, name)) is not None
    }
    if raised:
        _change(grant, {name: getattr(line, name) + more for name, more in raised.items()}, reason)
    return Raised(**raised)


def lower_again(grant: Grant, reason: str) -> None:
    """Lower it by what it was raised; it may be left with more in use than it allows."""
    if grant.budget is not None:
        shift_budget(budget=grant.budget, by_amount=-grant.raised_hard, reason=reason)
        return
    line = line_of(grant.project, grant.resource, grant.gpu_model, lock=True)
    if line is None:
        return
    changes = {
        name: max(getattr(line, name) - raised, 0)
        for name, raised in (("hard", grant.raised_hard), ("nominal", grant.raised_nominal))
        if raised and getattr(line, name) is not None
    }
    if line.soft is not None and "hard" in changes and line.soft > changes["hard"]:
        changes["soft"] = changes["hard"]
    if changes:
        _change(grant, changes, reason)


def evidence(project: Project, what: Quota | Budget) -> dict[str, Any]:
    """What is known of a project's use when it asks for more of a line, or of a budget."""
    facts = quota_facts()
    if isinstance(what, Budget):
        period = budget_state(what).period
        bound, used = what.amount, period.held + period.charged
        resource, gpu_model = COUNTED[what.resource], ""
        if resource == "money_micros":
            resource = QuotaResource.RUNNING_JOBS  # what jobs that wait will cost is not known
    else:
        bound, used, resource, gpu_model = what.hard or 0, what.used, what.resource, what.gpu_model
    return {
        "bound": bound,
        "used": used,
        "demand": asdict(facts.demand(Whose((project.pk,)), resource, gpu_model)),
        "lately": dict(facts.lately(project.pk)),
    }


def impact(grant: Grant, more: int) -> Impact | BudgetImpact:
    """What raising it by so much would mean now."""
    if grant.budget is not None:
        budget = grant.budget
        return impact_of_budget(
            budget, subject=grant.project, resource=budget.resource, amount=budget.amount + more,
            on_spent=budget.on_spent,
        )  # fmt: skip
    present = bound_of(grant)
    return impact_of(
        project=grant.project,
        resource=grant.resource,
        gpu_model=grant.gpu_model,
        bound_after=None if present is None else present + more,
    )


def amount_text(grant: Grant, amount: int) -> str:
    """`4 GPUs of H100`, `100.0 GPU-hours of the budget Autumn`."""
    if grant.budget is not None:
        return f"{amount_shown(grant.resource, amount)} of the budget {grant.budget.name}"
    return shown(grant.resource, amount) + (f" of {grant.gpu_model}" if grant.gpu_model else "")


def what_words(resource: str, gpu_model: str) -> str:
    """`H100 GPUs`."""
    label = "GPUs" if resource == QuotaResource.GPU_MILLIS else QuotaResource(resource).label.split(" (")[0]
    return f"{gpu_model} {label}".strip()


def _change(grant: Grant, changes: dict[str, Any], reason: str) -> None:
    set_line(
        subject=Subject(project=grant.project), resource=grant.resource, gpu_model=grant.gpu_model, changes=changes,
        by=None, reason=reason,
    )  # fmt: skip
