"""The life of a grant: a lead asks, an operator decides, the clock begins and ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts import permissions
from accounts.models import Project, ProjectRole, SiteRole, User
from accounts.permissions import current_memberships
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput, NotAllowed
from infra.notifications import QUOTAS_TOPIC, announce, project_topic
from infra.plain_text import check_lines
from infra.times_in_text import written
from quotas.core.resources import MAX_AMOUNT
from quotas.models import AlertKind, Budget, Grant, GrantState, Quota, QuotaResource
from quotas.services import grant_effects
from quotas.services.alerts import tell
from quotas.services.budget_impact import BudgetImpact, amount_shown
from quotas.services.impact import Impact, shown

log = structlog.get_logger(__name__)

MOST_REASON: Final = 2000
#: One open request a line at a time, and no more of a project, so that a decision is about what is so.
MOST_OPEN: Final = 20
ENDS_SOON: Final = timedelta(days=7)


@transaction.atomic
def ask_for_quota(
    *,
    project: Project,
    resource: str,
    amount: int,
    reason: str,
    by: User,
    gpu_model: str = "",
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    renews: Grant | None = None,
    budget: Budget | None = None,
) -> Grant:
    """Ask for so much more than the present bound; what is known of the project's use goes with it.

    Of a limit, or with `budget` of that budget of the project (then `resource` is what the budget counts).
    """
    permissions.require(by, "ask_quota", project)
    check_lines(gpu_model=gpu_model)
    reason, gpu_model = reason.strip(), gpu_model.strip()
    now = timezone.now()
    _check(resource, gpu_model, amount, reason, starts_at, ends_at, now, budget)
    Project.objects.select_for_update(no_key=True, of=("self",)).get(pk=project.pk)
    what = _budget_to_raise(project, budget, now) if budget else _line_to_raise(project, resource, gpu_model)
    waiting = Grant.objects.filter(project=project, state__in=[GrantState.ASKED, GrantState.SECONDING])
    same = waiting.filter(resource=resource, gpu_model=gpu_model, budget=budget).first()
    if same is not None:
        more = f"of the budget {budget.name}" if budget else grant_effects.what_words(resource, gpu_model)
        raise Conflict(
            f"{same} already requests more {more}.",
            code="asked-already",
            way_out="Wait for the decision, or withdraw the request and send a new one.",
            extra={"request": same.pk},
        )
    if waiting.count() >= MOST_OPEN:
        raise Conflict(
            f"{project.name} has {MOST_OPEN} open requests.",
            way_out="Withdraw one, or wait until some are decided.",
        )
    grant = Grant.objects.create(
        project=project,
        resource=resource,
        gpu_model=gpu_model,
        budget=budget,
        amount=amount,
        reason=reason,
        evidence=grant_effects.evidence(project, what),
        starts_at=starts_at,
        ends_at=ends_at,
        renews=renews,
        asked_by=by,
        asked_at=now,
    )
    tell(
        kind=AlertKind.GRANT,
        subject=f"grant {grant.pk} asked",
        text=f"{project.name} requests an increase by {grant_effects.amount_text(grant, amount)}.",
        people=_operators(),
        project_id=project.pk,
    )
    _announce(grant)
    audit.record(by=by, action="grant.ask", thing=grant, after=_facts(grant), reason=reason, project=project)
    return grant


@transaction.atomic
def approve_grant(
    *,
    grant: Grant,
    by: User,
    reason: str,
    granted: int | None = None,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    expected_generation: int | None = None,
) -> Grant:
    """Approve all of it, or `granted` of it, until `ends_at` (as asked when left out).

    A raise of more than QUOTA_SECOND_APPROVER_PERCENT of the present bound waits for a second person.
    """
    row, reason = _to_decide(grant, by, reason, GrantState.ASKED, expected_generation)
    granted = row.amount if granted is None else granted
    if not 0 < granted <= row.amount:
        message = f"Approve from 1 to {row.amount:,}, the requested amount."
        raise InvalidInput(message, problems=[FieldProblem("granted", message, "out-of-range")])
    now = timezone.now()
    starts_at, ends_at = starts_at or row.starts_at, ends_at or row.ends_at
    _check_times(starts_at, ends_at, now)
    second = _needs_second(row, granted)
    row = _move(
        row, GrantState.SECONDING if second else GrantState.APPROVED, by=by, action="grant.approve", reason=reason,
        granted=granted, decided_by=by, decided_at=now, decision=reason, starts_at=starts_at, ends_at=ends_at,
    )  # fmt: skip
    if second:
        _tell_of(row, "needs a second approval", people=[pk for pk in _operators() if pk != by.pk])
        return row
    return _approved(row, now)


@transaction.atomic
def second_grant(*, grant: Grant, by: User, reason: str, expected_generation: int | None = None) -> Grant:
    """The second person's yes; it may not be the one who approved first."""
    row, reason = _to_decide(grant, by, reason, GrantState.SECONDING, expected_generation)
    if row.decided_by_id == by.pk:
        raise NotAllowed(
            "You gave the first approval; another operator has to give the second.",
            way_out="Ask another operator of this site.",
        )
    now = timezone.now()
    row = _move(
        row, GrantState.APPROVED, by=by, action="grant.second", reason=reason, seconded_by=by, seconded_at=now
    )
    return _approved(row, now)


