"""Changes of limits, and the recount that puts counters right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts import permissions
from accounts.models import Project, User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput
from quotas import outbox
from quotas.models import DriftKind, Provider, Quota, QuotaResource
from quotas.providers.base import Drift, QuotaSheet
from quotas.providers.local import LocalQuotaProvider, sheet_of
from quotas.providers.registry import provider
from quotas.services.exchange import mark_pending
from quotas.services.quota_lines import check_together, over_since, value_problem
from quotas.services.reconcile import Mismatch, record_drift
from quotas.usage_source import usage_source

BOUNDS: Final = ("nominal", "soft", "hard")
#: What may be changed of a line.
EDITABLE: Final = (
    *BOUNDS, "borrowing_limit", "lending_limit", "enforce", "converge_after_seconds", "provider",
)  # fmt: skip


def set_quota(
    *,
    project: Project,
    changes: Mapping[str, Mapping[str, Any]],
    by: User,
    reason: str,
    expected_generation: int | None = None,
) -> QuotaSheet:
    """Change bounds: `{"gpu_millis": {"hard": 8000, "soft": None}}`; lines that are missing are made.

    With `expected_generation`, the sheet's as the person saw it, raises Conflict (412) with the present
    values when somebody has changed it since. A bound may be cut below what is in use: nothing is
    stopped, and nothing new starts until usage has gone down.
    """
    permissions.require(by, "edit_quota", project)
    reason = reason.strip()
    _check(changes, reason)
    with transaction.atomic():
        # 1. One edit of a project's quota at a time, its first one included, when there is no line to lock.
        Project.objects.select_for_update(no_key=True, of=("self",)).get(pk=project.pk)
        rows = {
            row.resource: row
            for row in Quota.objects.plain()
            .select_for_update(of=("self",))
            .filter(project=project)
            .order_by("id")
        }
        # 2. Compare with what the person saw.
        if expected_generation is not None:
            _compare(sheet_of(project.pk, rows.values()), expected_generation)
        # 3. Every resource gets a line at the first edit, so that its usage is counted from then on.
        made = _make_missing(project, rows)
        before: dict[str, Any] = {}
        after: dict[str, Any] = {}
        for resource, wanted in sorted(_one_provider(changes, rows).items()):
            row = rows[resource]
            old = {name: getattr(row, name) for name in EDITABLE}
            new = old | dict(wanted)
            check_together(new, of=resource)
            was, becomes = audit.changed(old, new)
            if becomes:
                Quota.objects.filter(pk=row.pk).update(
                    generation=F("generation") + 1, over_since=over_since(row, becomes), **becomes
                )
                before[resource], after[resource] = was, becomes
        # 4. The trail last, for its chain stays locked until we are through.
        if after:
            outbox.wake_planners()
            names = {row.provider for row in rows.values()} | {
                line.get("provider", "") for line in after.values()
            }
            if names - {"", Provider.LOCAL}:
                mark_pending(project.pk)
                outbox.exchange_soon(project.pk)
            if made:
                outbox.recount_soon(project.pk)
            audit.record(
                by=by,
                action="quota.set",
                thing=project,
                before=before,
                after=after,
                reason=reason,
                project=project,
            )
        return sheet_of(project.pk, Quota.objects.plain().filter(project=project))


def sync_quota(*, project: Project, by: User | None, reason: str = "") -> tuple[Drift, ...]:
    """Recount what the project holds and repair its counters; drift that was found is audited.

    `by` is None for the recount that the clock asks for.
    """
    if by is not None:
        permissions.require(by, "edit_quota", project)
    with transaction.atomic():
        drifts = LocalQuotaProvider().sync(project.pk)  # the counters are ours, with every provider
        if drifts:
            _see_what_is_over(project, drifts)
            outbox.wake_planners()
            record_drift(
                [
                    Mismatch(DriftKind.QUOTA, f"{d.resource} of {project.slug}", d.was, d.found, project.pk)
                    for d in drifts
                ],
                reason=reason or "counters differed from the allocations",
                repaired=True,
            )
            audit.record(
                by=by,
                action="quota.repair",
                thing=project,
                before={drift.resource: drift.was for drift in drifts},
                after={drift.resource: drift.found for drift in drifts},
                reason=reason or "counters differed from the allocations",
                project=project,
            )
    return drifts


def _see_what_is_over(project: Project, drifts: Sequence[Drift]) -> None:
    """The time until a bound is kept begins now where more is in use than was thought, and ends where less is."""
    was = {drift.resource: drift.was for drift in drifts}
    for row in Quota.objects.plain().filter(project=project, resource__in=was):
        Quota.objects.filter(pk=row.pk).update(over_since=over_since(row, {}, was=was[row.resource]))


def drifting_projects() -> list[int]:
    """Projects with a counter that seems wrong; read without locks, so some may be amid a start."""
    counted: dict[int, dict[str, int]] = {}
    for project_id, resource, used in Quota.objects.plain().values_list("project_id", "resource", "used"):
        counted.setdefault(project_id, {})[resource] = used
    held = usage_source().usage(counted)
    return sorted(
        project_id
        for project_id, lines in counted.items()
        if any(held.get(project_id, {}).get(resource, 0) != used for resource, used in lines.items())
    )


def _make_missing(project: Project, rows: dict[str, Quota]) -> bool:
    missing = [resource for resource in QuotaResource.counted() if resource not in rows]
    if not missing:
        return False
    held = usage_source().usage([project.pk]).get(project.pk, {})
    name = next((row.provider for row in rows.values()), provider().name)
    for resource in missing:
        rows[resource] = Quota.objects.create(
            project=project,
            resource=resource,
            provider=name,
            used=held.get(resource, 0),
            synced_at=timezone.now(),
            generation=0,
        )
    return True


def _one_provider(
    changes: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Quota]
) -> dict[str, dict[str, Any]]:
    """A project's quota is kept in one place: a provider that is named for one line is that of all."""
    names = {wanted["provider"] for wanted in changes.values() if "provider" in wanted}
    if len(names) > 1:
        message = f"A project has one provider, not {' and '.join(sorted(names))}."
        raise InvalidInput(message, problems=[FieldProblem("provider", message)])
    together = {resource: dict(wanted) for resource, wanted in changes.items()}
    for name in names:
        for resource in rows:
            together.setdefault(resource, {})["provider"] = name
    return together


def _compare(sheet: QuotaSheet, expected_generation: int) -> None:
    if sheet.generation == expected_generation:
        return
    raise Conflict(
        "This quota was changed since you read it.",
        code="stale",
        status=412,
        way_out="Read the current values, then send your change again with the new ETag.",
        extra={
            "generation": sheet.generation,
            "current": {
                line.resource: {name: getattr(line, name) for name in (*BOUNDS, "enforce", "used")}
                for line in sheet.lines
            },
        },
    )


def _check(changes: Mapping[str, Mapping[str, Any]], reason: str) -> None:
    problems = []
    if not reason:
        problems.append(FieldProblem("reason", "Give a reason; it goes into the audit trail.", "required"))
    if not changes:
        problems.append(FieldProblem("", "Name at least one limit to change.", "required"))
    for resource, wanted in changes.items():
        if resource not in QuotaResource.counted():
            known = ", ".join(QuotaResource.counted())
            problems.append(FieldProblem(resource, f"Unknown resource {resource[:40]!r}; known are {known}."))
            continue
        for name, value in wanted.items():
            if (problem := value_problem(name, value)) is not None:
                problems.append(FieldProblem(f"{resource}/{name}", problem))
    if problems:
        raise InvalidInput(problems[0].message, problems=problems)
