"""What asks a planner for a cycle: hints on a channel of Redis, and where there is none, the clock more often."""

from __future__ import annotations

import json
import time
from typing import Final

import redis
import structlog
from django.conf import settings

from infra.notifications import PLANNERS_CHANNEL

log = structlog.get_logger(__name__)

#: Without hints every cluster is planned at this interval.
WITHOUT_HINTS_SECONDS: Final = 1.0
#: A connection that failed is tried again after so long.
RECONNECT_SECONDS: Final = 1.0
#: To connect and to subscribe; a server that hangs must not keep the planner from planning by its clock.
CONNECT_SECONDS: Final = 0.5
#: A server that does not answer a ping for so long counts as away.
SILENCE_SECONDS: Final = 3.0

#: Cluster (None: all) -> what asked.
Asked = dict[int | None, str]


class WakeUps:
    """A subscription of its own; it connects by itself, and again after a failure."""

    def __init__(self) -> None:
        self._subscription: redis.client.PubSub | None = None
        self._answered_at = 0.0
        self._retry_at = 0.0

    @property
    def connected(self) -> bool:
        """Whether hints arrive at the moment."""
        return self._subscription is not None

    def wait(self, seconds: float) -> Asked:
        """What was asked since the last call, as soon as anything is, after `seconds` at the latest.

        After a connection was made everything counts as asked: a hint may have been missed before.
        """
        if self._subscription is None and not self._connect():
            time.sleep(max(0.0, min(seconds, WITHOUT_HINTS_SECONDS)))
            return {}
        fresh = self._answered_at == 0.0
        try:
            asked = self._collect(0.0 if fresh else seconds)
        except (redis.RedisError, OSError) as error:
            self._lost(error)
            return {}
        return {None: "connected", **asked} if fresh else asked

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
        self._subscription, self._answered_at = None, 0.0

    def _connect(self) -> bool:
        if time.monotonic() < self._retry_at:
            return False
        try:
            client = redis.Redis.from_url(
                settings.REDIS_URL, socket_connect_timeout=CONNECT_SECONDS, socket_timeout=CONNECT_SECONDS
            )
            subscription = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
            subscription.subscribe(PLANNERS_CHANNEL)
        except (redis.RedisError, OSError) as error:
            self._lost(error)
            return False
        self._subscription, self._answered_at = subscription, 0.0
        return True

    def _collect(self, seconds: float) -> Asked:
        """Wait for a first message, then take what is there already."""
        assert self._subscription is not None
        asked: Asked = {}
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            message = self._subscription.get_message(timeout=0.0 if asked else max(0.0, until - now))
            if message is not None:
                self._answered_at = now
                if message["type"] == "message":
                    said = json.loads(message["data"])
                    asked.setdefault(said["cluster"], said["trigger"])
            elif asked or time.monotonic() >= until:
                self._check(now)
                return asked

    def _check(self, now: float) -> None:
        """A server that hangs looks like one where nothing happens: ping it."""
        assert self._subscription is not None
        if self._answered_at and now - self._answered_at > SILENCE_SECONDS:
            raise redis.TimeoutError(f"no answer for {SILENCE_SECONDS:g} s")
        if not self._answered_at or now - self._answered_at > SILENCE_SECONDS / 3:
            self._answered_at = self._answered_at or now
            self._subscription.ping()

    def _lost(self, error: Exception) -> None:
        log.warning("hints_unavailable", what="wait for wake-ups", error=str(error))
        self._retry_at = time.monotonic() + RECONNECT_SECONDS
        self.close()
