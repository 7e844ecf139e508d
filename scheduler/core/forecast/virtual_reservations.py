"""Gang reservations under a virtual clock: which gang keeps which nodes, and until when."""

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
    """What plans decided about nodes that gangs gather, since the snapshot it began with."""

    kept: dict[int, tuple[tuple[int, ...], int]] = field(default_factory=dict)  # job -> its nodes, until when
    _failed: dict[int, int] = field(default_factory=dict)
    _retry_ms: dict[int, int] = field(default_factory=dict)
    _others: ReservationColumns = field(default_factory=ReservationColumns)  # bookings and maintenance
    _any: bool = False  # whether somebody gathers, or ever did

    @classmethod
    def of(cls, snapshot: Snapshot) -> VirtualReservations:
        reservations, pending = snapshot.reservations, snapshot.pending
        nodes = dict(zip(reservations.id.tolist(), reservations.node_ids, strict=True))
        found = cls(_others=reservations.take(np.flatnonzero(reservations.id > 0)))
        for row in np.flatnonzero(pending.assembling_until_ms > 0).tolist():
            number = pending.id.item(row)
            until_ms = pending.assembling_until_ms.item(row)
            found.kept[number] = nodes.get(gathering_id(number), ()), until_ms
            found._failed[number] = pending.assemblies_failed.item(row)
            found._any = True
        return found

    def follow(self, plan: Plan, jobs: PendingColumns, row_of: Mapping[int, int]) -> list[int]:
        """Let what a plan decided happen; answers the moments at which somebody has to look again."""
        moments = []
        for start in plan.starts if self.kept else ():
            self.kept.pop(start.job_id, None)
        for reserve in plan.reserves:
            self.kept[reserve.job_id] = reserve.node_ids, reserve.until_ms
            moments.append(reserve.until_ms)
            self._any = True
        for one in plan.given_back:
            self.kept.pop(one.job_id, None)
            before = self._failed.get(one.job_id, jobs.assemblies_failed.item(row_of[one.job_id]))
            self._failed[one.job_id] = before + 1
            self._retry_ms[one.job_id] = one.retry_ms
            moments.append(one.retry_ms)
        return moments

    def onto(
        self, pending: PendingColumns, promised: Mapping[int, int], now_ms: int
    ) -> tuple[PendingColumns, ReservationColumns | None]:
        """The waiting jobs, and what is set aside, as of now; None = as at the beginning."""
        if not self._any:
            return pending, None
        numbers = pending.id.tolist()
        until = [self.kept[number][1] if number in self.kept else 0 for number in numbers]
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
        live = [(number, *self.kept[number]) for number in numbers if number in self.kept]
        rows = [
            {
                "id": gathering_id(number),
                "name": f"gathering for job {number}",
                "starts_ms": min(max(promised.get(number, now_ms), now_ms), until_ms),
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
        return replace(pending, **moved), ReservationColumns(**columns)