@transaction.atomic
def decline_grant(*, grant: Grant, by: User, reason: str, expected_generation: int | None = None) -> Grant:
    """Say no, and why; a second approver may do so too."""
    row, reason = _to_decide(grant, by, reason, None, expected_generation)
    row = _move(
        row, GrantState.DECLINED, by=by, action="grant.decline", reason=reason, decision=reason,
        decided_by=by, decided_at=timezone.now(), seconded_by=None,
    )  # fmt: skip
    _tell_of(row, f"was declined: {reason}")
    return row


@transaction.atomic
def withdraw_grant(
    *, grant: Grant, by: User, reason: str = "", expected_generation: int | None = None
) -> Grant:
    """Take back a request that nobody has decided, or give back a grant early."""
    permissions.require(by, "ask_quota", grant.project)
    row = _locked(grant)
    if not row.is_open:
        raise _decided_already(row)
    _check_generation(row, expected_generation)
    if row.state == GrantState.ACTIVE:
        return _end(row, by=by, reason=reason or "given back")
    return _move(row, GrantState.WITHDRAWN, by=by, action="grant.withdraw", reason=reason)


def begin_and_end(*, now: datetime | None = None) -> tuple[int, int]:
    """Begin what was approved for a time that has come, end what is over; answers how many of each."""
    now = now or timezone.now()
    begun = ended = 0
    due = Grant.objects.filter(state=GrantState.APPROVED).filter(Q(starts_at=None) | Q(starts_at__lte=now))
    for pk in due.order_by("pk").values_list("pk", flat=True):
        begun += _by_itself(pk, GrantState.APPROVED, _begin)
    over = Grant.objects.filter(state=GrantState.ACTIVE, ends_at__lte=now)
    for pk in over.order_by("pk").values_list("pk", flat=True):
        ended += _by_itself(pk, GrantState.ACTIVE, lambda row: _end(row, by=None, reason="expired"))
    soon = Grant.objects.filter(state=GrantState.ACTIVE, ends_at__gt=now, ends_at__lte=now + ENDS_SOON)
    for row in soon.select_related("project"):
        assert row.ends_at is not None  # the filter above
        with transaction.atomic():
            _tell_of(row, f"ends at {written(row.ends_at)}; request a renewal in time", occasion="ends soon")
    return begun, ended


def _by_itself(pk: int, state: GrantState, do: Callable[[Grant], object]) -> bool:
    """Whether it was done; one that fails is tried again with the next run, and holds up no other."""
    try:
        with transaction.atomic():
            row = _locked_pk(pk, state)
            if row is not None:
                do(row)
            return row is not None
    except Exception:
        log.exception("grant_not_moved", grant=pk, state=state)
        return False


def impact_of_grant(grant: Grant, granted: int | None = None) -> Impact | BudgetImpact:
    """What approving it (or so much of it) would mean now."""
    return grant_effects.impact(grant, grant.amount if granted is None else granted)


