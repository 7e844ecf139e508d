"""What ended attempts are charged in the ledger, and what they are refunded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.conf import settings

from scheduler.core.lifecycle import AttemptState, StopReason
from scheduler.state.db.sql import Statement
from scheduler.state.ledger import ledger
from scheduler.state.ledger.ledger import Accounts
from scheduler.state.settle.element_charges import EndedElementRow, by_element
from scheduler.state.settle.locked_attempts import AttemptRow
from scheduler.state.settle.outcomes import Outcome


def ending_of(outcome: Outcome) -> ledger.Ending:
    """What is charged, and what is forgiven by the rule of the site (LEDGER_FORGIVES)."""
    attempt, verdict = outcome.attempt, outcome.verdict
    forgiven = ""
    if verdict.attempt is AttemptState.LOST and "lost" in settings.LEDGER_FORGIVES:
        forgiven = f"lost: {verdict.text}"
    elif (
        attempt.stop_reason == StopReason.PREEMPTED
        and verdict.retry_seconds is not None
        and "preempted" in settings.LEDGER_FORGIVES
    ):
        forgiven = "stopped for another job"
    return ledger.Ending(attempt.id, attempt.number, attempt.project_id, attempt.user_id, forgiven)


def charge_statements(
    attempts: Sequence[AttemptRow],
    endings: Sequence[ledger.Ending],
    accounts: Accounts,
    elements: Sequence[EndedElementRow],
    *,
    at: datetime,
) -> list[Statement]:
    """What writes the use of each attempt into the ledger; `accounts` are of all of them."""
    known = accounts.books
    lines = by_element(ledger.charged(endings, accounts, at=at), elements)
    suspended = {a.id for a in attempts if a.was_suspended}
    if suspended:
        some = [ending for ending in endings if ending.attempt_id in suspended and not ending.forgiven]
        lines += ledger.given_back_suspended(some, known, at=at)
    smaller = {a.id for a in attempts if a.may_go_on_smaller}
    if smaller:
        some = [ending for ending in endings if ending.attempt_id in smaller and not ending.forgiven]
        lines += ledger.given_back_early(some, known, at=at)
    return ledger.write(lines, known, at=at)
