"""Ledgers for tests: an attempt's whole life in lines."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import count

from accounts.models import Project, User
from quotas.core import ledger
from quotas.core.pricing import Price, Rates
from quotas.models import LedgerEntry

_numbers = count(1)


def a_life(
    project: Project,
    user: User,
    *,
    began: datetime,
    used: int | None,
    asked: int = 3600,
    gpus: int = 1,
    model: str = "A100",
    prices: tuple[Price, ...] = (),
) -> int:
    """Hold, charge and refund of one attempt that asked for so many seconds; `used` None = it still runs.

    Answers the number of its job.
    """  # fmt: skip
    number = next(_numbers)
    rates = Rates(cpu_millis=4000, memory_mib=8192, gpu_millis=1000 * gpus, gpu_model=model if gpus else "")
    at_s = int(began.timestamp())
    entries = ledger.hold([rates], at_s=at_s, seconds=asked, prices=prices)
    if used is not None:
        entries += ledger.charge(entries, until_s=at_s + used, final=True, prices=prices)
    LedgerEntry.objects.bulk_create(
        LedgerEntry(
            kind=e.kind, project=project, user=user, job_number=number, attempt_id=number,
            gpu_model=e.rates.gpu_model, cpu_millis=e.rates.cpu_millis, memory_mib=e.rates.memory_mib,
            gpu_millis=e.rates.gpu_millis, held_seconds=e.held_seconds, charged_seconds=e.charged_seconds,
            held_micros=e.held_micros, charged_micros=e.charged_micros,
            starts_at=began + timedelta(seconds=e.from_s - at_s), ends_at=began + timedelta(seconds=e.until_s - at_s),
            at=began,
        )
        for e in entries
    )  # fmt: skip
    return number
