"""How things stand with a quota that a provider outside Muster keeps or decides about, in words: for pages, the API and
the admin alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from quotas.core.external_limits import MEMBER
from quotas.models import Provider, ProviderState, ProviderStatus, provider_label
from quotas.providers.registry import decides, provider
from quotas.providers.waiting import holding_text


@dataclass(frozen=True, slots=True)
class ShownDifference:
    """One limit that is not the same here and there, in the provider's words."""

    key: str
    here: str
    there: str


@dataclass(frozen=True, slots=True)
class ProviderView:
    provider: str
    label: str
    status: str
    #: Of the status: `in step`, `cannot be reached`.
    words: str
    text: str
    since: datetime
    synced_at: datetime | None
    written_at: datetime | None
    next_try_at: datetime | None
    differences: tuple[ShownDifference, ...]
    used: dict[str, str]
    left_out: tuple[str, ...]
    facts: dict[str, Any]
    #: True: no job of the project starts until the provider responds.
    jobs_wait: bool
    #: True: it is asked about each start; False: it keeps a copy of the limits.
    decides: bool = False

    @property
    def tone(self) -> str:
        if self.status == ProviderStatus.OK:
            return "running"
        return "failed" if self.status in (ProviderStatus.REFUSED, ProviderStatus.UNREACHABLE) else "pending"

    @property
    def sentence(self) -> str:
        """What it means for those who have the quota."""
        after = " Jobs of this project wait until the provider responds." if self.jobs_wait else ""
        match self.status:
            case ProviderStatus.OK if self.decides:
                return f"{self.label} is asked about each start, and answers."
            case ProviderStatus.OK:
                return f"{self.label} has the same limits."
            case ProviderStatus.PENDING:
                return f"A change is being sent to {self.label}."
            case ProviderStatus.DRIFT:
                return "Muster enforces its own limits; those at the provider stay until an operator decides."
            case ProviderStatus.OFF:
                return self.text
            case ProviderStatus.REFUSED:
                return f"{self.label} refuses: {self.text}{after}"
            case _:
                return f"{self.label} is unreachable: {self.text}{after}"


def provider_views(project_ids: Iterable[int]) -> dict[int, ProviderView]:
    """For each project whose quota is kept outside; one query, and nobody outside is asked."""
    rows = ProviderState.objects.filter(project_id__in=list(project_ids))
    return {state.project_id: view_of(state) for state in rows}


def view_of(state: ProviderState) -> ProviderView:
    if decides(state.provider) or state.provider not in Provider.values:
        return _of_decider(state)
    show = provider(state.provider).show  # type: ignore[attr-defined]
    keys = sorted(state.wanted.keys() | state.found.keys())
    compared = state.synced_at is not None and state.status != ProviderStatus.OFF
    return ProviderView(
        provider=state.provider,
        label=provider_label(state.provider),
        status=state.status,
        words=str(ProviderStatus(state.status).label),
        text=state.text,
        since=state.since,
        synced_at=state.synced_at,
        written_at=state.written_at,
        next_try_at=state.next_try_at,
        differences=tuple(
            ShownDifference(key, show(key, state.wanted.get(key)), show(key, state.found.get(key)))
            for key in keys
            if compared and state.wanted.get(key) != state.found.get(key)
        ),
        used={
            key: show(key, value) for key, value in sorted(state.used.items()) if not key.startswith(MEMBER)
        },
        left_out=tuple(state.left_out),
        facts=dict(state.facts),
        jobs_wait=bool(holding_text(state, now=timezone.now())),
    )


def _of_decider(state: ProviderState) -> ProviderView:
    """Of one that decides about starts: whether it answers."""
    away = state.status == ProviderStatus.UNREACHABLE
    return ProviderView(
        provider=state.provider,
        label=provider_label(state.provider),
        status=state.status,
        words=str(ProviderStatus(state.status).label) if away else "responds",
        text=state.text,
        since=state.since,
        synced_at=state.synced_at,
        written_at=None,
        next_try_at=state.next_try_at,
        differences=(),
        used={},
        left_out=(),
        facts={},
        jobs_wait=away and settings.QUOTA_PROVIDER_WHEN_AWAY == "wait",
        decides=True,
    )
