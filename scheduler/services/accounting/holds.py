"""Holds of what runs already: a budget that begins to count sets aside what running attempts may still use of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from quotas.core import ledger as core
from quotas.core.ledger import Entry
from quotas.models import DriftKind
from quotas.selectors.budgets import COUNTED_PROJECTS
from quotas.services.reconcile import Mismatch, record_drift
from scheduler.state.db.fragments import live_attempts
from scheduler.state.db.sql import int_array, run, run_together
from scheduler.state.ledger import ledger
from scheduler.state.ledger.ledger import Accounts
from scheduler.state.settle.locked_attempts import LOCK_JOBS

#: An attempt younger than this may have been written just now.
YOUNG: Final = timedelta(seconds=30)
#: Why a hold is there that the start did not write.
BUDGET_BEGAN: Final = "its budget began to count while it ran"
LONGER_LIMIT: Final = "its time limit was made longer"
FOUND: Final = "found by the reconciler"

_LIVE: Final = f"""
SELECT attempt.id, job.number, job.project_id, job.user_id,
    attempt.scheduled_at > counted.since + interval '1 minute' AS was_there
FROM {live_attempts()} JOIN scheduler_job job ON job.number = attempt.job_id
    JOIN counted ON counted.project_id = job.project_id
WHERE attempt.scheduled_at < {{before}} AND NOT EXISTS (
    SELECT 1 FROM quotas_ledgerentry entry
    WHERE entry.job_number = job.number AND entry.attempt_id = attempt.id AND entry.kind = 'hold')
ORDER BY attempt.id
"""  # noqa: S608  a constant of ours
#: Live attempts on which a budget counts and that have nothing set aside; last, whether the budget was there before.
WITHOUT_HOLD: Final = COUNTED_PROJECTS + _LIVE
_RUNNING_IN: Final = f"""
SELECT attempt.id, job.number, job.project_id, job.user_id
FROM {live_attempts()} JOIN scheduler_job job ON job.number = attempt.job_id
WHERE job.project_id = ANY(%s::bigint[])
"""  # noqa: S608  a constant of ours


def hold_running(rows: Sequence[Any], *, now: datetime, drift: bool) -> int:
    """Set aside for these attempts, whose jobs are locked, until their time limit; answers for how many.

    A budget that is spent does not refuse: refusing would not stop them. With `drift`, those that began when the
    budget was there are findings.
    """
    endings = [ledger.Ending(*row[:4]) for row in rows]
    if not endings:
        return 0
    accounts = ledger.read(endings)
    lines, found = [], []
    for ending, row in zip(endings, rows, strict=True):
        missed = drift and bool(row[4])
        entries = _hold_of(ending, accounts, now)
        whose = (ending.project_id, ending.user_id, ending.job_number, ending.attempt_id)
        lines += [ledger.Line(*whose, entry, FOUND if missed else BUDGET_BEGAN) for entry in entries]
        if missed and entries:
            seconds = entries[-1].until_s - entries[0].from_s
            subject = f"job {ending.job_number}: seconds reserved"
            found.append(Mismatch(DriftKind.MISSING_HOLD, subject, 0, seconds, ending.project_id))
    statements = ledger.write(lines, accounts.books, at=now)
    if statements:
        with ledger.whatever_is_so():
            run_together(*statements)
    record_drift(found, reason=FOUND, repaired=True)
    return len({line.attempt_id for line in lines})


def hold_longer(ending: ledger.Ending, *, now: datetime) -> None:
    """Set aside more for a running attempt whose job got a longer time limit, where something was set aside for it.

    Raises IntegrityError where a budget has too little left. What a shorter limit leaves is given back at the end.
    """
    accounts = ledger.read([ending])
    own, held = accounts.entries.get(ending.attempt_id, []), accounts.runs.get(ending.attempt_id)
    if held is None or not core.is_set_aside(own):
        return
    until_s = held.limit_s or int(now.timestamp()) + settings.LEDGER_OPEN_HOLD_SECONDS
    begin_s = min(entry.from_s for entry in own)
    cuts = {edge for terms in accounts.books.of(ending.project_id) for edge in terms.cuts(begin_s, until_s)}
    more = core.more_hold(own, until_s=until_s, cuts=cuts, prices=accounts.books.prices)
    lines = [
        ledger.Line(
            ending.project_id, ending.user_id, ending.job_number, ending.attempt_id, entry, LONGER_LIMIT
        )
        for entry in more
    ]
    if statements := ledger.write(lines, accounts.books, at=now):
        run_together(*statements)


def hold_all_running(*, now: datetime | None = None) -> int:
    """The same for all that run and have nothing set aside, in the transaction that lets a budget begin to count."""
    now = now or timezone.now()
    rows = run(WITHOUT_HOLD.format(before="%s"), [now])
    still = lock([row[0] for row in rows])
    return hold_running([row for row in rows if row[0] in still], now=now, drift=False)


def lock(attempt_ids: Sequence[int]) -> set[int]:
    """Lock budget periods, then the jobs, so that other writers of their lines wait. Answers those that live."""
    ledger.lock_periods(attempt_ids)
    ids = int_array(attempt_ids)
    run(LOCK_JOBS, [ids])
    return {
        row[0]
        for row in run("SELECT id FROM scheduler_attempt WHERE id = ANY(%s::bigint[]) AND is_live", [ids])
    }


def to_hold(project_ids: Iterable[int], *, now: datetime | None = None) -> list[Entry]:
    """What a new budget would set aside for what runs in these projects and has nothing set aside."""
    now = now or timezone.now()
    endings = [ledger.Ending(*row) for row in run(_RUNNING_IN, [int_array(project_ids)])]
    if not endings:
        return []
    accounts = ledger.read(endings)
    return [
        entry
        for ending in endings
        if not core.is_set_aside(accounts.entries.get(ending.attempt_id, ()))
        for entry in _hold_of(ending, accounts, now)
    ]


def _hold_of(ending: ledger.Ending, accounts: Accounts, now: datetime) -> list[Entry]:
    """From what it holds, since it was charged last, until its time limit; for some time where it has none."""
    held: Mapping[int, core.Run] = accounts.runs
    one = held.get(ending.attempt_id)
    if one is None:
        return []
    charges = [entry.until_s for entry in accounts.entries.get(ending.attempt_id, ())]
    begin_s, now_s = max([one.from_s, *charges]), int(now.timestamp())
    until_s = (
        one.limit_s if one.limit_s and one.limit_s > now_s else now_s + settings.LEDGER_OPEN_HOLD_SECONDS
    )
    cuts = {edge for terms in accounts.books.of(ending.project_id) for edge in terms.cuts(begin_s, until_s)}
    return core.hold(
        one.rates, at_s=begin_s, seconds=until_s - begin_s, cuts=cuts, prices=accounts.books.prices
    )
