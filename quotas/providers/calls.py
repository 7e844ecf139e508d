"""Calls of providers that decide about starts: each in a thread of its own, and never longer than its time.

A provider is somebody else's code: it may hang, raise anything and answer nonsense. One that has not come back keeps
its thread and gets no further call from this process until it has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

import structlog
from django.db import connections

from quotas.models import provider_label
from quotas.providers.base import QuotaCheck, QuotaProvider, QuotaStart, Refused, Unreachable
from quotas.providers.registry import deciding_provider

log = structlog.get_logger(__name__)

MOST_TEXT: Final = 300
#: By provider: since when a call is overdue, and its thread.
overdue: dict[str, tuple[float, threading.Thread]] = {}


class Call:
    """One call that has begun; `result` waits for what it answers until its time is over."""

    def __init__(self, name: str, what: Callable[[QuotaProvider], Any], *, seconds: float) -> None:
        """Raises Unreachable where an earlier call has not come back."""
        since, hung = overdue.get(name, (0.0, None))
        if hung is not None and hung.is_alive():
            text = f"A call that began {time.monotonic() - since:.0f} s ago has not returned."
            raise Unreachable(text)
        overdue.pop(name, None)
        self.name, self.seconds = name, seconds
        self._what, self._answer = what, SimpleQueue[tuple[Any, BaseException | None]]()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"quota-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.put((self._what(deciding_provider(self.name)), None))
        except BaseException as error:
            self._answer.put((None, error))
        finally:
            connections.close_all()  # those of this thread, if the provider used any

    def result(self) -> Any:
        """What it answers; raises Refused or Unreachable, and a fault of the provider is Unreachable too."""
        left = self._began + self.seconds - time.monotonic()
        try:
            answer, error = self._answer.get(timeout=max(left, 0.001))
        except Empty:
            overdue[self.name] = self._began, self._thread
            raise Unreachable(f"No answer within {self.seconds:g} s.") from None
        if error is None:
            return answer
        if isinstance(error, (Refused, Unreachable)):
            raise error
        log.error("quota_provider_fault", provider=self.name, exc_info=error)
        raise Unreachable(f"It failed with {type(error).__name__}: {str(error)[:200]}") from error


def check(provider: QuotaProvider, starts: Sequence[QuotaStart]) -> Sequence[Any]:
    """What the provider says about each start: all in one call where it offers that, else one after the other."""
    together = getattr(provider, "check_starts", None)
    return together(starts) if callable(together) else [_check_one(provider, start) for start in starts]


def _check_one(provider: QuotaProvider, start: QuotaStart) -> Any:
    try:
        return provider.check_quota(
            start.project_id, start.resources, start.job_type,
            tasks=start.tasks, user_id=start.user_id, devices=start.devices,
        )  # fmt: skip
    except Refused as refused:
        return QuotaCheck(allowed=False, possible=True, provider_text=str(refused))


def checked(answers: Any, count: int) -> list[QuotaCheck]:
    """An answer for each of this number of starts; raises Unreachable for anything else."""
    if not isinstance(answers, Sequence) or len(answers) != count:
        said = f"{len(answers)} answers" if isinstance(answers, Sequence) else type(answers).__name__
        raise Unreachable(f"It answered {said} to {count} starts.")
    for answer in answers:
        wrong = not isinstance(answer, QuotaCheck) or not (
            isinstance(answer.allowed, bool)
            and isinstance(answer.possible, bool)
            and isinstance(answer.provider_text, str)
        )
        if wrong:
            raise Unreachable(f"It answered {str(answer)[:80]!r}, which is no QuotaCheck.")
    return list(answers)


def allocate(name: str, start: QuotaStart, *, seconds: float) -> None:
    """Have the provider count an attempt; raises Refused or Unreachable."""
    Call(
        name,
        lambda provider: provider.allocate_quota(
            start.project_id, start.resources, start.job_type,
            tasks=start.tasks, user_id=start.user_id, devices=start.devices, key=start.key,
        ),
        seconds=seconds,
    ).result()  # fmt: skip


def release(name: str, start: QuotaStart, *, seconds: float) -> None:
    """Have the provider forget an attempt; raises Refused or Unreachable."""
    Call(
        name,
        lambda provider: provider.release_quota(
            start.project_id, start.resources, start.job_type,
            tasks=start.tasks, user_id=start.user_id, devices=start.devices, key=start.key,
        ),
        seconds=seconds,
    ).result()  # fmt: skip


def words_of(name: str, check: QuotaCheck) -> str:
    """Why the provider refuses a start, in its own words where it has any."""
    text = " ".join(check.provider_text.replace("\0", "").split())
    if not text and check.shortfalls:
        first = check.shortfalls[0]
        text = f"{first.resource}: {first.needed} needed, {first.used} of {first.hard} in use."
    return f"{provider_label(name)} refuses the start: {text or 'no reason was given.'}"[:MOST_TEXT]
