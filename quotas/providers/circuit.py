"""The circuit of a quota provider: left alone for a while after it failed several times, then tried by one process."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Final

import structlog
from django.conf import settings
from django.utils import timezone

from infra.circuits.shared import SharedCircuit
from infra.models import System
from quotas.models import provider_label
from quotas.providers.base import Unreachable

log = structlog.get_logger(__name__)

#: A provider that decides about starts and did not answer is asked again by this process after so long.
AWAY_SECONDS: Final = 5

#: By provider, on the monotonic clock: until when this process leaves it alone, and why.
_left_until: dict[str, tuple[float, str]] = {}


def circuit_of(provider: str) -> SharedCircuit:
    """The circuit of the provider of this name, with the limits that the settings say."""
    return SharedCircuit(
        System.QUOTA,
        provider,
        label=provider_label(provider),
        failures=settings.QUOTA_PROVIDER_FAILURES,
        pause_seconds=settings.QUOTA_PROVIDER_PAUSE_SECONDS,
    )


def left_alone(name: str) -> tuple[str, datetime] | None:
    """Why a provider that decides is not asked now, and until when; None: ask it."""
    until, text = _left_until.get(name, (0.0, ""))
    left = until - time.monotonic()
    if left > 0:
        return text, timezone.now() + timedelta(seconds=left)
    look = circuit_of(name).look()
    if look.open_until is None:
        return None
    return text or "It has not responded several times.", look.open_until


def failed(name: str, error: Unreachable) -> tuple[str, datetime]:
    """Note that it did not answer; why it is left alone now, and until when."""
    text, wait = str(error), max(AWAY_SECONDS, error.retry_after_seconds)
    circuit_of(name).failed(text, retry_after_seconds=error.retry_after_seconds)
    _left_until[name] = time.monotonic() + wait, text
    log.warning("quota_provider_away", provider=name, text=text)
    return text, timezone.now() + timedelta(seconds=wait)


def answered(name: str) -> None:
    """Note that it answered, be it with no."""
    _left_until.pop(name, None)
    circuit_of(name).answered()


def forget_failures() -> None:
    """Let this process ask every provider at once."""
    _left_until.clear()
