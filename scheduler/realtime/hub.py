"""One hub per event loop: it receives hints, keeps the feeds, and checks the rights of all viewers."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import structlog
from django.db import DatabaseError
from prometheus_client import Counter, Gauge

from infra.errors import MusterError
from scheduler.realtime import auth, feeds
from scheduler.realtime.auth import Viewer
from scheduler.realtime.feeds import Feed, LogFeed, ViewFeed
from scheduler.realtime.messages import CLOSE_SIGN_IN
from scheduler.realtime.topics import Source, Topic, open_source
from scheduler.relay import Listener, relay

log = structlog.get_logger(__name__)

CLIENTS: Final = Gauge("muster_ws_clients", "Live sockets that are open.", multiprocess_mode="livesum")
RESYNCS: Final = Counter("muster_ws_resyncs", "Times a live client was asked to subscribe again, or did so.")

#: Rights are checked this often, for all viewers at once, and trusted for no longer than the second number:
#: a viewer who has lost them gets nothing after at most that time.
CHECK_SECONDS: Final = 2.0
TRUST_SECONDS: Final = 4.5
#: Clients learn of missing hints after this long: a process that has just started is not degraded.
PATIENCE_SECONDS: Final = 3.0


class Client(Protocol):
    """What the hub needs of a connection."""

    viewer: Viewer

    def wake(self) -> None: ...
    def report_health(self, degraded: bool) -> None: ...
    def close_soon(self, code: int) -> None: ...
    def sweep(self) -> None: ...
    async def change_viewer(self, viewer: Viewer) -> None: ...


class Hub:
    """Runs while any client is connected."""

    def __init__(self) -> None:
        self.clients: set[Client] = set()
        self.degraded = False
        self._feeds: dict[tuple[Any, ...], Feed] = {}
        self._by_hint: dict[str, set[Feed]] = {}
        self._users: dict[int, int] = {}
        self._listener: Listener | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._checked_at = 0.0

    # ------------------------------------------------------------ clients

    def join(self, client: Client) -> None:
        self.clients.add(client)
        self._users[client.viewer.user.pk] = self._users.get(client.viewer.user.pk, 0) + 1
        CLIENTS.inc()
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._checked_at = loop.time()  # the first client was identified just now
            self._tasks = [loop.create_task(self._listen()), loop.create_task(self._check_rights())]

    def leave(self, client: Client) -> None:
        self.clients.discard(client)
        CLIENTS.dec()
        left = self._users[client.viewer.user.pk] - 1
        if left:
            self._users[client.viewer.user.pk] = left
        else:
            del self._users[client.viewer.user.pk]
        if not self.clients:
            for task in self._tasks:
                task.cancel()
            self._tasks = []
            self.degraded = False

    def connections_of(self, viewer: Viewer) -> int:
        return self._users.get(viewer.user.pk, 0)

    @property
    def rights_are_fresh(self) -> bool:
        """Whether rights were checked lately; without that, as while the database is away, nothing is sent."""
        return asyncio.get_running_loop().time() - self._checked_at < TRUST_SECONDS

    # ------------------------------------------------------------ feeds

    async def open(self, topic: Topic, viewer: Viewer, client: Client) -> Feed:
        """The feed of a topic, made for its first follower; raises NotAllowed or NotFound."""
        source: Source = await feeds.look(lambda: open_source(topic, viewer))
        feed = self._feeds.get(source.key)
        if feed is None:
            feed = (LogFeed if topic.kind == "log" else ViewFeed)(source, self)
            self._feeds[source.key] = feed
            for hint in source.hints:
                self._by_hint.setdefault(hint, set()).add(feed)
            if self._listener is not None:
                self._listener.topics |= source.hints
        feed.readers.add(client.wake)
        return feed

    def release(self, feed: Feed, client: Client) -> None:
        """This client no longer follows the feed; with its last follower the feed ends."""
        feed.readers.discard(client.wake)
        if feed.readers:
            return
        feed.close()
        self._feeds.pop(feed.source.key, None)
        for hint in feed.source.hints:
            followers = self._by_hint.get(hint, set())
            followers.discard(feed)
            if not followers:
                self._by_hint.pop(hint, None)
                if self._listener is not None:
                    self._listener.topics.discard(hint)

    def unprompted_seconds(self) -> float:
        least = feeds.FALLBACK_SECONDS if self.degraded else feeds.SAFETY_SECONDS
        return max(least, len(self._feeds) / feeds.UNPROMPTED_PER_SECOND)

    # ------------------------------------------------------------ in the background

    async def _listen(self) -> None:
        """Pass hints on to feeds, and report when none arrive."""
        hints = relay()
        loop = asyncio.get_running_loop()
        connected_at = loop.time()
        async with hints.listen(self._by_hint) as listener:
            self._listener = listener
            try:
                while True:
                    topics = await listener.take(timeout_seconds=1.0)
                    for feed in {feed for topic in topics for feed in self._by_hint.get(topic, ())}:
                        feed.nudge()
                    if hints.connected:
                        connected_at = loop.time()
                    self._report_health(loop.time() - connected_at > PATIENCE_SECONDS)
            finally:
                self._listener = None

    def _report_health(self, degraded: bool) -> None:
        if degraded == self.degraded:
            return
        self.degraded = degraded
        log.warning("live_hints", degraded=degraded, clients=len(self.clients))
        for feed in self._feeds.values():
            feed.nudge()  # hints in between were missed
        for client in list(self.clients):
            client.report_health(degraded)

    async def _check_rights(self) -> None:
        """Check the rights of all viewers at once, and act on what has changed."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            asked_at = loop.time()
            clients = list(self.clients)
            try:
                viewers = [client.viewer for client in clients]
                standing = await feeds.check(lambda viewers=viewers: auth.look_up_all(viewers))  # type: ignore[misc]
                await self._act_on(clients, standing)
            except (DatabaseError, OSError) as error:
                log.warning("live_rights_unknown", error=str(error))
                continue
            self._checked_at = asked_at
            for client in clients:
                client.wake()

    async def _act_on(self, clients: list[Client], standing: auth.Standing) -> None:
        for client in clients:
            viewer = auth.renew(client.viewer, standing)
            if viewer is None:
                client.close_soon(CLOSE_SIGN_IN)
            elif viewer.rights != client.viewer.rights:
                try:
                    await client.change_viewer(viewer)
                except MusterError as error:
                    log.warning("live_rights_changed", error=str(error))
            client.sweep()


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    """The hub of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _hubs.get(loop)
    if found is None:
        found = _hubs[loop] = Hub()
    return found
