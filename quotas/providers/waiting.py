"""Whether the jobs of a project wait because its quota is kept by somebody who is away."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q, QuerySet

from quotas.models import ProviderState, ProviderStatus

#: In these the provider does not enforce what Muster's lines say, and nobody knows since when.
_AWAY = (ProviderStatus.UNREACHABLE, ProviderStatus.REFUSED)


def away_states(*, now: datetime) -> QuerySet[ProviderState]:
    """States whose projects start nothing now; none where the installation lets jobs run meanwhile."""
    if settings.QUOTA_PROVIDER_WHEN_AWAY != "wait":
        return ProviderState.objects.none()
    refused = Q(status=ProviderStatus.REFUSED)
    late = Q(status=ProviderStatus.UNREACHABLE, since__lte=now - _grace())
    return ProviderState.objects.filter(refused | late)


def holding_text(state: ProviderState, *, now: datetime) -> str:
    """Why the project's jobs wait, as one sentence; empty when they do not."""
    if settings.QUOTA_PROVIDER_WHEN_AWAY != "wait" or state.status not in _AWAY:
        return ""
    if state.status == ProviderStatus.UNREACHABLE and state.since > now - _grace():
        return ""
    return away_sentence(state)


def away_sentence(state: ProviderState) -> str:
    who = state.get_provider_display()
    what = "cannot be reached" if state.status == ProviderStatus.UNREACHABLE else "refuses the limits"
    return f"{who}, which keeps this quota, {what}: {state.text}"


def _grace() -> timedelta:
    return timedelta(seconds=settings.QUOTA_PROVIDER_GRACE_SECONDS)
