"""Changes of single quota lines of every subject, and the recount that corrects their counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pgtrigger
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts import permissions
from accounts.models import Organization, Project, User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput, NotAllowed, NotFound
from infra.plain_text import check_lines
from quotas import outbox
from quotas.core.limits import NONE, bound_of
from quotas.core.resources import MAX_AMOUNT
from quotas.models import DriftKind, Quota, QuotaResource
from quotas.providers.registry import provider, require_usable
from quotas.services.exchange import KEEPERS, mark_pending
from quotas.services.reconcile import Mismatch, record_drift
from quotas.usage_source import usage_source

AMOUNTS: Final = ("nominal", "borrowing_limit", "lending_limit", "soft", "hard")
#: What may be changed of a line.
EDITABLE: Final = (*AMOUNTS, "enforce", "converge_after_seconds", "provider")
#: Longer than any cluster is kept waiting for a cut to be kept.
MOST_SECONDS: Final = 366 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose line it is: an organization, a project, somebody in a project, or somebody everywhere."""

    organization: Organization | None = None
    project: Project | None = None
    user: User | None = None

    @property
    def is_one(self) -> bool:
        if self.organization is not None:
            return self.project is None and self.user is None
        return self.project is not None or self.user is not None

    def __str__(self) -> str:
        return Quota(organization=self.organization, project=self.project, user=self.user).owner


def set_line(
    *,
    subject: Subject,
    resource: str,
    changes: Mapping[str, Any],
    by: User | None,
    reason: str,
    gpu_model: str = "",
    job_type: str = "",
    expected_generation: int | None = None,
) -> Quota:
    """Change one line, or make it.

    With `expected_generation` raises Conflict with the present values and those that were sent when somebody
    has changed it since (412), or made it already (0 = it is to be new; 409). Leads may split what their
    project has among its people; all else is for operators. A bound may be cut below what is in use:
    nothing is stopped before `converge_after_seconds`, and nothing new starts until usage has gone down.
    `by` is None when the clock begins or ends what somebody approved before.
    """
    if by is not None:
        _require(by, subject, changes)
    check_lines(reason=reason, gpu_model=gpu_model, job_type=job_type)
    reason, gpu_model, job_type = reason.strip(), gpu_model.strip(), job_type.strip()
    _check(subject, resource, gpu_model, job_type, changes, reason)
    with transaction.atomic():
        # 1. One edit of a subject's lines at a time, its first one included, when there is no row to lock.
        _lock(subject)
        key = {
            "organization": subject.organization, "project": subject.project, "user": subject.user,
            "resource": resource, "gpu_model": gpu_model, "job_type": job_type,
        }  # fmt: skip
        row = Quota.objects.select_for_update(of=("self",)).filter(**_exactly(key)).first()
        made = row is None
        row = row or Quota(**key, generation=0, provider=_provider_of(subject))
        # 2. Compare with what the person saw.
        if expected_generation is not None and expected_generation != row.generation:
            raise _there_already(row, changes) if expected_generation == 0 else _stale(row, changes)
        # 3. Write what differs.
        old = {name: getattr(row, name) for name in EDITABLE}
        new = old | dict(changes)
        check_together(new)
        was, becomes = audit.changed(old, new)
        if not becomes and not made:
            return row
        if made:
            row.save()
            _count(row)
        row.over_since = over_since(row, becomes)
        for name, value in becomes.items():
            setattr(row, name, value)
        row.generation += 1
        row.save()
        _keep_outside(row)
        if made:  # those who were starting jobs meanwhile have not counted on it
            outbox.recount_lines_soon([row.pk])
        outbox.wake_planners()
        # 4. The trail last, for its chain stays locked until we are through.
        audit.record(
            by=by,
            action="quota.set",
            thing=row if subject.project is None else subject.project,
            before={_what(row): was},
            after={_what(row): becomes},
            reason=reason,
            project=subject.project,
        )
    return row


def remove_line(*, line: Quota, by: User, reason: str, expected_generation: int | None = None) -> None:
    """Take a line away: what it bounded is bounded by the lines around it only."""
    _require(by, Subject(line.organization, line.project, line.user), {})
    if not reason.strip():
        raise InvalidInput(
            "Give a reason; it goes into the audit trail.",
            problems=[FieldProblem("reason", "Give a reason; it goes into the audit trail.", "required")],
        )
    with transaction.atomic():
        row = Quota.objects.select_for_update(of=("self",)).filter(pk=line.pk).first()
        if row is None:
            raise NotFound("This limit no longer exists.", way_out="Read the list of quotas again.")
        if expected_generation is not None and expected_generation != row.generation:
            raise _stale(row, {})
        if row.nominal is not None and not permissions.may(by, *_whole(row)):
            _only_operators("nominal")
        before = {name: getattr(row, name) for name in EDITABLE}
        outbox.wake_planners()
        audit.record(
            by=by,
            action="quota.remove",
            thing=row if row.project is None else row.project,
            before={_what(row): before},
            after={},
            reason=reason.strip(),
            project=row.project,
        )
        _keep_outside(row)
        row.delete()


