"""Charging: the ledger of running attempts: charged by day, held again without a limit, repaired after a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from quotas.core import ledger as core
from quotas.models import DriftKind
from quotas.services.reconcile import Mismatch, record_drift
from scheduler.services.accounting.holds import FOUND, WITHOUT_HOLD, YOUNG, hold_running, lock
from scheduler.state.db.fragments import live_attempts
from scheduler.state.db.sql import run, run_together
from scheduler.state.ledger import ledger

log = structlog.get_logger(__name__)

#: Attempts of one transaction.
BATCH: Final = 200
#: How far back ended attempts are checked: older ones were checked many times.
LOOK_BACK: Final = timedelta(days=2)

_WHOSE: Final = f"""attempt.id, job.number, job.project_id, job.user_id
    FROM {live_attempts()} JOIN scheduler_job job ON job.number = attempt.job_id"""
_ENTRY: Final = """SELECT 1 FROM quotas_ledgerentry entry
    WHERE entry.job_number = job.number AND entry.attempt_id = attempt.id"""
_UNCHARGED: Final = f"""
SELECT {_WHOSE} WHERE attempt.scheduled_at < %s
    AND NOT EXISTS ({_ENTRY} AND entry.kind = 'charge' AND entry.ends_at >= %s)
ORDER BY attempt.id
"""
_RUNNING_OUT: Final = f"""
SELECT {_WHOSE} WHERE EXISTS ({_ENTRY} AND entry.kind = 'hold')
    AND NOT EXISTS ({_ENTRY} AND entry.kind = 'hold' AND entry.ends_at > %s)
ORDER BY attempt.id
"""
_STALE: Final = """
SELECT attempt.id, job.number, job.project_id, job.user_id, attempt.ended_at,
    (SELECT sum(entry.held_seconds) FROM quotas_ledgerentry entry
     WHERE entry.job_number = job.number AND entry.attempt_id = attempt.id)
FROM scheduler_attempt attempt JOIN scheduler_job job ON job.number = attempt.job_id
WHERE NOT attempt.is_live AND attempt.ended_at > %s AND attempt.id = coalesce(%s, attempt.id)
    AND (SELECT sum(entry.held_seconds) FROM quotas_ledgerentry entry
         WHERE entry.job_number = job.number AND entry.attempt_id = attempt.id) > 0
ORDER BY attempt.id
"""


def charge_running(*, now: datetime | None = None) -> int:
    """Charge attempts that run past midnight for the days that are over, so that periods close; answers how many.

    1. The budget periods and the attempts are locked, as where attempts end: one that has ended is left out.
    2. Each is charged until midnight, out of what it holds; the end charges the rest.
    """
    midnight = (now or timezone.now()).replace(hour=0, minute=0, second=0, microsecond=0)
    rows = run(_UNCHARGED, [midnight, midnight])
    return _in_batches(rows, lambda batch: _charge(batch, midnight))


def extend_holds(*, now: datetime | None = None) -> int:
    """Extend the holds of attempts without a time limit before they are used up; answers how many."""
    now = now or timezone.now()
    step = settings.LEDGER_OPEN_HOLD_SECONDS
    rows = run(_RUNNING_OUT, [now + timedelta(seconds=step / 4)])
    until = now + timedelta(seconds=step)
    done = 0
    for row in rows:  # one by one: a budget that is spent stops the hold of one, not of all
        try:
            done += _in_batches([row], lambda batch: _extend(batch, until))
        except IntegrityError:
            log.info("hold_not_extended", job=row[1], why="the budget is used up")
    return done


def heal_ledger(*, now: datetime | None = None) -> int:
    """Repair what a crash or a manual change left: live attempts without a hold, and holds of ended attempts.

    Without a hold are also those on which a budget began to count as they started: a project that has moved.
    """
    now = now or timezone.now()
    without = run(WITHOUT_HOLD.format(before="%s"), [now - YOUNG])
    healed = _in_batches(without, lambda batch: hold_running(batch, now=now, drift=True))
    for attempt_id, number, project_id, user_id, ended_at, _ in run(_STALE, [now - LOOK_BACK, None]):
        with transaction.atomic():
            lock([attempt_id])
            still = run(_STALE, [now - LOOK_BACK, attempt_id])
            if not still:
                continue  # another process has repaired it meanwhile
            seconds = int(still[0][-1])
            whose = ledger.Ending(attempt_id, number, project_id, user_id)
            lines, books = ledger.charges([whose], at=ended_at)
            if not lines:
                continue
            run_together(*ledger.write([line._replace(reason=FOUND) for line in lines], books, at=now))
            record_drift(
                [Mismatch(DriftKind.STALE_HOLD, f"job {number}: seconds held after the end", seconds, 0, project_id)],
                reason=FOUND, repaired=True,
            )  # fmt: skip
            healed += 1
    return healed


def _in_batches(rows: Sequence[Any], write: Callable[[Sequence[Any]], int]) -> int:
    done = 0
    for first in range(0, len(rows), BATCH):
        with transaction.atomic():
            done += write(_still_live(rows[first : first + BATCH]))
    return done


def _still_live(rows: Sequence[Any]) -> list[Any]:
    """Lock what settling would lock, and answer the attempts that are still live."""
    still = lock([row[0] for row in rows])
    return [row for row in rows if row[0] in still]


def _charge(rows: Sequence[Any], until: datetime) -> int:
    if not rows:
        return 0
    endings = [ledger.Ending(attempt, number, project, user) for attempt, number, project, user in rows]
    lines, books = ledger.charges(endings, at=until, final=False)
    statements = ledger.write(lines, books, at=timezone.now())
    if statements:
        run_together(*statements)
    return len(rows)


def _extend(rows: Sequence[Any], until: datetime) -> int:
    if not rows:
        return 0
    endings = [ledger.Ending(attempt, number, project, user) for attempt, number, project, user in rows]
    accounts = ledger.read(endings)
    books = accounts.books
    until_s = int(until.timestamp())
    lines = []
    for e in endings:
        own = accounts.entries[e.attempt_id]
        begin_s = min(entry.from_s for entry in own)  # the last extension may be days ago
        cuts = {edge for terms in books.of(e.project_id) for edge in terms.cuts(begin_s, until_s)}
        for entry in core.more_hold(own, until_s=until_s, cuts=cuts, prices=books.prices):
            lines.append(ledger.Line(e.project_id, e.user_id, e.job_number, e.attempt_id, entry))
    statements = ledger.write(lines, books, at=timezone.now())
    if statements:
        run_together(*statements)
    return len(rows)
