"""Usage audit: what each attempt was charged against what its allocations held, to the second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.db import transaction
from django.utils import timezone

from accounts.services import audit
from quotas.core import ledger as core
from quotas.core.ledger import Entry, Kind
from quotas.core.pricing import Price, Rates
from quotas.models import DriftKind
from quotas.services.reconcile import Mismatch, record_drift
from scheduler.core.lifecycle import LIVE_ATTEMPT
from scheduler.state.db.sql import int_array, run, run_together
from scheduler.state.ledger import ledger
from scheduler.state.settle.locked_attempts import LOCK_JOBS

#: How far back ended attempts are checked; the thorough check goes as far back as lines are kept.
LOOK_BACK: Final = timedelta(days=2)
THOROUGH: Final = timedelta(days=35)
#: An attempt that ended just now may still be being written.
YOUNG: Final = timedelta(seconds=30)
#: Attempts of one transaction.
BATCH: Final = 100
REASON: Final = "found by the reconciler: its allocations held something else"
RESOURCES: Final = ("cpu_millis", "memory_mib", "gpu_millis", "storage_mib")

_LIVE: Final = sorted(state.value for state in LIVE_ATTEMPT)
#: Without the CPUs that were released while the attempt was suspended.
_TIMES: Final = {"cpu_millis": "(cpu_millis + suspended_cpu_millis) * (seconds - still_seconds)"}
_HELD: Final = ", ".join(
    f"coalesce(sum({_TIMES.get(name, f'{name} * seconds')}), 0)::bigint AS {name}" for name in RESOURCES
)
_CHARGED: Final = ", ".join(
    f"coalesce(sum({name} * charged_seconds), 0)::bigint AS {name}" for name in RESOURCES
)
_DIFFERS: Final = " OR ".join(
    f"charged.{name} <> CASE WHEN charged.forgiven THEN 0 ELSE held.{name} END" for name in RESOURCES
)
#: Attempts that ended and were not charged what they held; what was forgiven has to come to nothing.
_WRONG: Final = f"""
SELECT attempt.id, job.number, job.project_id, job.user_id, attempt.ended_at, charged.forgiven, charged.micros,
    {", ".join(f"held.{name}" for name in RESOURCES)}, {", ".join(f"charged.{name}" for name in RESOURCES)}
FROM scheduler_attempt attempt JOIN scheduler_job job ON job.number = attempt.job_id
    CROSS JOIN LATERAL (
        SELECT {_HELD}, coalesce(bool_or(released_at IS NULL), false) AS open
        FROM (
            SELECT *, (floor(extract(epoch FROM released_at)) - floor(extract(epoch FROM held_at)))::bigint AS seconds,
                coalesce((
                    SELECT sum(floor(extract(epoch FROM least(coalesce(ends_at, released_at), released_at)))
                        - floor(extract(epoch FROM greatest(starts_at, held_at))))::bigint
                    FROM scheduler_suspension still
                    WHERE still.attempt_id = attempt.id AND starts_at < released_at
                        AND coalesce(ends_at, released_at) > held_at
                ), 0) AS still_seconds
            FROM scheduler_allocation WHERE attempt_id = attempt.id
        ) each
    ) held CROSS JOIN LATERAL (
        SELECT {_CHARGED}, coalesce(sum(charged_micros), 0)::bigint AS micros, coalesce(bool_or(
            kind = 'refund' AND charged_seconds < 0 AND reason <> ALL(%s)
        ), false) AS forgiven
        FROM quotas_ledgerentry WHERE job_number = job.number AND attempt_id = attempt.id
    ) charged
WHERE NOT attempt.state = ANY(%s) AND attempt.ended_at > %s AND attempt.ended_at < %s
    AND (%s OR attempt.id = ANY(%s::bigint[])) AND NOT held.open AND ({_DIFFERS})
