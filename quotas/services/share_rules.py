"""Rules of fair share at run time: how long use counts and what counts how much, with a reason and an audit row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db import connection, transaction
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, FieldProblem, InvalidInput
from quotas import outbox
from quotas.core.decay import MODES, Decay
from quotas.core.fairshare import Metering
from quotas.models import FairShareRules
from quotas.selectors.fair_share_source import share_rules

#: Seconds of the half-life and the window: from one minute to some years.
LEAST_SECONDS: Final = 60
MOST_HALF_LIFE_SECONDS: Final = 10_000 * 3600
MOST_WINDOW_SECONDS: Final = 366 * 86_400
MOST_WEIGHT: Final = 1_000_000.0

#: What may be changed, in the order of the form.
FIELDS: Final = (
    "mode", "half_life_seconds", "window_seconds", "gpu_weight", "cpu_weight", "memory_weight", "dominant",
)  # fmt: skip

#: One change at a time, so that two people do not both change what the other has not seen.
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext('quotas.fair_share_rules'))"


def values_of(decay: Decay, metering: Metering) -> dict[str, Any]:
    """The rules as plain values, by the names of FIELDS."""
    return {
        "mode": decay.mode, "half_life_seconds": decay.half_life_seconds, "window_seconds": decay.window_seconds,
        "gpu_weight": metering.gpu, "cpu_weight": metering.cpu, "memory_weight": metering.memory,
        "dominant": metering.dominant,
    }  # fmt: skip


def rules_with(changes: Mapping[str, Any]) -> tuple[Decay, Metering]:
    """The rules in force with these changes; raises InvalidInput that names the field, its limits and the way out."""
    problems = [problem for name, value in changes.items() if (problem := _problem(name, value))]
    values = values_of(*share_rules()) | dict(changes)
    if not problems and not any(values[f"{name}_weight"] for name in ("gpu", "cpu", "memory")):
        problems.append(
            FieldProblem(
                "gpu_weight", "At least one of the three weights is above 0: else no use would count."
            )
        )
    if problems:
        raise InvalidInput(problems[0].message, problems=problems)
    return (
        Decay(values["mode"], values["half_life_seconds"], values["window_seconds"]),
        Metering(values["gpu_weight"], values["cpu_weight"], values["memory_weight"], values["dominant"]),
    )


def _problem(name: str, value: Any) -> FieldProblem | None:
    if name == "mode":
        return None if value in MODES else FieldProblem(name, f"The decay is one of {', '.join(MODES)}.")
    if name in {"half_life_seconds", "window_seconds"}:
        most = MOST_HALF_LIFE_SECONDS if name == "half_life_seconds" else MOST_WINDOW_SECONDS
        if type(value) is int and LEAST_SECONDS <= value <= most:
            return None
        what = "half-life" if name == "half_life_seconds" else "window"
        return FieldProblem(name, f"The {what} is {LEAST_SECONDS} to {most:,} seconds.")
    if name == "dominant":
        return (
            None
            if type(value) is bool
            else FieldProblem(name, "The dominant resource counts: true or false.")
        )
    if name in FIELDS:
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_WEIGHT
        return None if good else FieldProblem(name, f"A weight is a number from 0 to {MOST_WEIGHT:,.0f}.")
    return FieldProblem(
        name, f"The rules of fair share have no {name[:40]!r}; there are {', '.join(FIELDS)}."
    )


@transaction.atomic
def set_share_rules(
    *, changes: Mapping[str, Any], by: User, reason: str, seen_version: int | None = None
) -> FairShareRules:
    """Put changed rules in force, from the next cycle on; operators only.

    Use that was counted before is worked out anew by the new rules: exactly, from what was held; the stored sums
    follow with a recount soon after. Raises Conflict (412) when somebody changed the rules after `seen_version`.
    """
    return _write(changes=changes, by=by, reason=reason, seen_version=seen_version, from_settings=False)


@transaction.atomic
def reset_share_rules(*, by: User, reason: str, seen_version: int | None = None) -> FairShareRules:
    """Put the settings MUSTER_FAIRSHARE_* in force again; operators only."""
    return _write(changes={}, by=by, reason=reason, seen_version=seen_version, from_settings=True)


def _write(
    *, changes: Mapping[str, Any], by: User, reason: str, seen_version: int | None, from_settings: bool
) -> FairShareRules:
    permissions.require(by, "operate")
    reason = reason.strip()
    if not reason:
        message = "Give a reason; it goes into the audit trail."
        raise InvalidInput(message, problems=[FieldProblem("reason", message, "required")])
    with connection.cursor() as cursor:
        cursor.execute(_LOCK)
    version = rules_version()
    if seen_version is not None and seen_version != version:
        raise Conflict(
            "The rules of fair share were changed since you read them.",
            code="stale",
            status=412,
            way_out="Read the current values, then send your change again.",
            extra={"current": values_of(*share_rules())},
        )
    before = values_of(*share_rules())
    after = values_of(*rules_with(changes))
    row = FairShareRules.objects.create(
        **after, from_settings=from_settings, changed_at=timezone.now(), changed_by=by, reason=reason[:1000]
    )
    now = values_of(*share_rules())
    old, new = audit.changed(before, now)
    outbox.wake_planners()
    outbox.recount_shares_soon()
    audit.record(
        by=by,
        action="share.reset_rules" if from_settings else "share.set_rules",
        thing=row,
        before=old,
        after=new,
        reason=reason,
    )
    return row


def rules_version() -> int:
    """The id of the newest row; 0 = there is none."""
    newest = FairShareRules.objects.values_list("pk", flat=True).order_by("-pk").first()
    return newest or 0