# ---------------------------------------------------------------- steps


def _approved(row: Grant, now: datetime) -> Grant:
    if row.starts_at is not None and row.starts_at > now:
        _tell_of(row, f"was approved{_part(row)}; it starts at {written(row.starts_at)}")
        return row
    row = _begin(row)
    _tell_of(row, f"was approved{_part(row)} and is in force")
    return row


def _begin(row: Grant) -> Grant:
    raised = grant_effects.raise_for(row, f"{row} begins: {row.decision}"[:MOST_REASON])
    return _move(
        row, GrantState.ACTIVE, by=None, action="grant.begin", reason="", begun_at=timezone.now(),
        raised_hard=raised.hard, raised_nominal=raised.nominal,
    )  # fmt: skip


def _end(row: Grant, *, by: User | None, reason: str) -> Grant:
    grant_effects.lower_again(row, f"{row} ends: {reason}"[:MOST_REASON])
    row = _move(row, GrantState.ENDED, by=by, action="grant.end", reason=reason, ended_at=timezone.now())
    _tell_of(row, f"has ended: {reason}")
    return row


def _move(row: Grant, to: GrantState, *, by: User | None, action: str, reason: str, **changes: Any) -> Grant:
    """One step of a locked request, with its audit row."""
    before = _facts(row)
    for name, value in (("state", to), *changes.items()):
        setattr(row, name, value)
    row.generation += 1
    row.save(update_fields=["state", "generation", *changes])
    _announce(row)
    was, becomes = audit.changed(before, _facts(row))
    audit.record(
        by=by, action=action, thing=row, before=was, after=becomes, reason=reason, project=row.project
    )
    return row


def _to_decide(
    grant: Grant, by: User, reason: str, state: GrantState | None, expected_generation: int | None
) -> tuple[Grant, str]:
    """The row, locked, when this person may decide it, gives a reason, and saw it as it is."""
    permissions.require(by, "edit_quota", grant.project)
    reason = reason.strip()[:MOST_REASON]
    if not reason:
        message = "Give a reason; the requester and the audit trail get the reason."
        raise InvalidInput(message, problems=[FieldProblem("reason", message, "required")])
    row = _locked(grant)
    undecided = {GrantState.ASKED, GrantState.SECONDING} if state is None else {state}
    if row.state not in undecided:
        raise _decided_already(row)
    _check_generation(row, expected_generation)
    if row.asked_by_id == by.pk:
        raise NotAllowed("You made this request.", way_out="Another operator has to decide.")
    return row, reason


def _check_generation(row: Grant, expected: int | None) -> None:
    if expected is not None and row.generation != expected:
        raise Conflict(
            f"{row} was changed since you read it.",
            code="stale",
            status=412,
            way_out="Read the request again, then decide.",
            extra={"generation": row.generation},
        )


def _needs_second(row: Grant, granted: int) -> bool:
    bound, percent = grant_effects.bound_of(row), settings.QUOTA_SECOND_APPROVER_PERCENT
    line = row.budget or grant_effects.line_of(row.project, row.resource, row.gpu_model)
    return bool(percent) and line is not None and granted * 100 > (bound or 0) * percent


# ---------------------------------------------------------------- reads and checks


def _line_to_raise(project: Project, resource: str, gpu_model: str) -> Quota:
    line = grant_effects.line_of(project, resource, gpu_model)
    if line is not None and line.hard is not None:
        return line
    what = grant_effects.what_words(resource, gpu_model)
    message = f"{project.name} has no limit of {what}: there is nothing to raise."
    raise InvalidInput(
        message,
        way_out="If jobs still wait, their page shows the reason.",
        problems=[FieldProblem("resource", message)],
    )


def _budget_to_raise(project: Project, budget: Budget, now: datetime) -> Budget:
    if budget.project_id == project.pk and (budget.ends_at is None or budget.ends_at > now):
        return budget
    message = (
        f"The budget {budget.name} has ended."
        if budget.project_id == project.pk
        else f"The budget {budget.name} is not one of {project.name} alone."
    )
    raise InvalidInput(
        message,
        way_out="Request more of a budget of the project that has not ended.",
        problems=[FieldProblem("budget", message)],
    )


