"""Pages of requests for more quota: ask, look, decide."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts import permissions
from accounts.models import Project, ProjectRole, User
from accounts.selectors import project_by_ref, visible_projects
from accounts.web.pages import page, reader
from infra.errors import Conflict, FieldProblem, InvalidInput, MusterError, NotFound
from quotas.core.resources import MAX_AMOUNT
from quotas.models import OPEN, BudgetResource, Grant, GrantState, Quota, QuotaResource
from quotas.selectors.limits import budgets_to_raise, grant_by_id, visible_grants
from quotas.selectors.usage import budget_state
from quotas.services import grants as services
from quotas.services.impact import quota_facts

SHOWN: Final = 100
#: How many units of a line or a budget one of what people type is: GPUs, cores, GiB, jobs, hours.
UNITS: Final[dict[str, tuple[int, str]]] = {
    QuotaResource.GPU_MILLIS: (1000, "GPUs"),
    QuotaResource.CPU_MILLIS: (1000, "CPU cores"),
    QuotaResource.MEMORY_MIB: (1024, "GiB of memory"),
    QuotaResource.STORAGE_MIB: (1024, "GiB of storage"),
    QuotaResource.RUNNING_JOBS: (1, "running jobs"),
    BudgetResource.GPU: (3_600_000, "GPU-hours"),
    BudgetResource.CPU: (3_600_000, "core-hours"),
    BudgetResource.MONEY: (1_000_000, "of money"),
}


@require_safe
@page
def index(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    rows = visible_grants(user)
    context = {
        "open": list(rows.filter(state__in=OPEN)[:SHOWN]),
        "closed": list(rows.exclude(state__in=OPEN)[:SHOWN]),
        "decides": user.is_operator,
    }
    template = "quotas/grants_body.html" if "partial" in request.GET else "quotas/grants.html"
    return render(request, template, context)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def ask(request: HttpRequest) -> HttpResponse:
    """The form, with the evidence that will go along."""
    user = reader(request)
    given = {name: request.POST.get(name, request.GET.get(name, "")).strip() for name in
             ("project", "resource", "gpu_model", "amount", "reason", "starts", "ends", "renews")}  # fmt: skip
    if not given["project"]:
        mine = _may_ask_for(user)
        if len(mine) != 1:
            return render(request, "quotas/ask_which.html", {"projects": mine, "given": given})
        given["project"] = mine[0].slug
    project = project_by_ref(user, given["project"])
    permissions.require(user, "ask_quota", project)
    budgets = list(budgets_to_raise(project))
    budget = next((one for one in budgets if given["resource"] == f"budget-{one.pk}"), None)
    resource = given["resource"] if budget is None else budget.resource
    context: dict[str, Any] = {"problems": {}}
    if request.method == "POST":
        try:
            grant = services.ask_for_quota(
                project=project,
                resource=resource,
                budget=budget,
                gpu_model="" if budget else given["gpu_model"],
                amount=_amount(resource, given["amount"], "amount"),
                reason=given["reason"],
                starts_at=_day(given["starts"], "starts"),
                ends_at=_day(given["ends"], "ends"),
                renews=_renewed(user, given["renews"]),
                by=user,
            )
        except (InvalidInput, Conflict) as error:
            context |= {
                "error": error,
                "problems": {p.field.removesuffix("_at"): p.message for p in error.problems},
            }
        else:
            messages.success(request, "Request sent to the operators; you will be notified of the decision.")
            return redirect("grant", grant.pk)
    lines = list(_lines(project))
    context |= {
        "project": project,
        "given": given,
        "lines": [(line, UNITS[line.resource][1]) for line in lines],
        "budgets": []
        if given["gpu_model"]
        else [(f"budget-{one.pk}", one, budget_state(one), UNITS[one.resource][1]) for one in budgets],
        "lately": quota_facts().lately(project.pk),
        "today": timezone.now(),
    }
    refused: MusterError | None = context.get("error")
    return render(request, "quotas/ask.html", context, status=refused.status if refused else 200)


def _may_ask_for(user: User) -> list[Project]:
    """The projects a person may ask more for: those they lead, all for admins; the first of very many."""
    leads = {pk for pk, role in permissions.roles_of(user).items() if role == ProjectRole.LEAD}
    projects = visible_projects(user).filter(active=True).order_by("name", "id")
    if not user.is_site_admin:
        projects = projects.filter(pk__in=leads)
    return list(projects[:SHOWN])


@require_safe
@page
def show(request: HttpRequest, grant_id: int) -> HttpResponse:
    return _page(request, grant_by_id(reader(request), grant_id))


@require_POST
@page
def decide(request: HttpRequest, grant_id: int, verb: str) -> HttpResponse:
    user = reader(request)
    grant = grant_by_id(user, grant_id)
    seen = request.POST.get("generation", "")
    common: dict[str, Any] = {"grant": grant, "by": user, "reason": request.POST.get("reason", "")}
    stale: dict[str, Any] = {
        "expected_generation": int(seen) if seen.isdecimal() and len(seen) < 10 else None
    }
    try:
        if verb == "approve":
            granted = _amount(grant.resource, request.POST.get("granted", ""), "granted")
            services.approve_grant(
                **common, **stale, granted=granted, ends_at=_day(request.POST.get("ends", ""), "ends")
            )
        elif verb == "second":
            services.second_grant(**common, **stale)
        elif verb == "decline":
            services.decline_grant(**common, **stale)
        elif verb == "withdraw":
            services.withdraw_grant(**common, **stale)
        else:
            raise NotFound(f"There is no verb {verb[:20]!r}.")
    except MusterError as error:
        if isinstance(error, NotFound):
            raise
        if error.refused is not None:
            raise
        return _page(request, grant_by_id(user, grant_id), error=error)
    return redirect("grant", grant_id)


def _page(request: HttpRequest, grant: Grant, error: MusterError | None = None) -> HttpResponse:
    user = reader(request)
    may_decide = permissions.may(user, "edit_quota", grant.project)
    undecided = grant.state in (GrantState.ASKED, GrantState.SECONDING)
    unit, noun = UNITS[grant.resource]
    impact = services.impact_of_grant(grant, grant.granted) if may_decide and undecided else None
    context = {
        "grant": grant,
        "error": error,
        "noun": noun,
        "asked_units": f"{(grant.granted or grant.amount) / unit:g}",
        "typed": request.POST if error else {},
        "may_decide": may_decide and undecided,
        "own": grant.asked_by_id == user.pk,
        "approved_before": grant.state == GrantState.SECONDING and grant.decided_by_id == user.pk,
        "may_withdraw": grant.is_open and permissions.may(user, "ask_quota", grant.project),
        "impact": impact if grant.budget_id is None else None,
        "budget_impact": impact if grant.budget_id is not None else None,
    }
    template = "quotas/grant_body.html" if "partial" in request.GET else "quotas/grant.html"
    return render(request, template, context, status=error.status if error else 200)


def _lines(project: Project) -> Any:
    """Bounds that may be raised; the plain ones first."""
    rows = Quota.objects.filter(project=project, user__isnull=True, job_type="", hard__isnull=False)
    return rows.exclude(resource=QuotaResource.PENDING_JOBS).order_by("gpu_model", "id")


def _renewed(user: User, text: str) -> Grant | None:
    if not text:
        return None
    return grant_by_id(user, int(text) if text.isdecimal() and len(text) < 19 else 0)


def _amount(resource: str, text: str, field: str) -> int:
    """What was typed, in units of the line; raises InvalidInput."""
    unit = UNITS.get(resource, (1, ""))[0]
    try:
        amount = round(float(text) * unit)
    except (ValueError, OverflowError):
        amount = 0
    if not 0 < amount <= MAX_AMOUNT:
        message = "Enter a number above 0."
        raise InvalidInput(message, problems=[FieldProblem(field, message)])
    return amount


def _day(text: str, field: str) -> datetime | None:
    """Midnight UTC of a day."""
    if not text.strip():
        return None
    try:
        return datetime.strptime(text.strip(), "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        message = "Enter a date such as 2026-12-31."
        raise InvalidInput(message, problems=[FieldProblem(field, message)]) from None
