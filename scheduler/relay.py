"""One Redis subscription per web process, fanned out to its live sockets and waiting agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakKeyDictionary

import redis.asyncio
import structlog
from django.conf import settings

from scheduler.outbox import CHANNEL

log = structlog.get_logger(__name__)

RECONNECT_SECONDS: Final = 1.0
PING_SECONDS: Final = 1.0
#: A server that does not answer a ping for this long counts as away.
SILENCE_SECONDS: Final = 3.0
#: It stays subscribed for so long without a listener: agents that are all given work at once listen again at once.
KEEP_SECONDS: Final = 30.0


class Listener:
    """Collects its topics until they are taken: a slow taker gets one batch, not a backlog."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self._dirty: set[str] = set()
        self._wakeup = asyncio.Event()

    def notify(self, topics: Iterable[str]) -> None:
        news = self.topics.intersection(topics)
        if news:
            self._dirty |= news
            self._wakeup.set()

    async def take(self, *, timeout_seconds: float | None = None) -> set[str]:
        """The topics touched since the last call; empty when nothing happened before the timeout."""
        try:
            await asyncio.wait_for(self._wakeup.wait(), timeout_seconds)
        except TimeoutError:
            return set()
        news, self._dirty = self._dirty, set()
        self._wakeup.clear()
        return news


class Relay:
    """Subscribes while there is a listener, and for a while after; `connected`: hints arrive at the moment."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self.connected = False

    @asynccontextmanager
    async def listen(self, topics: Iterable[str] = ()) -> AsyncIterator[Listener]:
        listener = Listener()
        listener.topics.update(topics)
        self._listeners.add(listener)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def close(self) -> None:
        """Unsubscribe now."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._listeners:
            try:
                await self._follow()
            except (redis.RedisError, OSError) as error:
                log.warning("hints_unavailable", what="subscribe", error=str(error))
                self.connected = False
                await asyncio.sleep(RECONNECT_SECONDS)
            finally:
                self.connected = False

    async def _follow(self) -> None:
        client = redis.asyncio.Redis.from_url(
            settings.REDIS_URL, socket_connect_timeout=1.0, socket_timeout=SILENCE_SECONDS
        )
        async with client, client.pubsub(ignore_subscribe_messages=True) as subscription:
            await subscription.subscribe(CHANNEL)
            self.connected = True
            # Hints may have been missed before this point: all listeners look once.
            for listener in list(self._listeners):
                listener.notify(listener.topics)
            loop = asyncio.get_running_loop()
            answered_at = wanted_at = loop.time()
            while self._listeners or loop.time() - wanted_at < KEEP_SECONDS:
                if self._listeners:
                    wanted_at = loop.time()
                message = await subscription.get_message(timeout=PING_SECONDS)
                now = loop.time()
                if message is None:
                    # A server that hangs looks like an idle one: ping it.
                    if now - answered_at > SILENCE_SECONDS:
                        raise redis.TimeoutError(f"no answer for {SILENCE_SECONDS:g} s")
                    await subscription.ping()
                    continue
                answered_at = now
                if message["type"] != "message":
                    continue
                topics = json.loads(message["data"])["topics"]
                for listener in list(self._listeners):
                    listener.notify(topics)


_relays: WeakKeyDictionary[asyncio.AbstractEventLoop, Relay] = WeakKeyDictionary()


def relay() -> Relay:
    """The relay of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _relays.get(loop)
    if found is None:
        found = _relays[loop] = Relay()
    return found
