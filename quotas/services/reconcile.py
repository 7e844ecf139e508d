"""The reconciler: counters against what they count; what differs is shown, repaired with a reason, and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pgtrigger
import structlog
from django.db import transaction
from django.utils import timezone

from accounts.models import User
from accounts.services import audit
from infra.times_in_text import written
from quotas import outbox
from quotas.models import BudgetPeriod, DriftFinding, DriftKind
from quotas.selectors.budgets import sum_of_period

log = structlog.get_logger(__name__)

#: A period that ended so long ago is closed: late charges into it have come by then.
LOOK_BACK: Final = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A counter, what it said and what is so."""

    kind: DriftKind
    subject: str
    was: int
    found: int
    project_id: int | None = None


def record_drift(mismatches: Sequence[Mismatch], *, reason: str, repaired: bool) -> None:
    """Keep what was found for the page and the metric."""
    now = timezone.now()
    DriftFinding.objects.bulk_create(
        DriftFinding(
            kind=one.kind, subject=one.subject[:160], was=one.was, found=one.found, project_id=one.project_id,
            found_at=now, repaired_at=now if repaired else None, reason=reason[:300],
        )
        for one in mismatches
    )  # fmt: skip
    for one in mismatches:
        log.warning("quota_drift", kind=one.kind, subject=one.subject, was=one.was, found=one.found)


def check_budgets(*, by: User | None = None, reason: str = "found by the periodic check") -> int:
    """Compare the counters of every open period with the ledger, and repair those that differ."""
    periods = (
        BudgetPeriod.objects.filter(ends_at__gt=timezone.now() - LOOK_BACK)
        .order_by("id")
        .values_list("pk", flat=True)
    )
    return sum(_check_period(pk, by=by, reason=reason) for pk in list(periods))


def _check_period(pk: int, *, by: User | None, reason: str) -> int:
    """1. Without a lock: nearly all are right. 2. Again under the lock that every writer takes."""
    row = BudgetPeriod.objects.select_related("budget__project").filter(pk=pk).first()
    if row is None:
        return 0  # its budget was given an earlier end meanwhile
    total = sum_of_period(row)
    if (row.held, row.charged) == (max(total.held, 0), total.charged):
        BudgetPeriod.objects.filter(pk=pk).update(checked_at=timezone.now())
        return 0
    with transaction.atomic():
        rows = BudgetPeriod.objects.select_for_update(of=("self",)).select_related("budget__project")
        row = rows.filter(pk=pk).first()
        if row is None:
            return 0
        total = sum_of_period(row)
        right = {"held": max(total.held, 0), "charged": total.charged}
        before, after = audit.changed({name: getattr(row, name) for name in right}, right)
        if not after:
            return 0
        with pgtrigger.ignore("quotas.BudgetPeriod:budget_never_passed"):  # it is what is so
            BudgetPeriod.objects.filter(pk=pk).update(**right, checked_at=timezone.now())
        record_drift(
            [
                Mismatch(
                    DriftKind.BUDGET, f"budget {row.budget.name}, {written(row.starts_at)}: {name}",
                    int(before[name]), int(after[name]), row.budget.project_id,
                )
                for name in after
            ],
            reason=reason, repaired=True,
        )  # fmt: skip
        outbox.wake_planners()
        audit.record(
            by=by, action="budget.repair", thing=row.budget, before=before, after=after, reason=reason,
            project=row.budget.project,
        )  # fmt: skip
    return len(after)