# ---------------------------------------------------------------- counters


def _count(row: Quota) -> None:
    """What runs already counts on a new line from its first moment; who starts meanwhile, from the recount on."""
    if row.resource != QuotaResource.PENDING_JOBS:
        row.used = usage_source().line_usage([row.pk]).get(row.pk, 0)
        Quota.objects.filter(pk=row.pk).update(used=row.used)  # while nothing bounds it yet


def drifting_lines() -> list[int]:
    """Lines whose counter seems wrong, other than plain ones of projects; read without locks."""
    rows = list(_counted_here())
    if not rows:
        return []
    held = usage_source().line_usage([pk for pk, _ in rows])
    return sorted(pk for pk, used in rows if held.get(pk, 0) != used)


def sync_lines(line_ids: Iterable[int], *, reason: str = "counters differed from the allocations") -> int:
    """Recount these lines and repair those that were wrong; answers how many were.

    The lines are locked before anything is counted: every start and end of a job moves them in the same
    transaction as its allocations, so nobody is half-way.
    """
    with transaction.atomic():
        rows = list(
            Quota.objects.select_for_update(of=("self",)).filter(pk__in=list(line_ids)).order_by("id")
        )
        held = usage_source().line_usage([row.pk for row in rows])
        now, drifts = timezone.now(), []
        with pgtrigger.ignore("quotas.Quota:quota_never_passed"):
            for row in rows:
                found = held.get(row.pk, 0)
                if row.used != found:
                    drifts.append(Mismatch(DriftKind.QUOTA, str(row), row.used, found, row.project_id))
                was, row.used = row.used, found
                Quota.objects.filter(pk=row.pk).update(
                    used=found, synced_at=now, over_since=over_since(row, {}, at=now, was=was)
                )
        if drifts:
            outbox.wake_planners()
            record_drift(drifts, reason=reason, repaired=True)
    return len(drifts)


def _counted_here() -> Any:
    plain = Q(project__isnull=False, user__isnull=True, gpu_model="", job_type="")
    return (
        Quota.objects.exclude(plain)
        .exclude(resource=QuotaResource.PENDING_JOBS)
        .values_list("pk", "used")
        .order_by("pk")
    )


# ---------------------------------------------------------------- checks


def _lock(subject: Subject) -> None:
    one: Any = subject.project or subject.organization or subject.user
    type(one).objects.select_for_update(no_key=True, of=("self",)).get(pk=one.pk)


def _exactly(key: Mapping[str, Any]) -> dict[str, Any]:
    return {name if value is not None else f"{name}__isnull": value if value is not None else True
            for name, value in key.items()}  # fmt: skip


def over_since(
    row: Quota, becomes: Mapping[str, Any], *, at: datetime | None = None, was: int | None = None
) -> datetime | None:
    """Since when more is in use than the line allows, once it is changed so; None while it is kept.

    `was` is what was thought to be in use until now.
    """
    if not _is_over(row, becomes):
        return None
    known = row.over_since if (row.used if was is None else was) > bound_of_line(row) else None
    return known or at or timezone.now()


def _is_over(row: Quota, becomes: Mapping[str, Any]) -> bool:
    return row.used > bound_of_line(row, becomes)


def bound_of_line(row: Quota, becomes: Mapping[str, Any] | None = None) -> int:
    """The most that may be in use on it by itself; UNBOUNDED: any. `becomes` is what it is changed to."""
    becomes = becomes or {}
    said = {name: becomes.get(name, getattr(row, name)) for name in ("hard", "nominal", "borrowing_limit")}
    amounts = {name: NONE if amount is None else int(amount) for name, amount in said.items()}
    top = row.organization is not None and row.organization.parent_id is None
    enforce = bool(becomes.get("enforce", row.enforce))
    return bound_of(**amounts, enforce=enforce, has_parent=not top, is_pool=top)


def _stale(row: Quota, changes: Mapping[str, Any]) -> Conflict:
    both = {
        "line": row.pk,
        "generation": row.generation,
        "current": {name: getattr(row, name) for name in (*EDITABLE, "used")},
        "yours": dict(changes),
    }
    if not row.generation:
        return Conflict(
            "This limit does not exist, or was removed.", code="stale", status=412,
            way_out="Create it.", extra=both,
        )  # fmt: skip
    return Conflict(
        "This limit was changed since you read it.",
        code="stale",
        status=412,
        way_out="Read the current values, then send your change again with the new generation.",
        extra=both,
    )


def _there_already(row: Quota, changes: Mapping[str, Any]) -> Conflict:
    return Conflict(
        f"There is already a limit of {_what(row)} of {row.owner}.",
        code="there-already",
        status=409,
        way_out="Change the existing limit.",
        extra={
            "line": row.pk,
            "generation": row.generation,
            "current": {name: getattr(row, name) for name in (*EDITABLE, "used")},
            "yours": dict(changes),
        },
    )


