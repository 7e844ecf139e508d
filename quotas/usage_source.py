"""The ground truth of the quota counters: what projects hold and queue now, as the scheduler's rows say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Protocol

from django.conf import settings
from django.utils.module_loading import import_string

from quotas.core.ledger import Entry


class UsageSource(Protocol):
    """Counts what projects hold at this moment, by resource.

    `settings.QUOTA_USAGE_SOURCE` names the class: allocations are rows of the scheduler, which quotas must not import.
    """

    def usage(self, project_ids: Iterable[int]) -> Mapping[int, Mapping[str, int]]: ...

    def line_usage(self, line_ids: Iterable[int]) -> Mapping[int, int]:
        """What jobs hold of each of these lines, of all their owners."""
        ...

    def pending_jobs(self, line_ids: Iterable[int]) -> Mapping[int, int]:
        """How many jobs wait that count on each of these lines of pending jobs."""
        ...

    def hold_running(self) -> int:
        """Set aside for all jobs that run and have nothing set aside where a budget counts; answers for how many.

        In the transaction that lets a budget begin to count.
        """
        ...

    def to_hold(self, project_ids: Iterable[int]) -> Iterable[Entry]:
        """What a budget that begins to count now would set aside for what runs in these projects."""
        ...


@lru_cache(maxsize=1)
def usage_source() -> UsageSource:
    """The source that the settings name; one object a process."""
    source: UsageSource = import_string(settings.QUOTA_USAGE_SOURCE)()
    return source
