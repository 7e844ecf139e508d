"""One exchange with a provider: read what is there, bring over what is ours, keep what is found, lose nothing."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts.models import Membership, Project, ProjectRole
from accounts.services import audit
from infra.models import Circuit
from quotas import outbox
from quotas.core.external_limits import (
    Bound,
    Comparison,
    Difference,
    Mapped,
    after_writing,
    compare,
    strictest,
)
from quotas.models import Provider, ProviderState, ProviderStatus, Quota
from quotas.providers.base import Refused, Unreachable
from quotas.providers.circuit import circuit_of
from quotas.providers.external import ExternalQuotaProvider, Found, Scope
from quotas.providers.registry import deciding_projects
from quotas.providers.registry import provider as provider_named

log = structlog.get_logger(__name__)

#: An exchange is several calls; one that takes longer has died, and another may begin.
CLAIM_SECONDS: Final = 120
FIRST_RETRY_SECONDS: Final = 5
LONGEST_RETRY_SECONDS: Final = 300
#: Providers that keep a copy of the limits.
KEEPERS: Final = (Provider.K8S, Provider.SLURM)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one exchange came to. `written` were brought over, `overwritten` were others' changes until then."""

    status: ProviderStatus
    text: str = ""
    written: tuple[Difference, ...] = ()
    drift: tuple[Difference, ...] = ()
    overwritten: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """A project with what its provider is to keep."""

    scope: Scope
    provider: ExternalQuotaProvider
    mapped: Mapped


def exchange(project_id: int, *, repair: bool = False) -> Outcome | None:
    """Make provider and Muster agree on one project; None when another process is at it, or it is kept here.

    1. Muster's lines are read, and the state row is claimed: two exchanges at once would undo each other.
    2. The circuit is asked; a provider that has failed often is left alone.
    3. Read, compare, write what is ours, read again: a provider that ignores a value is found out.
    4. What was found is recorded, if the claim is still ours.

    Steps 3 is outside any transaction. A process that dies anywhere leaves a claim that runs out, and rows
    that say what was last brought over: the next exchange goes on from what it finds.
    """
    task = tasks_of([project_id]).get(project_id)
    if task is None:
        if project_id not in deciding_projects([project_id]):
            ProviderState.objects.filter(project_id=project_id).delete()
        return None
    state = _claim(task)
    if state is None:
        return None
    if task.provider.off_text:
        return _record(state, task, Outcome(ProviderStatus.OFF, task.provider.off_text), None, None)
    circuit = circuit_of(state.provider)
    look = circuit.look()
    if look.open_until is not None:
        text = state.text if state.status == ProviderStatus.UNREACHABLE else _circuit_text(circuit.name)
        return _record(state, task, Outcome(ProviderStatus.UNREACHABLE, text), None, look.open_until)
    try:
        outcome, found = _talk(task, state, repair=repair)
    except Unreachable as error:
        circuit.failed(str(error), retry_after_seconds=error.retry_after_seconds)
        return _record(state, task, Outcome(ProviderStatus.UNREACHABLE, str(error)), None, None)
    except Refused as error:
        circuit.answered()
        return _record(state, task, Outcome(ProviderStatus.REFUSED, str(error)), None, None)
    circuit.answered()
    return _record(state, task, outcome, found, None)


def _talk(task: Task, state: ProviderState, *, repair: bool) -> tuple[Outcome, Found]:
    found = task.provider.read(task.scope)
    wanted = task.mapped.values
    result: Comparison = compare(wanted, state.written, found.limits, repair=repair)
    if not result.to_write:
        return _outcome(task, result), found
    task.provider.write(task.scope, found, result.to_write)
    expected = after_writing(found.limits, result.to_write)
    before, found = found, task.provider.read(task.scope)
    ignored = [key for key in result.to_write if found.limits.get(key) != expected.get(key)]
    if ignored:
        show = task.provider.show
        ignored_text = "; ".join(
            f"{key} stays {show(key, found.limits.get(key))} though {show(key, wanted.get(key))} was written"
            for key in ignored[:3]
        )
        raise Refused(ignored_text + ".")
    written = tuple(
        Difference(key, wanted.get(key), before.limits.get(key)) for key in sorted(result.to_write)
    )
    return _outcome(task, result, written), found


