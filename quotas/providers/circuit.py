"""Leaves a provider alone for a while after it failed several times, and then lets one process try."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F
from django.utils import timezone

from quotas.models import ProviderCircuit


def may_ask(provider: str) -> datetime | None:
    """None when it may be asked now, else until when not.

    Once the pause is over, one caller is let through; it moves the end on by compare-and-set, so that all
    others go on waiting until it has come back, or died.
    """
    circuit = ProviderCircuit.objects.filter(pk=provider).first()
    if circuit is None or circuit.open_until is None:
        return None
    now = timezone.now()
    if circuit.open_until > now:
        return circuit.open_until
    taken = ProviderCircuit.objects.filter(pk=provider, open_until=circuit.open_until).update(
        open_until=now + _pause()
    )
    return None if taken else now + _pause()


def answered(provider: str) -> None:
    """It answered, be it with a refusal: the count starts anew."""
    ProviderCircuit.objects.filter(pk=provider).exclude(failures=0, open_until=None).update(
        failures=0, opened_at=None, open_until=None, text=""
    )


def failed(provider: str, text: str, *, retry_after_seconds: int = 0) -> None:
    """It did not answer; the last of a number of failures in a row opens the circuit."""
    now = timezone.now()
    ProviderCircuit.objects.get_or_create(pk=provider)
    circuit = ProviderCircuit.objects.filter(pk=provider)
    circuit.update(failures=F("failures") + 1, text=text[:500])
    pause = max(_pause(), timedelta(seconds=retry_after_seconds))
    if retry_after_seconds:  # it asked for it
        circuit.update(open_until=now + pause)
    else:
        circuit.filter(failures__gte=settings.QUOTA_PROVIDER_FAILURES).update(open_until=now + pause)
    circuit.filter(open_until__isnull=False, opened_at=None).update(opened_at=now)


def _pause() -> timedelta:
    return timedelta(seconds=settings.QUOTA_PROVIDER_PAUSE_SECONDS)
