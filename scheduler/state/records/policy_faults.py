"""What of a cluster's policy the planner cannot use: plugins that fail, and a profile, or a rule of one, that cannot
be followed.

A cycle never stops for them. The row is the alarm: health page, metrics and the cluster's page in the admin show it,
and a plugin or a rule that has one is not asked again until an operator puts it back into use. Saving the profile
puts its rules back into use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import structlog
from django.utils import timezone

from scheduler.models import PolicyFault
from scheduler.state.db.sql import run

log = structlog.get_logger(__name__)

MAX_REASON = 500


def rule_label(rule: str, profile: str) -> str:
    """How faults name a rule."""
    return f"{rule} of profile {profile}"


class OpenFault(NamedTuple):
    """A fault with the name of its cluster."""

    cluster: str
    subject: str
    reason: str
    began_at: datetime

    def __str__(self) -> str:
        if self.subject == PolicyFault.CYCLE:
            return f"cycles of cluster {self.cluster} fail, so no job starts: {self.reason}"
        return f"cluster {self.cluster} is planned without its {self.subject}: {self.reason}"


def put_out_of_use(cluster_id: int, plugin: str, reason: str) -> None:
    """Plan this cluster without the plugin from now on."""
    _note(cluster_id, PolicyFault.PLUGIN + plugin, reason)


def set_rule_aside(cluster_id: int, rule: str, reason: str) -> None:
    """Plan this cluster without a rule of a profile from now on, by its label (`cluster_rows.rule_label`)."""
    _note(cluster_id, PolicyFault.RULE + rule, reason)


def rules_are_gone(cluster_id: int, rules: Iterable[str]) -> None:
    """No profile of the cluster has these rules, by their labels, any more."""
    for rule in rules:
        _over(cluster_id, PolicyFault.RULE + rule)


def rules_are_new(profile: str) -> None:
    """Put the rules of this profile back into use in every cluster: the profile has been saved."""
    ending = rule_label("", profile)
    run(
        "DELETE FROM scheduler_policyfault WHERE starts_with(subject, %s) AND right(subject, %s) = %s RETURNING id",
        [PolicyFault.RULE, len(ending), ending],
    )


def note_profile(cluster_id: int, reason: str) -> None:
    """The profile cannot be followed in this cycle; the default policy is."""
    _note(cluster_id, PolicyFault.PROFILE, reason)


def note_cycle(cluster_id: int, reason: str) -> None:
    """A cycle of this cluster has failed: no job starts until one succeeds."""
    _note(cluster_id, PolicyFault.CYCLE, reason)


def _note(cluster_id: int, subject: str, reason: str) -> None:
    made = run(
        "INSERT INTO scheduler_policyfault (cluster_id, subject, reason, began_at) VALUES (%s, %s, %s, %s)"
        " ON CONFLICT (cluster_id, subject) DO UPDATE SET reason = excluded.reason"
        " WHERE scheduler_policyfault.reason <> excluded.reason RETURNING id",
        [cluster_id, subject[:150], reason.replace("\0", "")[:MAX_REASON], timezone.now()],
    )
    if made:
        log.error("policy_fault", cluster=cluster_id, subject=subject, reason=reason)


def profile_is_well(cluster_id: int) -> None:
    """The profile could be followed again."""
    _over(cluster_id, PolicyFault.PROFILE)


def cycle_is_well(cluster_id: int) -> None:
    """A cycle has succeeded."""
    _over(cluster_id, PolicyFault.CYCLE)


def _over(cluster_id: int, subject: str) -> None:
    gone = run(
        "DELETE FROM scheduler_policyfault WHERE cluster_id = %s AND subject = %s RETURNING id",
        [cluster_id, subject],
    )
    if gone:
        log.info("policy_fault_over", cluster=cluster_id, subject=subject)


def open_faults() -> Sequence[OpenFault]:
    """All there are, oldest first."""
    rows: list[tuple[Any, ...]] = run(
        "SELECT cluster.name, fault.subject, fault.reason, fault.began_at FROM scheduler_policyfault fault"
        " JOIN scheduler_cluster cluster ON cluster.id = fault.cluster_id ORDER BY fault.began_at, fault.id",
        [],
    )
    return [OpenFault(*row) for row in rows]
