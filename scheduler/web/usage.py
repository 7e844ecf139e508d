"""What was used, by whom, of what, and how well; how long budgets last; and the lines behind each figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.conf import settings
from django.core.paginator import Paginator
from django.db.models import Min, Q, QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_date
from django.utils.functional import cached_property
from django.views.decorators.http import require_POST, require_safe

from accounts import permissions
from accounts.models import Project, User
from accounts.selectors import project_by_ref, visible_projects, visible_users
from accounts.web.pages import page, reader
from infra.errors import InvalidInput
from infra.exports import EXPORTS, file_response
from quotas.api.exports import ledger_file
from quotas.core.gpu_models import model_matches
from quotas.core.ledger import Kind
from quotas.models import BudgetPeriod, BudgetResource, DriftFinding, LedgerEntry, Quota
from quotas.selectors.budgets import projects_below
from quotas.selectors.usage import BudgetState, Usage, budget_states, total, usage, visible_entries, within
from quotas.services.alerts import read_notice
from quotas.templatetags.charts import PARTS, Bars, Burn
from scheduler.efficiency import COLUMNS, SORTS, Asked, exported_job_uses, job_uses
from scheduler.models import Device
from scheduler.selectors import measured_use
from scheduler.state.load.running_usage import Running, running_use

SPANS: Final = (7, 30, 90, 365)
DAYS: Final = 30
LINES: Final = 100


class Question:
    """What the page was asked: whose usage, of which days."""

    def __init__(self, request: HttpRequest, user: User) -> None:
        asked = request.GET
        self.user = user
        self.days = int(asked["days"]) if asked.get("days") in {str(n) for n in SPANS} else DAYS
        tomorrow = timezone.now().astimezone(UTC).date() + timedelta(days=1)
        self.first = _day(asked.get("since", "")) or tomorrow - timedelta(days=self.days)
        self.until = _day(asked.get("until", "")) or tomorrow
        self.project: Project | None = (
            project_by_ref(user, asked["project"]) if asked.get("project") else None
        )
        self.organization = asked.get("organization", "")[:80]
        self.person = asked.get("user", "")
        self.model = asked.get("gpu_model")
        #: As limits name models: whatever device matches.
        self.of_model = asked.get("of_model", "")[:64]
        self.kind = asked.get("kind", "") if asked.get("kind") in list(Kind) else ""
        job = asked.get("job", "")
        self.job = int(job) if job.isascii() and job.isdecimal() and len(job) < 19 else None

    def entries(self) -> QuerySet[LedgerEntry]:
        entries = visible_entries(self.user)
        if self.of_model:
            models = Device.objects.order_by().values_list("model", flat=True).distinct()
            entries = entries.filter(gpu_model__in=[m for m in models if model_matches(self.of_model, m)])
        return within(
            entries,
            begin=_midnight(self.first) if self.job is None else None,
            end=_midnight(self.until) if self.job is None else None,
            project_ids=self._projects(),
            user_id=self.person_id,
            job_number=self.job,
            kinds=(self.kind,) if self.kind else (),
            gpu_model=self.model,
        )

    def running(self) -> list[Running]:
        """What jobs that run have used and the ledger does not say yet; of today, if today was asked for."""
        now = timezone.now()
        if not self.first <= now.astimezone(UTC).date() < self.until:
            return []
        projects = self._projects()
        if not permissions.sees_everything(self.user):
            visible = set(visible_projects(self.user).order_by().values_list("pk", flat=True))
            projects = sorted(visible if projects is None else visible.intersection(projects))
        return running_use(at=now, project_ids=projects, user_id=self.person_id)

    @cached_property
    def person_id(self) -> int | None:
        """Of the person who was asked about; of nobody where there is no such one to see."""
        if not self.person:
            return None
        found = visible_users(self.user).filter(username=self.person).values_list("pk", flat=True).first()
        return -1 if found is None else int(found)

    def _projects(self) -> list[int] | None:
        """The one that was asked about, or all below an organization; None: every one there is to see."""
        if self.project is not None:
            return [self.project.pk]
        return projects_below(self.organization) if self.organization else None

    def link(self, name: str, **changes: Any) -> str:
        """An address with the same question, and these changes."""
        words: dict[str, Any] = {
            "project": self.project.slug if self.project else "",
            "organization": self.organization,
            "user": self.person,
            "of_model": self.of_model,
            "since": self.first.isoformat(),
            "until": self.until.isoformat(),
            "kind": self.kind,
        }
        if self.model is not None:
            words["gpu_model"] = self.model
        words |= changes
        return f"{reverse(name)}?{urlencode({k: v for k, v in words.items() if v or k == 'gpu_model'})}"


@require_safe
@page
def index(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    asked = Question(request, user)
    entries = asked.entries()
    projects = list(visible_projects(user).order_by("name", "id")[:200])
    sums = total(entries)
    states = budget_states(_whose(user, asked, projects), days=True)
    running = asked.running()
    owners = {state.budget.project_id for state in states if state.budget.project_id}
    roles = permissions.roles_of(user, project_ids=owners) if owners else {}
    context = {
        "asked": asked,
        "spans": SPANS,
        "projects": projects,
        "sums": sums,
        "running": _together(running),
        "bars": _bars(entries, asked, running),
        "tables": _tables(entries, asked, running),
        "budgets": [_budget(state, asked, user, roles) for state in states],
        "measured": measured_use(user, asked.first, asked.until, project=asked.project, person=asked.person),
        "currency": settings.LEDGER_CURRENCY,
        "ledger_url": asked.link("ledger"),
        "charges_url": asked.link("ledger", kind="charge"),
        "may_see_drift": permissions.may(user, "operate") or permissions.may(user, "audit"),
    }
    return render(request, "scheduler/usage.html", context)


@require_safe
@page
def lines(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """The entries of the ledger behind a figure; or all of them as a file."""
    user = reader(request)
    asked = Question(request, user)
    entries = asked.entries()
    export = request.GET.get("export", "")
    if export in EXPORTS:
        return ledger_file(entries.order_by("id"), export)
    if export:
        raise InvalidInput("Exports are csv or json.")
    shown = Paginator(entries.order_by("-id"), LINES).get_page(request.GET.get("page"))
    job = {} if asked.job is None else {"job": asked.job}
    context = {
        "asked": asked,
        "page": shown,
        "sums": total(entries),
        "kinds": [kind.value for kind in Kind],
        "currency": settings.LEDGER_CURRENCY,
        "here": asked.link("ledger", **job),
        "usage_url": asked.link("usage", kind=""),
    }
    return render(request, "scheduler/ledger.html", context)


@require_safe
@page
def efficiency(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Job by job, what was asked and what was used: those that wasted most first; or all of them as a file."""
    user = reader(request)
    question = Question(request, user)
    sort = request.GET.get("sort", "gpu")
    asked = Asked(
        user, question.first, question.until, question.project, question.person, question.job,
        sort if sort in SORTS else "gpu",
    )  # fmt: skip
    export = request.GET.get("export", "")
    if export in EXPORTS:
        return file_response("jobs", COLUMNS, exported_job_uses(asked), export)
    if export:
        raise InvalidInput("Exports are csv or json.")
    rows = job_uses(asked, limit=LINES + 1)
    context = {
        "asked": question,
        "sort": asked.sort,
        "spans": SPANS,
        "projects": list(visible_projects(user).order_by("name", "id")[:200]),
        "rows": [
            {"use": use, "lines": question.link("ledger", job=use.number, project="")} for use in rows[:LINES]
        ],
        "more": len(rows) > LINES,
        "here": question.link("efficiency", sort=asked.sort, days=question.days),
        "usage_url": question.link("usage", kind=""),
    }
    return render(request, "scheduler/efficiency.html", context)


