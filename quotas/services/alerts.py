"""Alerts: what is nearly full, full, running out or about to end, announced once, in one digest per person."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from accounts.models import ProjectRole, User
from accounts.permissions import current_memberships
from infra.errors import NotFound
from infra.times_in_text import written
from quotas.core.limits import UNBOUNDED
from quotas.core.resources import show_cpus, show_mib
from quotas.models import Alert, AlertKind, BudgetResource, Notice, Quota
from quotas.selectors.budgets import projects_of
from quotas.selectors.usage import BudgetState, budget_states
from quotas.services.quota_lines import bound_of_line

#: From this share on, in percent, something is nearly full.
NEARLY: Final = 80
#: A budget that ends is announced this long before.
EXPIRES_WITHIN: Final = timedelta(days=7)

WORDS: Final = {
    "cpu_millis": "CPU cores", "memory_mib": "memory", "gpu_millis": "GPUs", "storage_mib": "storage",
    "running_jobs": "running jobs", "pending_jobs": "waiting jobs",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """Something that is so now: of which kind, about what and in which turn, and whom it concerns."""

    kind: AlertKind
    subject: str
    text: str
    project_id: int | None = None
    organization_id: int | None = None
    user_ids: tuple[int, ...] = ()
    project_ids: tuple[int, ...] = ()


def look_for_alerts(*, now: datetime | None = None) -> list[Alert]:
    """Find what is so now; answers what was not known. Run again, it finds the same and tells nobody twice.

    1. Each thing has one row a kind and turn: a day for limits, its own period for a budget.
    2. What is no longer so is marked as over; should it come back in the same turn, the row is taken up again.
    3. New rows go into the notice of each person they concern.
    """
    now = now or timezone.now()
    found: dict[tuple[str, str], Found] = {
        (one.kind, one.subject): one for one in (*_quota_alerts(now), *_budget_alerts(now))
    }
    with transaction.atomic():
        with connection.cursor() as cursor:  # one looks at a time; a second would tell the same again
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('quotas.alerts'))")
        known: dict[tuple[str, str], Alert] = {
            (alert.kind, alert.subject): alert
            for alert in Alert.objects.filter(subject__in={subject for _, subject in found})
        }
        new = Alert.objects.bulk_create(
            Alert(
                kind=one.kind, subject=one.subject, text=one.text[:300], at=now, project_id=one.project_id,
                organization_id=one.organization_id,
            )
            for key, one in found.items()
            if key not in known
        )  # fmt: skip
        open_ids = [alert.pk for key, alert in known.items() if key in found]
        Alert.objects.filter(pk__in=open_ids, ended_at__isnull=False).update(ended_at=None)
        Alert.objects.filter(ended_at__isnull=True).exclude(pk__in=[*open_ids, *(a.pk for a in new)]).update(
            ended_at=now
        )
        _tell(new, found, now)
    return new


def _quota_alerts(now: datetime) -> Iterator[Found]:
    """Lines with a bound and something in use. Above 100 % counts as full: it was cut below what is in use."""
    for line in (
        Quota.objects.filter(used__gt=0).select_related("project", "organization", "user").order_by("id")
    ):
        subject = f"quota {line.pk} {now:%Y-%m-%d}"
        whose, what = _names(line)
        concerns: dict[str, Any] = {
            "project_id": line.project_id,
            "organization_id": line.organization_id,
            "user_ids": (line.user_id,) if line.user_id else (),
        }
        used = _amount(line, line.used)
        # What it may borrow belongs to the limit; one that only reports still has its hard bound to tell of.
        most = bound_of_line(line)
        most = line.hard or 0 if most >= UNBOUNDED else most
        if most and line.used > most and line.enforce:
            text = (
                f"{whose}: over the limit of {what} ({used} of {_amount(line, most)} in use), from before the limit"
                " was lowered; no new job starts."
            )
            yield Found(AlertKind.FULL, subject, text, **concerns)
        elif most and line.used >= most:
            text = f"{whose}: the limit of {what} is fully used ({used} of {_amount(line, most)})."
            yield Found(AlertKind.FULL, subject, text, **concerns)
        elif most and 100 * line.used >= NEARLY * most:
            text = (
                f"{whose}: {100 * line.used // most} % of the limit of {what} is used"
                f" ({used} of {_amount(line, most)})."
            )
            yield Found(AlertKind.NEARLY_FULL, subject, text, **concerns)
        if line.soft is not None and line.used > line.soft:
            text = (
                f"{whose}: over the soft limit of {what} ({used} in use, limit {_amount(line, line.soft)})."
            )
            yield Found(AlertKind.SOFT_PASSED, subject, text, **concerns)


def _names(line: Quota) -> tuple[str, str]:
    """Whose limit a line is, and of what."""
    whose = str(line.project or line.organization or line.user)
    if line.project and line.user:
        whose = f"{line.user} in {line.project}"
    what = " ".join(part for part in (line.gpu_model, WORDS[line.resource]) if part)
    return whose, f"{what} of {line.job_type} jobs" if line.job_type else what


def _amount(line: Quota, count: int) -> str:
    if line.resource.endswith("_mib"):
        return show_mib(count)
    return show_cpus(count) if line.resource.endswith("_millis") else f"{count:,}"


def _budget_alerts(now: datetime) -> Iterator[Found]:
    for state in budget_states(None, now=now):
        budget, period = state.budget, state.period
        subject = f"budget {budget.pk} {period.starts_at:%Y-%m-%d}"
        whose = f"The budget {budget.name} of {state.owner}"
        concerns: dict[str, Any] = {
            "project_id": budget.project_id,
            "organization_id": budget.organization_id,
            "project_ids": tuple(projects_of(budget)) if budget.organization_id else (),
        }
        until = written(period.ends_at)
        if state.spent:
            what = {
                "refuse": "new jobs wait",
                "demote": "new jobs get the lowest priority",
                "warn": "jobs start as before",
            }
            yield Found(
                AlertKind.FULL,
                subject,
                f"{whose} is used up: {what[budget.on_spent]} until {until}.",
                **concerns,
            )
        else:
            if state.percent >= NEARLY:
                text = (
                    f"{whose} is {state.percent:.0f} % used; {_budget_amount(state)} are left until {until}."
                )
                yield Found(AlertKind.NEARLY_FULL, subject, text, **concerns)
            if state.runs_out_at is not None:
                text = (
                    f"{whose} runs out about {written(state.runs_out_at)} at the present rate;"
                    f" the period ends at {until}."
                )
                yield Found(AlertKind.RUNS_OUT, subject, text, **concerns)
        if budget.ends_at is not None and now < budget.ends_at <= now + EXPIRES_WITHIN:
            text = f"{whose} ends at {written(budget.ends_at)}; {_budget_amount(state)} are left."
            yield Found(
                AlertKind.EXPIRES, f"budget {budget.pk} ends {budget.ends_at:%Y-%m-%d}", text, **concerns
            )


def _budget_amount(state: BudgetState) -> str:
    if state.budget.resource == BudgetResource.MONEY:
        return f"{state.left / 1_000_000:,.2f} {settings.LEDGER_CURRENCY}"
    noun = "GPU-hours" if state.budget.resource == BudgetResource.GPU else "core-hours"
    return f"{state.left / 3_600_000:,.1f} {noun}"


# ------------------------------------------------------------------ to whom


def tell(*, kind: AlertKind, subject: str, text: str, people: Iterable[int], project_id: int | None) -> None:
    """Tell these people (ids) of something that happened, once a subject, in the digest of their turn.

    Part of the caller's transaction: a rollback undoes the notice too.
    """
    now = timezone.now()
    alert, made = Alert.objects.get_or_create(
        kind=kind,
        subject=subject,
        defaults={"text": text[:300], "project_id": project_id, "at": now, "ended_at": now},
    )
    if made:
        for user_id in sorted(set(people)):
            _notice_of(user_id, now).alerts.add(alert)


def _tell(alerts: Iterable[Alert], found: dict[tuple[str, str], Found], now: datetime) -> None:
    """Leads get the alerts of their projects and the organizations above, people those of their own limits."""
    wanted: defaultdict[int, list[Alert]] = defaultdict(list)
    leads = _leads()
    for alert in alerts:
        one = found[(alert.kind, alert.subject)]
        people = set(one.user_ids)
        if not people:
            projects = (one.project_id,) if one.project_id else one.project_ids or _below(one.organization_id)
            people = {user for project in projects for user in leads.get(project, ())}
        for user in sorted(people):
            wanted[user].append(alert)
    for user_id, own in sorted(wanted.items()):
        _notice_of(user_id, now).alerts.add(*own)


def _leads() -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    rows = current_memberships().filter(role=ProjectRole.LEAD, user__is_active=True)
    for project_id, user_id in rows.values_list("project_id", "user_id"):
        found[project_id].append(user_id)
    return found


def _below(organization_id: int | None) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH RECURSIVE below(id) AS (
                SELECT %s::bigint
                UNION SELECT child.id FROM accounts_organization child JOIN below ON child.parent_id = below.id
            )
            SELECT project.id FROM accounts_project project JOIN below ON project.organization_id = below.id
            """,
            [organization_id],
        )
        return [row[0] for row in cursor.fetchall()]


def _notice_of(user_id: int, now: datetime) -> Notice:
    """The person's notice of this turn; mails are for the notifications app, which reads what is added to it."""
    turn = settings.MUSTER_ALERT_DIGEST_SECONDS
    begin = int(now.timestamp()) // turn * turn
    starts_at = (now + timedelta(seconds=begin - now.timestamp())).replace(microsecond=0)
    notice, _ = Notice.objects.get_or_create(
        user_id=user_id, period_starts_at=starts_at, defaults={"created_at": now}
    )
    if notice.read_at is not None:
        Notice.objects.filter(pk=notice.pk).update(read_at=None)
    return notice


def unread_notices(user: User) -> list[Notice]:
    """What the person has not put away, newest first, with its alerts."""
    return list(Notice.objects.filter(user=user, read_at__isnull=True).prefetch_related("alerts")[:20])


def read_notice(*, notice_id: int, by: User) -> Notice:
    notice = Notice.objects.filter(pk=notice_id, user=by).first()
    if notice is None:
        raise NotFound("You have no such notice.", way_out="The home page shows your notices.")
    Notice.objects.filter(pk=notice.pk, read_at__isnull=True).update(read_at=timezone.now())
    notice.refresh_from_db()
    return notice
