"""One word for one thing: identifiers that a word of the field has replaced do not come back."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

import pytest

from tests.architecture.sizes import modules

#: Retired identifier -> the word that the glossary has for it.
RETIRED = {
    "Answers": "CycleContext",
    "World": "ClusterIndex",
    "Company": "AffinityIndex",
    "Neighbours": "AffinityState",
    "Seat": "TaskAllocation",
    "Wanted": "Preemptor",
    "crosses_now": "spans_domains_now",
    "crosses_always": "never_fits_one_domain",
    "standing_of": "preemption_rank",
    "ClusterRoom": "ClusterBackfill",
    "Turns": "BackfillLimits",
    "take_turns": "run_backfill",
    "turns_of": "limits_of",
    "Promise": "ReservedStart",
    "Horizon": "Availability",
    "Levels": "ReservedCapacity",
    "Gatherings": "VirtualReservations",
    "Assembly": "GangReservations",
    "FactGate": "StaticFilter",
    "RoomGate": "ResourceFilter",
    "JobsGate": "AffinityFilter",
    "RATINGS": "SCORERS",
    "Again": "Requeue",
    "hand_out": "bind_tasks",
    "line_up": "order_jobs",
    "Disturbance": "PreemptionResult",
    "Sooner": "EarlierStart",
    "sooner_change": "earlier_change",
    "ShareMemory": "UsageHistory",
    "Fragments": "Fragmentation",
    "replay_kept": "replay_reserved",
    "own_blockers": "job_reasons",
    "array_blockers": "array_reasons",
    "apply_gatherings": "apply_gang_reservations",
    "tell_gatherings": "apply_gang_reservations",
    "tell_waiting": "write_pending_reasons",
    "tell_reasons": "write_pending_reasons",
    "tell_stopped": "insert_events_of_kind",
    "Told": "PendingReason",
    "PreemptionRow": "JobRow",
    "lock_for_preemption": "lock_jobs",
    "Judged": "CheckedResizes",
    "IN_LINE": "PLANNED_STATES",
    "stop_instead": "stop_unsuspended",
    "waiting_suspensions": "attempts_to_suspend",
    "told_to_ask": "must_resubscribe",
    "tell_health": "report_health",
    "Keeper": "Shim",
    "KeeperLink": "ShimLink",
    "keeper": "shim",
    "keeper_pid": "shim_pid",
    "end_keepers": "end_shims",
    "_obey": "handle_command",
    "_welcome": "accept",
    "Slip": "GuardStatus",
    "read_slip": "read_status",
    "be_reaper": "become_subreaper",
    "leave_the_keeper": "detach_from_shim",
    "pause_task": "suspend_task",
    "pump": "upload_batch",
    "Pumped": "Uploaded",
}


@pytest.mark.parametrize(
    "package",
    [
        "scheduler/core",
        "scheduler/simulator",
        "scheduler/state",
        "scheduler/services",
        "scheduler/realtime",
        "scheduler/agent",
        "scheduler/backends",
        "config/up",
    ],
)
def test_no_retired_word_is_an_identifier(package: str) -> None:
    found = [
        f"{path.name}:{token.start[0]} {token.string}: say {RETIRED[token.string]}"
        for path in modules()
        if package in path.as_posix()
        for token in identifiers_of(path)
        if token.string in RETIRED
    ]

    assert found == []


def identifiers_of(path: Path) -> list[tokenize.TokenInfo]:
    """The names of a module as it writes them."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return [token for token in tokens if token.type == tokenize.NAME]
