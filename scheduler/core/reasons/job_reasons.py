"""Why a job is not considered at all: its own row, its queue, its project or its array."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quotas.core.fairshare import HARD
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.columns import Ints, find_rows
from scheduler.core.placement.reservation_access import GONE, is_for, named_rows
from scheduler.core.plan import Decision, decide
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.snapshot.snapshot import GATE_REASONS, JobGate


def job_reasons(cluster: ClusterIndex) -> Iterator[tuple[Ints, Decision]]:
    """What jobs' own rows, queues and projects say, before any node is asked: (pending rows, why)."""
    snapshot = cluster.snapshot
    pending, queues = snapshot.pending, snapshot.queues
    for gate, reason in GATE_REASONS.items() if pending.gate.any() else ():
        if gate is not JobGate.BACKOFF:
            yield np.flatnonzero(pending.gate == gate), decide(reason)
    for row in np.flatnonzero(queues.paused).tolist():
        why = decide(ReasonCode.QUEUE_STOPPED, queue=queues.name[row], text=queues.paused_text[row])
        yield np.flatnonzero(cluster.pending.queue == row), why
    yield from _over_fair_share(cluster)
    away = snapshot.projects.away_text
    for row, text in enumerate(away) if any(away) else ():
        if text:
            why = decide(ReasonCode.QUOTA_PROVIDER_AWAY, text=text)
            yield np.flatnonzero(cluster.pending.project == row), why
    yield from _refused_starts(cluster)
    early = np.flatnonzero(pending.eligible_ms > snapshot.now_ms)
    for rows, values in rows_by_value(early, pending.eligible_ms[early], pending.gate[early]):
        reason = ReasonCode.BACKOFF if values[1] == JobGate.BACKOFF else ReasonCode.BEGIN_TIME
        yield rows, decide(reason, begin_ms=values[0])
    yield from _outside_their_reservation(cluster)
    yield from _over_the_time_limit(cluster)


def _refused_starts(cluster: ClusterIndex) -> Iterator[tuple[Ints, Decision]]:
    """Jobs that the provider of their quota has refused, until they are asked about again, or were changed."""
    pending, refused = cluster.snapshot.pending, cluster.snapshot.refused_starts
    by_text: dict[str, list[int]] = {}
    found = find_rows(pending.id, refused.id).tolist()
    for row, generation, text in zip(found, refused.generation.tolist(), refused.text, strict=True):
        if row >= 0 and pending.generation[row] == generation:
            by_text.setdefault(text, []).append(row)
    for text, rows in by_text.items():
        yield np.array(rows, dtype=np.int64), decide(ReasonCode.QUOTA_PROVIDER_REFUSES, text=text)


def _outside_their_reservation(cluster: ClusterIndex) -> Iterator[tuple[Ints, Decision]]:
    """Jobs that name a reservation which is over, has not begun, is for others, or ends before they would."""
    snapshot = cluster.snapshot
    pending, reservations, now_ms = snapshot.pending, snapshot.reservations, snapshot.now_ms
    if not pending.reservation_id.any():
        return
    named = named_rows(snapshot)
    if len(gone := np.flatnonzero(named == GONE)):
        yield gone, decide(ReasonCode.RESERVATION, named="over")
    bound = snapshot.queues.max_wall_seconds[cluster.pending.queue]
    limit = np.where(pending.time_limit_seconds > 0, pending.time_limit_seconds, bound)
    for row in np.unique(named[named >= 0]).tolist():
        starts_ms, ends_ms = reservations.starts_ms.item(row), reservations.ends_ms.item(row)
        facts: dict[str, int | str] = {"reservation": reservations.name[row], "ends_ms": ends_ms}
        mine = named == row
        if now_ms < starts_ms:
            begins = facts | {"starts_ms": starts_ms}
            yield np.flatnonzero(mine), decide(ReasonCode.RESERVATION, named="begins", **begins)
        at_ms = max(now_ms, starts_ms)
        long = mine & ((limit <= 0) | (at_ms + limit * 1000 > ends_ms))
        if long.any():
            yield np.flatnonzero(long), decide(ReasonCode.RESERVATION, named="short", **facts)
        others = mine & ~is_for(snapshot, row)
        if others.any():
            yield np.flatnonzero(others), decide(ReasonCode.RESERVATION, named="others", **facts)


def _over_fair_share(cluster: ClusterIndex) -> Iterator[tuple[Ints, Decision]]:
    """Jobs whose share has a hard limit and is over it."""
    shares = cluster.snapshot.shares
    if not (shares.over == HARD).any():
        return
    share_row = cluster.pending.share
    over = np.flatnonzero((share_row >= 0) & (shares.over[share_row] == HARD))
    for rows, values in rows_by_value(over, share_row[over]):
        share = values[0]
        why = decide(
            ReasonCode.FAIR_SHARE_BEHIND,
            owner=shares.owner[share],
            used_percent=int(shares.used_percent[share]),
            limit_percent=int(shares.limit_percent[share]),
        )
        yield rows, why


def _over_the_time_limit(cluster: ClusterIndex) -> Iterator[tuple[Ints, Decision]]:
    """Jobs that ask for more time than their queue allows."""
    pending, queues = cluster.snapshot.pending, cluster.snapshot.queues
    if not len(pending):
        return
    queue_row = cluster.pending.queue
    bound = queues.max_wall_seconds[queue_row]
    long = np.flatnonzero((bound > 0) & (pending.time_limit_seconds > bound))
    for rows, values in rows_by_value(long, pending.time_limit_seconds[long], queue_row[long]):
        seconds, queue = values
        why = decide(
            ReasonCode.EXCEEDS_MAX_WALLTIME,
            needs=seconds,
            limit=int(queues.max_wall_seconds[queue]),
            queue=queues.name[queue],
        )
        yield rows, why


def array_reasons(cluster: ClusterIndex, workspace: Workspace) -> Iterator[tuple[Ints, Decision]]:
    """Jobs of arrays that already have as many members running as they allow."""
    pending = cluster.snapshot.pending
    bound = np.flatnonzero(pending.array_max_running > 0)
    bound = bound[pending.array_id[bound] > 0]
    for rows, values in rows_by_value(bound, pending.array_id[bound], pending.array_max_running[bound]):
        running = workspace.limits.array_running.get(values[0], 0)
        if running >= values[1]:
            yield (
                rows,
                decide(
                    ReasonCode.RATE_LIMITED, scope="array", array=values[0], running=running, limit=values[1]
                ),
            )


def rows_by_value(rows: Ints, *columns: Ints) -> Iterator[tuple[Ints, tuple[int, ...]]]:
    """The rows by equal values of the columns (one value a row), each with those values."""
    if not len(rows):
        return
    order = np.lexsort((rows, *columns[::-1]))
    values = np.stack([column[order] for column in columns], axis=1)
    changes = np.flatnonzero((values[1:] != values[:-1]).any(axis=1)) + 1
    for part, first in zip(np.split(rows[order], changes), [0, *changes.tolist()], strict=True):
        yield part, tuple(values[first].tolist())
