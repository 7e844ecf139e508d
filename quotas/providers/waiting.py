"""Whether the jobs of a project wait because its quota is kept by somebody who is away."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings

from quotas.models import ProviderState, ProviderStatus, provider_label

#: In these the provider does not enforce what Muster's lines say, and since when is unknown.
_AWAY = (ProviderStatus.UNREACHABLE, ProviderStatus.REFUSED)


def holding_text(state: ProviderState, *, now: datetime) -> str:
    """Why the project's jobs wait, as one sentence; empty when they do not."""
    if settings.QUOTA_PROVIDER_WHEN_AWAY != "wait" or state.status not in _AWAY:
        return ""
    if state.status == ProviderStatus.UNREACHABLE and state.since > now - _grace():
        return ""
    return away_sentence(state.provider, state.status, state.text)


def away_sentence(provider: str, status: str, text: str) -> str:
    what = "is unreachable" if status == ProviderStatus.UNREACHABLE else "refuses the limits"
    return f"{provider_label(provider)}, the provider of this quota, {what}: {text}"


def _grace() -> timedelta:
    return timedelta(seconds=settings.QUOTA_PROVIDER_GRACE_SECONDS)