def _outcome(task: Task, result: Comparison, written: tuple[Difference, ...] = ()) -> Outcome:
    status = ProviderStatus.DRIFT if result.drift else ProviderStatus.OK
    return Outcome(status, drift_text(task.provider, result.drift), written, result.drift, result.overwritten)


def drift_text(provider: ExternalQuotaProvider, drift: Iterable[Difference]) -> str:
    """`cpu is 12 there and 8 here; gres/gpu is none there and 2 here.`"""
    parts = [
        f"{d.key} is {provider.show(d.key, d.there)} at the provider and {provider.show(d.key, d.here)} in Muster"
        for d in drift
    ]
    return ("; ".join(parts) + ".") if parts else ""


# ---------------------------------------------------------------- what is to be kept there


def tasks_of(project_ids: Iterable[int] | None = None) -> dict[int, Task]:
    """Projects whose quota is kept outside, with what is to be kept; three queries for all of them."""
    lines = Quota.objects.filter(project__isnull=False, user__isnull=True)
    outside = lines.plain().filter(provider__in=KEEPERS)
    if project_ids is not None:
        outside = outside.filter(project_id__in=project_ids)
    names = dict(outside.order_by("-id").values_list("project_id", "provider"))
    if not names:
        return {}
    bounds: defaultdict[int, list[Bound]] = defaultdict(list)
    for line in lines.filter(project_id__in=names, enforce=True).order_by("id"):
        amount = strictest(line.hard, line.nominal, line.borrowing_limit)
        if amount is not None and line.project_id is not None:
            bounds[line.project_id].append(Bound(line.resource, amount, line.gpu_model, line.job_type))
    members = _members(names)
    tasks = {}
    for project in Project.objects.filter(pk__in=names):
        provider = provider_named(names[project.pk])
        assert isinstance(provider, ExternalQuotaProvider)
        scope = Scope(project.pk, project.slug, members.get(project.pk, ()))
        tasks[project.pk] = Task(scope, provider, provider.values(bounds[project.pk], scope))
    return tasks


