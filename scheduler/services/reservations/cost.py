"""Cost of a reservation: which waiting jobs start later with it, by the forecast in which jobs run to their limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from django.db import transaction

from accounts.models import User
from scheduler.core.forecast.forecast import Course, RunTimes, play_forward
from scheduler.core.snapshot.snapshot import ReservationColumns, Snapshot
from scheduler.models import Reservation
from scheduler.selectors import visible_jobs
from scheduler.services.planning.cycles import installed_plugins
from scheduler.services.planning.profiles import leaving_out_failing
from scheduler.services.reservations.choose import Held, choose
from scheduler.services.reservations.decide import terms_of
from scheduler.state.load.snapshots import load_snapshot

#: Delayed jobs that are named, those with the longest delay first.
MOST_NAMED: Final = 20
#: Cycles of each of the two futures.
_CYCLES: Final = 150


@dataclass(frozen=True, slots=True)
class Delay:
    """A waiting job that starts later; None = not within the forecast."""

    number: int
    name: str
    before_at: datetime | None
    after_at: datetime | None

    @property
    def seconds(self) -> int | None:
        if self.before_at is None or self.after_at is None:
            return None
        return int((self.after_at - self.before_at).total_seconds())


@dataclass(frozen=True, slots=True)
class Cost:
    """How many waiting jobs are delayed, the first of them, and what would be held."""

    delayed: int
    jobs: tuple[Delay, ...]
    held: Held


def cost_of(*, reservation: Reservation, by: User) -> Cost:
    """What approving a request as it is would cost; raises Conflict where it could not be approved."""
    terms = terms_of(reservation, {}, by)
    with transaction.atomic():
        held = choose(terms.wanted, terms.starts_at, terms.ends_at, by, but=reservation.pk)
    loaded = load_snapshot(cluster_id=terms.wanted.cluster.pk)
    snapshot = loaded.snapshot
    wanted = snapshot.pending.id.tolist()
    row = {
        "id": int(snapshot.reservations.id.max(initial=0)) + 1,
        "name": terms.name,
        "starts_ms": _ms(terms.starts_at),
        "ends_ms": _ms(terms.ends_at),
        "node_ids": tuple(node.pk for node in held.nodes),
        "project_ids": (terms.project.pk,) if terms.project else (),
        "user_ids": tuple(user.pk for user in terms.users),
        "job_ids": (),
        "parts": tuple(
            (part.node_id, part.cpu_millis, part.memory_mib, tuple(part.device_ids)) for part in held.parts
        ),
        "magnetic": terms.magnetic,
    }

    def starts(of: Snapshot) -> dict[int, int]:
        return leaving_out_failing(
            loaded,
            lambda left: play_forward(
                of,
                left.policy,
                RunTimes(),
                Course.LIMITS,
                wanted,
                most_cycles=_CYCLES,
                plugins=installed_plugins(),
            ),
        ).started_ms

    before, after = starts(snapshot), starts(_with(snapshot, row))
    later = [
        number
        for number in wanted
        if number in before and (number not in after or after[number] > before[number])
    ]
    later.sort(key=lambda number: (before[number] - after.get(number, 1 << 62), number))
    seen = dict(visible_jobs(by).filter(number__in=later[:MOST_NAMED]).values_list("number", "name"))
    jobs = tuple(
        Delay(number, seen[number], _at(before[number]), _at(after.get(number)))
        for number in later[:MOST_NAMED]
        if number in seen
    )
    return Cost(len(later), jobs, held)


def _with(snapshot: Snapshot, row: dict[str, Any]) -> Snapshot:
    old = snapshot.reservations
    columns = {name: (*getattr(old, name), value) for name, value in row.items()}
    return replace(snapshot, reservations=ReservationColumns.from_columns(**columns))


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _at(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