#: What a lead may say of somebody in the project; what is kept back for one is taken from all around it.
OF_LEADS: Final = ("soft", "hard", "enforce", "converge_after_seconds")


def _require(by: User, subject: Subject, changes: Mapping[str, Any]) -> None:
    """Raise NotAllowed or NotFound unless the person may change these things of this subject's lines."""
    if subject.project is None:
        permissions.require(by, "operate")
    elif subject.user is None or permissions.may(by, "edit_quota", subject.project):
        permissions.require(by, "edit_quota", subject.project)
    else:
        permissions.require(by, "split_quota", subject.project)
        for name in changes:
            if name in EDITABLE and name not in OF_LEADS:
                _only_operators(name)


def _whole(row: Quota) -> tuple[str, Project | None]:
    """The verb of those who may change all of a line, and of what."""
    return ("operate", None) if row.project is None else ("edit_quota", row.project)


def _only_operators(name: str) -> None:
    raise NotAllowed(
        f"Only an operator may set the {name.replace('_', ' ')} of a limit: it reduces what others can use.",
        way_out=f"Set {', '.join(OF_LEADS)}, or ask an operator of this site.",
    )


def _provider_of(subject: Subject) -> str:
    """Who keeps a new line: the one that keeps the other lines of the project."""
    own = Quota.objects.plain().filter(project=subject.project).values_list("provider", flat=True)
    return (own.first() if subject.project is not None else None) or provider().name


def _keep_outside(row: Quota) -> None:
    """Tell the provider that keeps the project's own limits, where it is not Muster."""
    if row.project_id is not None and row.is_plain and row.provider in KEEPERS:
        mark_pending(row.project_id)
        outbox.exchange_soon(row.project_id)


def _what(row: Quota) -> str:
    return " ".join(part for part in (row.gpu_model, row.resource, row.job_type) if part)


def _check(
    subject: Subject,
    resource: str,
    gpu_model: str,
    job_type: str,
    changes: Mapping[str, Any],
    reason: str,
) -> None:
    problems = []
    if not subject.is_one:
        text = "Name an organization, or a project, or a user, or a user in a project."
        problems.append(FieldProblem("subject", text, "required"))
    if not reason:
        problems.append(FieldProblem("reason", "Give a reason; it goes into the audit trail.", "required"))
    if resource not in QuotaResource.values:
        known = ", ".join(QuotaResource.values)
        problems.append(FieldProblem("resource", f"Unknown resource {resource[:40]!r}; known are {known}."))
    elif gpu_model and resource != QuotaResource.GPU_MILLIS:
        problems.append(FieldProblem("gpu_model", "Only a limit of GPUs may be for one model."))
    elif resource == QuotaResource.PENDING_JOBS and any(
        changes.get(name) is not None for name in ("nominal", "borrowing_limit", "lending_limit")
    ):
        text = "Waiting jobs are neither lent nor borrowed; set soft or hard."
        problems.append(FieldProblem("nominal", text))
    if len(gpu_model) > 80 or len(job_type) > 32:
        problems.append(FieldProblem("gpu_model", "A model has at most 80 characters, a job type 32."))
    for name, value in changes.items():
        if (problem := value_problem(name, value)) is not None:
            problems.append(FieldProblem(name, problem))
    if problems:
        raise InvalidInput(problems[0].message, problems=problems)


def value_problem(name: str, value: Any) -> str | None:
    if name in AMOUNTS or name == "converge_after_seconds":
        most = MAX_AMOUNT if name in AMOUNTS else MOST_SECONDS
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is None or (whole and 0 <= value <= most):
            return None
        return f"{name} is a whole number from 0 to {most}, or null for none."
    if name == "enforce":
        return None if isinstance(value, bool) else "enforce is true or false."
    if name == "provider":
        require_usable(str(value))  # raises with words of its own
        return None
    return f"A limit has no {name[:40]!r}; it has {', '.join(EDITABLE)}."


def check_together(line: Mapping[str, Any], *, of: str = "") -> None:
    """Raise InvalidInput where bounds of one line contradict each other; `of` is the resource to name."""
    where, problem = (f"{of}/" if of else ""), None
    if line["soft"] is not None and line["hard"] is not None and line["soft"] > line["hard"]:
        named = f" of {of}" if of else ""
        text = f"The soft limit{named} ({line['soft']}) would be above the hard one ({line['hard']})."
        problem = FieldProblem(f"{where}soft", text, "too-large")
    for name in ("borrowing_limit", "lending_limit"):
        if line[name] is not None and line["nominal"] is None:
            text = f"A {name.replace('_', ' ')} needs a nominal: it says what is above or below it."
            problem = FieldProblem(f"{where}{name}", text, "required")
    if problem is not None:
        raise InvalidInput(problem.message, way_out="Change both together.", problems=[problem])