@require_safe
@page
def drift(request: HttpRequest) -> HttpResponse:
    """Counters that the reconciler found wrong, and what it did about them."""
    user = reader(request)
    if not (permissions.may(user, "operate") or permissions.may(user, "audit")):
        permissions.require(user, "operate")
    found = Paginator(DriftFinding.objects.select_related("project"), LINES).get_page(request.GET.get("page"))
    checked = BudgetPeriod.objects.aggregate(at=Min("checked_at", filter=Q(ends_at__gt=timezone.now())))
    context = {
        "page": found,
        "checked_at": checked["at"],
        "synced_at": Quota.objects.aggregate(at=Min("synced_at"))["at"],
        "may_check": permissions.may(user, "operate"),
    }
    return render(request, "scheduler/drift.html", context)


@require_POST
@page
def put_away(request: HttpRequest, notice_id: int) -> HttpResponse:
    read_notice(notice_id=notice_id, by=reader(request))
    return redirect("home")


def _whose(user: User, asked: Question, projects: list[Project]) -> list[Project] | None:
    if asked.project is not None:
        return [asked.project]
    return None if permissions.sees_everything(user) else projects


def _together(running: Sequence[Running]) -> dict[str, int]:
    """The sums of some of what runs."""
    figures = ("gpu_milli_seconds", "cpu_milli_seconds", "jobs")
    return {figure: sum(getattr(one, figure) for one in running) for figure in figures}


#: The last part of today's bar.
STILL_RUNNING: Final = "still running"