def _members(project_ids: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """Those who may submit in each project now, by account name."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    rows = (
        Membership.objects.filter(
            project_id__in=project_ids,
            project__active=True,
            user__is_active=True,
            role__in=[ProjectRole.MEMBER, ProjectRole.LEAD],
        )
        .filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()))
        .order_by("user__username")
    )
    for project_id, name in rows.values_list("project_id", "user__username"):
        found[project_id].append(name)
    return {project_id: tuple(names) for project_id, names in found.items()}


def due_projects() -> list[int]:
    """Projects to exchange now: changed here since the last time, to be tried again, or not looked at for long.

    Whatever changed the lines or the members is found, for what should be there is compared with what was
    brought over; the message that usually comes first may be lost.
    """
    now = timezone.now()
    old = now - timedelta(seconds=settings.QUOTA_PROVIDER_SYNC_SECONDS)
    states = ProviderState.objects.in_bulk()
    due = []
    for project_id, task in tasks_of().items():
        state = states.pop(project_id, None)
        if state is None or state.provider != task.provider.name:
            due.append(project_id)
        elif state.next_try_at is not None:
            if state.next_try_at <= now:
                due.append(project_id)
        elif task.provider.off_text:
            if state.status != ProviderStatus.OFF:
                due.append(project_id)
        elif state.written != task.mapped.values or state.synced_at is None or state.synced_at <= old:
            due.append(project_id)
    deciding = deciding_projects(states)
    return sorted([*due, *(one for one in states if one not in deciding)])  # these are kept here now


# ---------------------------------------------------------------- the state row


def mark_pending(project_id: int) -> None:
    """Say, in the transaction of an edit, that the provider which keeps the limits does not know it yet."""
    ProviderState.objects.filter(project_id=project_id, provider__in=KEEPERS).exclude(
        status__in=[ProviderStatus.PENDING, ProviderStatus.OFF]
    ).update(status=ProviderStatus.PENDING, since=timezone.now(), text="", next_try_at=None)


def _claim(task: Task) -> ProviderState | None:
    now = timezone.now()
    name, project_id = task.provider.name, task.scope.project_id
    fresh: dict[str, Any] = {"provider": name, "since": now}
    with transaction.atomic():
        ProviderState.objects.get_or_create(project_id=project_id, defaults=fresh)
        state = ProviderState.objects.select_for_update().get(project_id=project_id)
        if state.claimed_until is not None and state.claimed_until > now:
            return None
        if state.provider != name:  # kept by somebody else until now: what was written there is not here
            ProviderState.objects.filter(pk=state.pk).delete()
            state = ProviderState(project_id=project_id, **fresh)
        state.claim, state.claimed_until = uuid.uuid4(), now + timedelta(seconds=CLAIM_SECONDS)
        state.save()
    return state


def _record(
    state: ProviderState, task: Task, outcome: Outcome, found: Found | None, wait: datetime | None
) -> Outcome | None:
    """Write down what came of it; None when the claim was lost meanwhile and somebody else's word stands."""
    now = timezone.now()
    changes: dict[str, Any] = {
        "claim": None,
        "claimed_until": None,
        "wanted": task.mapped.values,
        "left_out": list(task.mapped.left_out),
        "text": outcome.text[:500],
    }
    if outcome.status != state.status:
        changes |= {"status": outcome.status, "since": now}
    if outcome.status in (ProviderStatus.UNREACHABLE, ProviderStatus.REFUSED):
        failures = state.failures + (wait is None)
        changes |= {"failures": failures, "next_try_at": wait or now + _retry_after(failures)}
    else:
        changes |= {"failures": 0, "next_try_at": None, "synced_at": now}
    if found is not None:
        changes |= {
            "written": task.mapped.values,
            "found": dict(found.limits),
            "used": dict(found.used),
            "facts": dict(found.facts),
        }
        if outcome.written:
            changes["written_at"] = now
    with transaction.atomic():
        mine = ProviderState.objects.filter(pk=state.pk, claim=state.claim)
        if not mine.update(**changes):
            return None
        if outcome.status != state.status or outcome.text != state.text:
            outbox.wake_planners()
            _tell(state, task, outcome)
    return outcome


def _tell(state: ProviderState, task: Task, outcome: Outcome) -> None:
    """News go to the log, and what others changed there to the audit trail too."""
    log.info(
        "quota_provider", project=task.scope.slug, provider=state.provider, status=outcome.status.value,
        text=outcome.text,
    )  # fmt: skip
    for action, differences in (("quota.drift", outcome.drift), ("quota.overwrite", outcome.overwritten)):
        if differences:
            audit.record(
                by=None,
                action=action,
                thing=state.project,
                before=_shown(task, differences, "there"),
                after=_shown(task, differences, "here"),
                reason=f"found changed in {state.get_provider_display()}",
                project=state.project,
            )


def _shown(task: Task, differences: Iterable[Difference], side: str) -> Mapping[str, str]:
    return {d.key: task.provider.show(d.key, getattr(d, side)) for d in differences}


def _circuit_text(name: str) -> str:
    row = Circuit.objects.filter(pk=name).first()
    return row.text if row is not None and row.text else "The provider has not responded several times."


def _retry_after(failures: int) -> timedelta:
    return timedelta(
        seconds=min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(max(failures - 1, 0), 10))
    )
