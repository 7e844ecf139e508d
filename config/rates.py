"""Buckets of requests that refill: one for all web processes in Redis, one of each process while that is away."""

from __future__ import annotations

import time
from typing import Any, Final

from django.conf import settings
from django.core.cache import cache
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from accounts.models import ApiToken


class OwnBuckets:
    """What this process counts by itself."""

    MOST_KEPT: Final = 10_000

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str, *, rate: float, burst: int) -> float:
        """Take one; answers 0, or for how many seconds there is none."""
        now = time.monotonic()
        left, at = self._buckets.get(key, (float(burst), now))
        left = min(float(burst), left + (now - at) * rate)
        if len(self._buckets) > self.MOST_KEPT:
            self._buckets.clear()
        if left < 1:
            self._buckets[key] = (left, now)
            return (1 - left) / rate
        self._buckets[key] = (left - 1, now)
        return 0.0

    def clear(self) -> None:
        self._buckets.clear()


class Throttle(BaseThrottle):
    """A bucket of MUSTER_API_BURST requests that refills with MUSTER_API_RATE a second, per token or person.

    It keeps one caller from starving the others, and needs no answer from Redis to say yes.
    """

    own = OwnBuckets()
    _wait_seconds = 0.0

    def allow_request(self, request: Request, view: Any) -> bool:
        rate, burst = settings.MUSTER_API_RATE, settings.MUSTER_API_BURST
        if not rate:
            return True
        key = _caller(request)
        wait = cache.take(f"rate:{key}", rate=rate, burst=burst)
        self._wait_seconds = self.own.take(key, rate=rate, burst=burst) if wait is None else wait
        return self._wait_seconds == 0

    def wait(self) -> float:
        return self._wait_seconds


def _caller(request: Request) -> str:
    if isinstance(request.auth, ApiToken):
        return f"token:{request.auth.pk}"
    if request.user and request.user.is_authenticated:
        return f"user:{request.user.pk}"
    return f"address:{request.META.get('REMOTE_ADDR', '')}"
