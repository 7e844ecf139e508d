"""Buckets of requests that refill: one for all web processes in Redis, one of each process while that is away.

A process takes a few at a time from the bucket they share, so that not every request has to ask. It never lets
through more than it took; what it has left when a caller falls silent it still has later. So all processes
together let through what the bucket holds and at most one lot each beside it.
"""

from __future__ import annotations

import math
import time
from threading import Lock
from typing import Any, Final

from django.conf import settings
from django.core.cache import cache
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from accounts.models import ApiToken
from config.http.answers import RATE_HEADERS
from infra import client_address


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

    def left(self, key: str) -> int:
        return int(self._buckets.get(key, (0.0, 0.0))[0])

    def clear(self) -> None:
        self._buckets.clear()


class Lots:
    """What this process took from the shared buckets and has not used yet."""

    MOST_KEPT: Final = 10_000

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        #: What the shared bucket had left when it was asked last.
        self._shared: dict[str, int] = {}
        self._lock = Lock()

    def take(self, key: str) -> bool:
        with self._lock:
            left = self._left.get(key, 0)
            if left:
                self._left[key] = left - 1
            return left > 0

    def put(self, key: str, count: int, *, shared: int) -> None:
        """Keep `count` more; the bucket has `shared` left."""
        with self._lock:
            if len(self._left) > self.MOST_KEPT:
                self._left.clear()
                self._shared.clear()
            self._left[key] = self._left.get(key, 0) + count
            self._shared[key] = shared

    def left(self, key: str) -> int | None:
        """What this process and the bucket had when it was asked last, less what was used here since; None: unknown."""
        shared = self._shared.get(key)
        return None if shared is None else shared + self._left.get(key, 0)


#: A lot is what refills in this time, and no more than such a part of a full bucket.
LOT_SECONDS: Final = 0.04
LOT_OF_BURST: Final = 50


def lot_size(rate: float, burst: int) -> int:
    """How many a process takes at a time: one where the limit is small enough to be counted one by one."""
    return max(1, min(int(rate * LOT_SECONDS), burst // LOT_OF_BURST))


class Throttle(BaseThrottle):
    """A bucket of MUSTER_API_BURST requests that refills with MUSTER_API_RATE a second, per token or person.

    It keeps one caller from starving the others, and needs no answer from Redis to say yes.
    """

    own = OwnBuckets()
    lots = Lots()
    _wait_seconds = 0.0

    def allow_request(self, request: Request, view: Any) -> bool:
        key = _caller(request)
        self._wait_seconds = self.wait_of(key)
        setattr(getattr(request, "_request", request), RATE_HEADERS, self.headers_of(key))
        return not self._wait_seconds

    @classmethod
    def wait_of(cls, key: str) -> float:
        """Take one request of this caller: 0, or for how many seconds there is none."""
        rate, burst = settings.MUSTER_API_RATE, settings.MUSTER_API_BURST
        if not rate or cls.lots.take(key):
            return 0.0
        answer = cache.take(  # type: ignore[attr-defined]  # config.cache.QuietRedisCache
            f"rate:{key}", rate=rate, burst=burst, most=lot_size(rate, burst)
        )
        if answer is None:
            return cls.own.take(key, rate=rate, burst=burst)
        taken, wait, shared = answer
        cls.lots.put(key, max(0, taken - 1), shared=shared)
        return 0.0 if taken > 0 else max(wait, 0.001)

    @classmethod
    def headers_of(cls, key: str) -> dict[str, str]:
        """`RateLimit` and its policy, as in the IETF's draft-ietf-httpapi-ratelimit-headers-10; none without a limit.

        `q` requests are in a full bucket, which fills in `w` seconds; `r` are left, and after `t` seconds it is full.
        """
        rate, burst = settings.MUSTER_API_RATE, settings.MUSTER_API_BURST
        if not rate:
            return {}
        left = cls.lots.left(key)
        left = min(burst, cls.own.left(key) if left is None else left)
        return {
            "RateLimit-Policy": f'"default";q={burst};w={max(1, math.ceil(burst / rate))}',
            "RateLimit": f'"default";r={left};t={math.ceil((burst - left) / rate)}',
        }

    def wait(self) -> float:
        return self._wait_seconds


def _caller(request: Request) -> str:
    if isinstance(request.auth, ApiToken):
        return f"token:{request.auth.pk}"
    if request.user and request.user.is_authenticated:
        return f"user:{request.user.pk}"
    caller = client_address.of_request(getattr(request, "_request", request))
    return f"address:{caller.address}"