def _bars(entries: QuerySet[LedgerEntry], asked: Question, running: Sequence[Running]) -> Bars | None:
    """GPU-hours of each day by model; of CPUs where no GPU was used. What still runs stands on today's."""
    rows = usage(entries, ("day", "gpu_model"))
    by_gpu = any(row.gpu_milli_seconds for row in rows) or any(row.gpu_milli_seconds for row in running)
    figure = "gpu_milli_seconds" if by_gpu else "cpu_milli_seconds"
    still = _together(running)[figure]
    span = (asked.until - asked.first).days
    step = max(1, -(-span // 60))  # many days share a bar
    labels = [(asked.first + timedelta(days=n)).isoformat() for n in range(0, span, step)]
    parts = _parts(_hours_by_model(rows, figure, asked.first, step, len(labels)))
    if not parts and not still:
        return None
    if still:
        today = (timezone.now().astimezone(UTC).date() - asked.first).days // step
        parts.append((STILL_RUNNING, [still / 3_600_000 if n == today else 0.0 for n in range(len(labels))]))
    unit = "GPU-hours" if by_gpu else "core-hours"
    each = "day" if step == 1 else f"{step} days"
    return Bars(labels, parts, unit, f"{unit} of each {each}, by GPU model", hollow=STILL_RUNNING)


def _hours_by_model(
    rows: Sequence[Usage], figure: str, first: date, step: int, bars: int
) -> dict[str, list[float]]:
    """Hours in each bar of `step` days from `first` on, by GPU model; the model with the most hours first."""
    hours: dict[str, list[float]] = {}
    for row in rows:
        day, model = row.group
        amount, bar = getattr(row, figure) / 3_600_000, (day - first).days // step
        if amount and 0 <= bar < bars:
            hours.setdefault(model, [0.0] * bars)[bar] += amount
    return dict(sorted(hours.items(), key=lambda item: -sum(item[1])))


def _parts(hours: Mapping[str, list[float]]) -> list[tuple[str, list[float]]]:
    """The parts of each bar: a colour for each of the first models, one more for all others."""
    models = list(hours)
    parts = [(model or "no GPU", hours[model]) for model in models[: PARTS - 1]]
    if others := models[PARTS - 1 :]:
        parts.append(("others", [sum(bar) for bar in zip(*(hours[model] for model in others), strict=True)]))
    return parts


def _tables(
    entries: QuerySet[LedgerEntry], asked: Question, running: Sequence[Running]
) -> list[dict[str, Any]]:
    """One table a grouping; each row leads to its lines."""
    which = {"project": "project_id", "user": "user_id", "gpu_model": "gpu_model"}
    tables = []
    for group, word, title in (
        ("project", "Project", "By project"),
        ("user", "Person", "By person"),
        ("gpu_model", "GPU model", "By GPU model"),
    ):
        if group == "project" and asked.project is not None:
            continue
        rows = [
            {
                "name": name,
                "url": asked.link("ledger", **change),
                "usage": one,
                "running": _together([r for r in running if getattr(r, which[group]) == one.group[0]]),
            }
            for one in usage(entries, group)
            for name, change in [_named(group, one)]
        ]
        if rows:
            tables.append(
                {"id": group, "word": word, "title": title, "rows": rows[:50], "more": len(rows) - 50}
            )
    return tables


def _named(group: str, one: Usage) -> tuple[str, dict[str, str]]:
    if group == "project":
        return one.group[2], {"project": one.group[1]}
    if group == "user":
        return one.group[1] or "corrections", {"user": one.group[1] or ""}
    return one.group[0] or "no GPU", {"gpu_model": one.group[0]}


def _budget(state: BudgetState, asked: Question, user: User, roles: Mapping[int, str]) -> dict[str, Any]:
    owner = state.budget.project
    period, amount = state.period, max(state.period.amount, 1)
    begin, end = period.starts_at.date(), period.ends_at.date()
    left = [1 - charged / amount for _, charged in state.days]
    out = state.runs_out_at
    burn = Burn(
        title=f"Remaining budget of {state.budget.name}, by day",
        days=(end - begin).days,
        left=left,
        held=period.held / amount,
        out_day=None if out is None else (out - period.starts_at).total_seconds() / 86_400,
        first=f"{begin:%d %b}",
        last=f"{end - timedelta(days=1):%d %b}",
    )
    words = {BudgetResource.GPU: "GPU-hours", BudgetResource.CPU: "core-hours"}
    project = {"project": state.budget.project.slug} if state.budget.project else {"project": ""}
    return {
        "state": state,
        "burn": burn,
        "unit": words.get(BudgetResource(state.budget.resource), settings.LEDGER_CURRENCY),
        "is_money": state.budget.resource == BudgetResource.MONEY,
        "scale": max(period.amount, period.held + period.charged, 1),
        "rows": [(day, charged, period.amount - charged) for day, charged in state.days],
        "url": asked.link(
            "ledger", since=begin.isoformat(), until=end.isoformat(), user="", kind="", **project
        ),
        "may_ask": owner is not None and permissions.may(user, "ask_quota", owner, roles=roles),
        "tone": "failed" if state.spent else "pending" if state.runs_out_at else "running",
    }


def _day(text: str) -> date | None:
    try:
        return parse_date(text)
    except ValueError:
        return None


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