def _locked(grant: Grant) -> Grant:
    return Grant.objects.select_for_update(of=("self",)).select_related("project", "budget").get(pk=grant.pk)


def _locked_pk(pk: int, state: GrantState) -> Grant | None:
    rows = Grant.objects.select_for_update(of=("self",), skip_locked=True).select_related("project", "budget")
    return rows.filter(pk=pk, state=state).first()


def _check(
    resource: str,
    gpu_model: str,
    amount: int,
    reason: str,
    starts_at: datetime | None,
    ends_at: datetime | None,
    now: datetime,
    budget: Budget | None,
) -> None:
    problems = []
    if budget is not None:
        if resource != budget.resource:
            problems.append(FieldProblem("resource", f"The budget {budget.name} counts {budget.resource}."))
    elif resource not in QuotaResource.counted():
        known = ", ".join(QuotaResource.counted())
        problems.append(FieldProblem("resource", f"Unknown resource {resource[:40]!r}; known are {known}."))
    if gpu_model and resource != QuotaResource.GPU_MILLIS:
        problems.append(FieldProblem("gpu_model", "Only GPUs have a model."))
    if isinstance(amount, bool) or not isinstance(amount, int) or not 0 < amount <= MAX_AMOUNT:
        problems.append(FieldProblem("amount", "Request a whole number above 0.", "out-of-range"))
    if not reason:
        problems.append(
            FieldProblem("reason", "Give a justification; the deciding operator reads it.", "required")
        )
    if len(reason) > MOST_REASON:
        problems.append(FieldProblem("reason", f"Use at most {MOST_REASON:,} characters.", "too-long"))
    if problems:
        raise InvalidInput(problems[0].message, problems=problems)
    _check_times(starts_at, ends_at, now)


def _check_times(starts_at: datetime | None, ends_at: datetime | None, now: datetime) -> None:
    if ends_at is not None and ends_at <= (starts_at or now):
        message = "The end would be before the beginning."
        raise InvalidInput(message, problems=[FieldProblem("ends_at", message)])
    if ends_at is not None and ends_at <= now:
        message = "The end is in the past."
        raise InvalidInput(message, problems=[FieldProblem("ends_at", message)])


def _decided_already(row: Grant) -> Conflict:
    return Conflict(
        f"{row} {row.get_state_display()}: this action is no longer possible.",
        code="decided-already",
        way_out="Read the request again.",
        extra={"state": row.state},
    )


def _facts(row: Grant) -> dict[str, Any]:
    names = (
        "resource", "gpu_model", "budget_id", "amount", "granted", "starts_at", "ends_at", "state", "raised_hard",
        "raised_nominal",
    )  # fmt: skip
    return {name: getattr(row, name) for name in names}


# ---------------------------------------------------------------- to whom


def _operators() -> list[int]:
    able = Q(site_role__in=[SiteRole.OPERATOR, SiteRole.ADMIN]) | Q(is_superuser=True)
    return list(User.objects.filter(able, is_active=True).values_list("pk", flat=True))


def _tell_of(row: Grant, what: str, *, people: Iterable[int] | None = None, occasion: str = "") -> None:
    """Tell who asked and the leads of the project, once a step."""
    if people is None:
        leads = current_memberships().filter(project=row.project, role=ProjectRole.LEAD)
        people = {*leads.values_list("user_id", flat=True), *([row.asked_by_id] if row.asked_by_id else [])}
    tell(
        kind=AlertKind.GRANT,
        subject=f"grant {row.pk} {occasion or row.state}",
        text=f"{row.project.name}: the request for {grant_effects.amount_text(row, row.amount)} more {what}.",
        people=people,
        project_id=row.project_id,
    )


def _announce(row: Grant) -> None:
    announce(QUOTAS_TOPIC, project_topic(row.project_id))


def _part(row: Grant) -> str:
    if row.granted == row.amount:
        return ""
    part = row.granted or 0
    return f" in part ({amount_shown(row.resource, part) if row.budget_id else shown(row.resource, part)})"
