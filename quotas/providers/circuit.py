"""The circuit of a quota provider: left alone for a while after it failed several times, then tried by one process."""

from __future__ import annotations

from django.conf import settings

from infra.circuits.shared import SharedCircuit
from infra.models import System
from quotas.models import Provider


def circuit_of(provider: str) -> SharedCircuit:
    """The circuit of the provider of this name, with the limits that the settings say."""
    return SharedCircuit(
        System.QUOTA,
        provider,
        label=str(Provider(provider).label),
        failures=settings.QUOTA_PROVIDER_FAILURES,
        pause_seconds=settings.QUOTA_PROVIDER_PAUSE_SECONDS,
    )
