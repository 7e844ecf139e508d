"""Tells providers that decide about starts of attempts that began and ended; each call may be repeated."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import structlog
from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from quotas import outbox
from quotas.models import AllocationState, ProviderAllocation, RefusedStart, named_providers
from quotas.providers import calls
from quotas.providers.allocations import start_of
from quotas.providers.base import Refused, Unreachable
from quotas.providers.circuit import answered, failed, left_alone

log = structlog.get_logger(__name__)

#: A process that takes a row and dies is followed by another after so long, beside the timeout of the call.
CLAIM_SECONDS: Final = 30
#: One run ends after so long; the next goes on.
RUN_SECONDS: Final = 30.0
#: A call that failed is repeated after so long, twice as long each time.
FIRST_RETRY_SECONDS: Final = 5
LONGEST_RETRY_SECONDS: Final = 300

#: Of those whose call is due the first; the worker that takes it has it for a while.
_CLAIM: Final = """
UPDATE quotas_providerallocation SET tries = tries + 1,
    next_try_at = clock_timestamp() + make_interval(secs => %s)
WHERE attempt_id = (SELECT attempt_id FROM quotas_providerallocation
    WHERE next_try_at <= clock_timestamp() AND provider = ANY(%s::text[])
    ORDER BY next_try_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING attempt_id, provider, project_id, state, start::text, tries, ended_at
"""


class Claimed(NamedTuple):
    """An allocation whose next call this process makes."""

    attempt_id: int
    provider: str
    project_id: int
    state: str
    start: str
    tries: int
    ended_at: datetime | None


def tell_due() -> int:
    """Make every call that is due, one after the other; answers how many were made. Outside any transaction.

    A provider that is away is left out for the rest of the run: its rows stay due.
    """
    until, sent, away = time.monotonic() + RUN_SECONDS, 0, set[str]()
    while time.monotonic() < until:
        away |= {name for name in named_providers() if name not in away and left_alone(name)}
        claimed = _claim(away)
        if claimed is None:
            break
        sent += 1
        try:
            _tell(claimed)
        except Unreachable as error:
            away.add(claimed.provider)
            failed(claimed.provider, error)
            _retry_later(claimed, str(error))
    return sent


def _claim(away: Collection[str]) -> Claimed | None:
    names = [name for name in named_providers() if name not in away]
    if not names:
        return None
    seconds = settings.QUOTA_PROVIDER_TIMEOUT_SECONDS + CLAIM_SECONDS
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, [seconds, names])
        row = cursor.fetchone()
    return Claimed(*row) if row else None


def _tell(row: Claimed) -> None:
    """Make one call and write down what came of it; raises Unreachable, and nothing was written."""
    start, seconds = start_of(row.attempt_id, json.loads(row.start)), settings.QUOTA_PROVIDER_TIMEOUT_SECONDS
    if row.ended_at is not None:
        # Also what was never allocated as far as we know: a process may have died after the call.
        try:
            calls.release(row.provider, start, seconds=seconds)
        except Refused as refused:
            raise Unreachable(f"It refuses to release: {refused}") from refused
        answered(row.provider)
        _released(row)
        return
    try:
        calls.allocate(row.provider, start, seconds=seconds)
    except Refused as refused:
        _write(row, AllocationState.REFUSED, text=str(refused)[:300])
        log.info("quota_provider_refused", provider=row.provider, attempt=row.attempt_id, text=str(refused))
    else:
        _write(row, AllocationState.HELD, text="")
    answered(row.provider)


def _write(row: Claimed, state: AllocationState, *, text: str) -> None:
    """From asked to what was answered; where the attempt has ended by then, what is held is to be released."""
    with transaction.atomic():
        found = (
            ProviderAllocation.objects.select_for_update()
            .filter(attempt_id=row.attempt_id, state=AllocationState.ASKED)
            .first()
        )
        if found is None:
            return
        now = timezone.now()
        again = now if state == AllocationState.HELD and found.ended_at is not None else None
        ProviderAllocation.objects.filter(pk=found.pk).update(
            state=state, text=text, answered_at=now, tries=0, next_try_at=again
        )


def _released(row: Claimed) -> None:
    """It is free there: jobs that were refused for this project are asked about again at once."""
    now = timezone.now()
    with transaction.atomic():
        done = ProviderAllocation.objects.filter(
            attempt_id=row.attempt_id, state__in=[AllocationState.ASKED, AllocationState.HELD]
        ).update(state=AllocationState.RELEASED, text="", released_at=now, next_try_at=None)
        waiting = RefusedStart.objects.filter(
            project_id=row.project_id, provider=row.provider, possible=True, until__gt=now, refused_at__lt=now
        ).update(until=now)
        if done and waiting:
            outbox.wake_planners()


def _retry_later(row: Claimed, text: str) -> None:
    wait = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(max(row.tries - 1, 0), 10))
    changes: dict[str, Any] = {"text": text[:300], "next_try_at": timezone.now() + timedelta(seconds=wait)}
    ProviderAllocation.objects.filter(
        attempt_id=row.attempt_id, state__in=[AllocationState.ASKED, AllocationState.HELD]
    ).exclude(next_try_at=None).update(**changes)
