"""Gang reservations under a virtual clock: which gang has reserved which nodes, and until when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from scheduler.core.plan import Plan
from scheduler.core.snapshot.snapshot import (
    JobGate,
    PendingColumns,
    ReservationColumns,
    Snapshot,
    gathering_id,
)


@dataclass(slots=True)
class VirtualReservations:
    """The gang reservations of this moment, and what became of earlier ones."""

    _reserved: dict[int, tuple[tuple[int, ...], int]] = field(
        default_factory=dict
    )  # job -> nodes, until when
    _failed: dict[int, int] = field(default_factory=dict)  # job -> reservations that ran out
    _retry_ms: dict[int, int] = field(default_factory=dict)  # job -> when it may reserve again
    _others: ReservationColumns = field(default_factory=ReservationColumns)  # people's, and maintenance
    _any: bool = False  # whether a gang reserves nodes, or ever did

    @classmethod
    def of(cls, snapshot: Snapshot) -> VirtualReservations:
        reservations, pending = snapshot.reservations, snapshot.pending
        nodes = dict(zip(reservations.id.tolist(), reservations.node_ids, strict=True))
        found = cls(_others=reservations.take(np.flatnonzero(reservations.id > 0)))
        for row in np.flatnonzero(pending.assembling_until_ms > 0).tolist():
            number = pending.id.item(row)
            until_ms = pending.assembling_until_ms.item(row)
            found._reserved[number] = nodes.get(gathering_id(number), ()), until_ms
            found._failed[number] = pending.assemblies_failed.item(row)
            found._any = True
        return found

    def apply(self, plan: Plan, jobs: PendingColumns, row_of: Mapping[int, int]) -> list[int]:
        """Apply what a plan reserves and releases; returns the moments at which a cycle has to look again."""
        moments = []
        for start in plan.starts if self._reserved else ():
            self._reserved.pop(start.job_id, None)
        for reserve in plan.reserves:
            self._reserved[reserve.job_id] = reserve.node_ids, reserve.until_ms
            moments.append(reserve.until_ms)
            self._any = True
        for released in plan.given_back:
            number = released.job_id
            self._reserved.pop(number, None)
            before = self._failed.get(number, jobs.assemblies_failed.item(row_of[number]))
            self._failed[number] = before + 1
            self._retry_ms[number] = released.retry_ms
            moments.append(released.retry_ms)
        return moments

    def add_to(
        self, pending: PendingColumns, expected_starts: Mapping[int, int], now_ms: int
    ) -> tuple[PendingColumns, ReservationColumns | None]:
        """The waiting jobs and the reservations as of now; None = the reservations of the beginning."""
        if not self._any:
            return pending, None
        numbers = pending.id.tolist()
        return replace(pending, **self._moved(pending, numbers, now_ms)), self._columns(
            numbers, expected_starts, now_ms
        )

    def _moved(self, pending: PendingColumns, numbers: list[int], now_ms: int) -> dict[str, Any]:
        """The columns of waiting jobs that reservations have changed."""
        until = [self._reserved[number][1] if number in self._reserved else 0 for number in numbers]
        moved: dict[str, Any] = {"assembling_until_ms": np.array(until, dtype=np.int64)}
        if self._retry_ms:
            retry = np.array([self._retry_ms.get(number, 0) for number in numbers], dtype=np.int64)
            later = (retry > pending.eligible_ms) & (pending.gate == JobGate.OPEN)
            moved["gate"] = np.where(later & (retry > now_ms), JobGate.BACKOFF, pending.gate)
            moved["eligible_ms"] = np.where(later, retry, pending.eligible_ms)
        failed = zip(numbers, pending.assemblies_failed.tolist(), strict=True)
        moved["assemblies_failed"] = np.array(
            [self._failed.get(number, before) for number, before in failed], dtype=np.int64
        )
        return moved

    def _columns(
        self, numbers: list[int], expected_starts: Mapping[int, int], now_ms: int
    ) -> ReservationColumns:
        """All reservations: people's, maintenance, and those of waiting gangs that have not run out."""
        live = [(number, *self._reserved[number]) for number in numbers if number in self._reserved]
        rows = [
            {
                "id": gathering_id(number),
                "name": f"gathering for job {number}",
                "starts_ms": min(max(expected_starts.get(number, now_ms), now_ms), until_ms),
                "ends_ms": until_ms,
                "node_ids": nodes,
                "job_ids": (number,),
            }
            for number, nodes, until_ms in live
            if until_ms > now_ms
        ]
        columns: dict[str, Any] = {}
        for f in fields(ReservationColumns):
            more = [row.get(f.name, f.metadata["default"]) for row in rows]
            columns[f.name] = (*getattr(self._others, f.name), *more)
        return ReservationColumns(**columns)