ORDER BY attempt.id
"""  # noqa: S608  names of columns of ours
#: GPU time by model, as it was held and as it was charged.
_BY_MODEL: Final = """
SELECT model, sum(held)::bigint, sum(charged)::bigint FROM (
    SELECT device.model, each.gpu_millis / cardinality(each.device_ids)
        * (floor(extract(epoch FROM each.released_at)) - floor(extract(epoch FROM each.held_at))) AS held,
        0 AS charged
    FROM scheduler_allocation each CROSS JOIN LATERAL unnest(each.device_ids) AS one(id)
        JOIN scheduler_device device ON device.id = one.id
    WHERE each.attempt_id = %s
    UNION ALL
    SELECT gpu_model, 0, gpu_millis * charged_seconds FROM quotas_ledgerentry
    WHERE job_number = %s AND attempt_id = %s AND gpu_millis <> 0
) side GROUP BY model ORDER BY model
"""


class Wrong(NamedTuple):
    """An attempt, what was charged for it in all, and what its allocations held; amounts times seconds."""

    attempt_id: int
    job_number: int
    project_id: int
    user_id: int
    ended_at: datetime
    forgiven: bool
    micros: int
    held: tuple[int, ...]
    charged: tuple[int, ...]

    @property
    def due(self) -> tuple[int, ...]:
        return tuple(0 for _ in self.held) if self.forgiven else self.held

    @property
    def whose(self) -> tuple[int, int, int, int]:
        return (self.project_id, self.user_id, self.job_number, self.attempt_id)


def check_usage(*, now: datetime | None = None, back: timedelta = LOOK_BACK) -> int:
    """Correct ended attempts that were not charged what they held; answers how many.

    1. Without locks: nearly all are right. 2. Under the locks that settling takes, again. 3. An adjust line for
    what differs, in the period in which the attempt ended; a finding, and an entry of the trail. Money is what the
    held time costs at the prices of that time.
    """
    now = now or timezone.now()
    seen = [row.attempt_id for row in _wrong(now - back, now - YOUNG)]
    done = 0
    for first in range(0, len(seen), BATCH):
        with transaction.atomic():
            done += _correct(seen[first : first + BATCH], now - back, now)
    return done


def _wrong(since: datetime, until: datetime, only: Sequence[int] | None = None) -> list[Wrong]:
    words = [list(ledger.GIVEN_BACK), _LIVE, since, until, only is None, int_array(only or ())]
    count = len(RESOURCES)
    return [
        Wrong._make((*row[:7], tuple(row[7 : 7 + count]), tuple(row[7 + count :])))
        for row in run(_WRONG, words)
    ]


def _correct(ids: Sequence[int], since: datetime, now: datetime) -> int:
    ledger.lock_periods(ids)
    run(LOCK_JOBS, [int_array(ids)])
    found = _wrong(since, now, ids)
    if not found:
        return 0
    endings = [ledger.Ending(w.attempt_id, w.job_number, w.project_id, w.user_id) for w in found]
    books = ledger.read(endings).books
    rates = ledger.rates_held([w.attempt_id for w in found])
    lines = [
        ledger.Line(*wrong.whose, entry, REASON)
        for wrong in found
        for entry in _adjusts(wrong, *rates.get(wrong.attempt_id, ([], wrong.ended_at, 0))[:2], books)
    ]
    run_together(*ledger.write(lines, books, at=now))
    record_drift(list(_mismatches(found)), reason=REASON, repaired=True)
    for wrong in found:
        audit.record(
            by=None, action="ledger.repair", thing=audit.Thing("job", str(wrong.job_number), f"job {wrong.job_number}"),
            before=dict(zip(RESOURCES, wrong.charged, strict=True)),
            after=dict(zip(RESOURCES, wrong.due, strict=True)), reason=REASON,
        )  # fmt: skip
    return len(found)


def _adjusts(wrong: Wrong, rates: Sequence[Rates], held_at: datetime, books: ledger.Books) -> Iterator[Entry]:
    """Lines that bring the sums to what is due; a single one like the charge where that is enough."""
    at_s = int(wrong.ended_at.timestamp())
    micros = (
        0 if wrong.forgiven else _cost(wrong, rates, int(held_at.timestamp()), at_s, books)
    ) - wrong.micros
    differs = {
        name: due - charged for name, due, charged in zip(RESOURCES, wrong.due, wrong.charged, strict=True)
    }
    if len(rates) == 1:
        amounts = {name: getattr(rates[0], name) for name in RESOURCES}
        seconds = next((differs[name] // amount for name, amount in amounts.items() if amount), 0)
        if all(differs[name] == amount * seconds for name, amount in amounts.items()):
            yield _adjust(rates[0], at_s, seconds, micros)
            return
    for name, seconds in differs.items():
        models = _by_model(wrong) if name == "gpu_millis" and seconds else [("", seconds)]
        for model, part in models:
            if part:
                yield _adjust(Rates(**{name: 1}, gpu_model=model), at_s, part, micros)
                micros = 0


def _adjust(rates: Rates, at_s: int, seconds: int, micros: int) -> Entry:
    return Entry(Kind.ADJUST, rates, at_s, at_s, charged_seconds=seconds, charged_micros=micros)


def _by_model(wrong: Wrong) -> list[tuple[str, int]]:
    rows = run(_BY_MODEL, [wrong.attempt_id, wrong.job_number, wrong.attempt_id])
    return [(model, (0 if wrong.forgiven else held) - charged) for model, held, charged in rows]


def _cost(wrong: Wrong, rates: Sequence[Rates], from_s: int, until_s: int, books: ledger.Books) -> int:
    """What a correct charge for these times would cost."""
    prices: Sequence[Price] = books.prices
    holds = core.hold(rates, at_s=from_s, seconds=max(until_s - from_s, 0), prices=prices)
    lines = core.charge(holds, until_s=until_s, final=True, prices=prices)
    ending = ledger.Ending(wrong.attempt_id, wrong.job_number, wrong.project_id, wrong.user_id)
    back = [
        line.entry
        for give_back in (ledger.given_back_early, ledger.given_back_suspended)
        for line in give_back([ending], books, at=wrong.ended_at)
    ]
    return sum(entry.charged_micros for entry in [*lines, *back])


def _mismatches(found: Sequence[Wrong]) -> Iterator[Mismatch]:
    for wrong in found:
        for name, charged, due in zip(RESOURCES, wrong.charged, wrong.due, strict=True):
            if charged != due:
                subject = f"job {wrong.job_number}: {name} seconds charged"
                yield Mismatch(DriftKind.USAGE, subject, charged, due, wrong.project_id)
