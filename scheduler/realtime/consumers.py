"""The live socket: one connection, its requests, and a writer that sends what is due."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import structlog
from django.utils import timezone

from infra import client_address
from infra.errors import MusterError
from scheduler.realtime import feeds, messages, subscriptions
from scheduler.realtime.auth import Scope, Viewer, identify
from scheduler.realtime.hub import RESYNCS, Hub, hub
from scheduler.realtime.messages import CLOSE_SIGN_IN, CLOSE_TOO_MANY, say
from scheduler.realtime.subscriptions import Subscription, ViewSubscription
from scheduler.realtime.topics import parse_topic

log = structlog.get_logger(__name__)

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

MOST_TOPICS: Final = 20
#: Of one person in one process: a browser with many tabs, and some programs.
MOST_CONNECTIONS: Final = 60
#: Requests a second that a client may keep up, and how many at once.
REQUESTS_PER_SECOND: Final = 10.0
REQUESTS_AT_ONCE: Final = 40
#: What one client is sent over time, and what it may get at once, as when a page opens; more costs a pause.
BYTES_PER_SECOND: Final = 20_000
BYTES_AT_ONCE: Final = 250_000
LONGEST_PAUSE_SECONDS: Final = 10.0
#: A message that takes longer to leave belongs to a client that does not read: it has to subscribe again.
SLOW_SECONDS: Final = 5.0
#: A client that does not read for this long is disconnected.
GONE_SECONDS: Final = 60.0


class LiveConsumer:
    """The ASGI application behind `/ws/live/`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        opening = await receive()
        if opening["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept"})
        address = client_address.of_scope(scope).address
        viewer = await feeds.check(lambda: identify(scope, address))
        here = hub()
        if viewer is None:
            # Accepted first: a browser hides the reason of a refused handshake from the page.
            await send({"type": "websocket.close", "code": CLOSE_SIGN_IN, "reason": "Sign in again."})
            return
        if here.connections_of(viewer) >= MOST_CONNECTIONS:
            await send({"type": "websocket.close", "code": CLOSE_TOO_MANY, "reason": "Too many sockets."})
            return
        await Connection(here, viewer, receive, send).serve()


class TokenBucket:
    """An allowance of `at_once`, which grows again by `per_second`."""

    def __init__(self, *, per_second: float, at_once: float, now: float) -> None:
        self._per_second, self._at_once = per_second, at_once
        self._left, self._at = at_once, now

    def take(self, count: float, now: float) -> float:
        """Take `count`; answers what is left, which is negative where the allowance was smaller."""
        earned = (now - self._at) * self._per_second
        self._left, self._at = min(self._left + earned, self._at_once) - count, now
        return self._left


class Connection:
    """One client: the reader takes requests, and only the writer sends; neither waits for the other."""

    def __init__(self, here: Hub, viewer: Viewer, receive: Receive, send: Send) -> None:
        self.hub = here
        self.viewer = viewer
        self._receive = receive
        self._send = send
        self._subscriptions: dict[str, Subscription] = {}
        self._replies: deque[Callable[[], str]] = deque()
        self._wakeup = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._paused = False
        self._quiet_until = 0.0
        self._close_code: int | None = None
        self._sending_since: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        now = self._loop.time()
        self._requests = TokenBucket(per_second=REQUESTS_PER_SECOND, at_once=REQUESTS_AT_ONCE, now=now)
        self._bytes = TokenBucket(per_second=BYTES_PER_SECOND, at_once=BYTES_AT_ONCE, now=now)

    async def serve(self) -> None:
        self.hub.join(self)
        self._reply(
            lambda: say(
                "hello",
                user=self.viewer.user.username,
                at=timezone.now(),
                degraded=self.hub.degraded,
                most_topics=MOST_TOPICS,
            )
        )
        self._tasks = [self._loop.create_task(self._read()), self._loop.create_task(self._write())]
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for subscription in self._subscriptions.values():
                self.hub.release(subscription.feed, self)
            self.hub.leave(self)
        for task in done:
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, OSError):
                raise error
        if self._close_code is not None:
            await self._send({"type": "websocket.close", "code": self._close_code})

    # ------------------------------------------------------------ called by the hub

    def wake(self) -> None:
        self._wakeup.set()

    def report_health(self, degraded: bool) -> None:
        self._reply(lambda: say("degraded" if degraded else "restored", at=timezone.now()))

    def close_soon(self, code: int) -> None:
        """Close, whatever is being sent: the client may not be reading."""
        self._close_code = code
        for task in self._tasks:
            task.cancel()

    def sweep(self) -> None:
        """Forget the position of a client that does not read, so that no old view is kept for it."""
        if self._sending_since is None:
            return
        waited = self._loop.time() - self._sending_since
        if waited > GONE_SECONDS:
            self.close_soon(1001)
        elif waited > SLOW_SECONDS:
            self._fall_behind()

    async def change_viewer(self, viewer: Viewer) -> None:
        """Rights have changed: open the followed topics again, and drop those that may no longer be seen."""
        self.viewer = viewer
        for name, subscription in list(self._subscriptions.items()):
            before = subscription.feed
            try:
                feed = await self.hub.open(subscription.parsed, viewer, self)
            except MusterError as error:
                self._drop(name, error)
                continue
            subscription.attach(feed)
            if feed is not before:
                self.hub.release(before, self)
        self.wake()

    # ------------------------------------------------------------ requests

    async def _read(self) -> None:
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return
            if self._requests.take(1, self._loop.time()) < 0:
                self._close_code = CLOSE_TOO_MANY
                return
            text = event.get("text")
            if text is None or len(text) > messages.MAX_REQUEST_BYTES:
                self._refuse("invalid", "A request is a JSON text of at most 4 KiB.")
                continue
            try:
                request = json.loads(text)
                # Half a surrogate pair could not be said again.
                text.encode()
                json.dumps(request, ensure_ascii=False).encode()
            except (ValueError, RecursionError):
                self._refuse("invalid", "This is not JSON.")
                continue
            if not isinstance(request, dict):
                self._refuse("invalid", "A request is a JSON object.", "Send an object with an `op`.")
                continue
            await self._answer(request)

    async def _answer(self, request: dict[str, Any]) -> None:
        match request.get("op"):
            case "subscribe":
                await self._subscribe(request)
            case "unsubscribe":
                self._unsubscribe(request.get("topic"))
            case "ping":
                self._reply(self._pong)
            case "pause":
                self._paused = True
            case "resume":
                self._paused = False
                self.wake()
            case _:
                self._refuse(
                    "invalid", "There is no such op.", "Use subscribe, unsubscribe, ping, pause or resume."
                )

    async def _subscribe(self, request: dict[str, Any]) -> None:
        try:
            topic = parse_topic(request.get("topic"))
            name = str(topic)
            if name not in self._subscriptions and len(self._subscriptions) >= MOST_TOPICS:
                self._refuse("too-many", f"One socket follows at most {MOST_TOPICS} topics.", topic=name)
                return
            feed = await self.hub.open(topic, self.viewer, self)
        except MusterError as error:
            self._refuse(error.code, error.message, error.way_out, topic=str(request.get("topic"))[:60])
            return
        except OSError as error:
            self._refuse("unavailable", "The database does not answer.", "Ask again in a moment.")
            log.warning("live_subscribe_failed", error=str(error))
            return
        before = self._subscriptions.get(name)
        fresh = subscriptions.make(topic, feed, request)
        if before is not None:
            RESYNCS.inc()
            # The rhythm stays: subscribing again does not give more frequent messages.
            fresh.due_at = before.due_at
            if before.feed is not feed:
                self.hub.release(before.feed, self)
        self._subscriptions[name] = fresh
        self.wake()

    def _unsubscribe(self, topic: object) -> None:
        subscription = self._subscriptions.pop(str(topic), None)
        if subscription is not None:
            self.hub.release(subscription.feed, self)

    # ------------------------------------------------------------ replies

    def _reply(self, make: Callable[[], str]) -> None:
        self._replies.append(make)
        self.wake()

    def _refuse(self, code: str, message: str, way_out: str = "", topic: str | None = None) -> None:
        fields: dict[str, Any] = {"code": code, "message": message, "way_out": way_out}
        if topic is not None:
            fields["topic"] = topic
        self._reply(lambda: say("error", **fields))

    def _drop(self, name: str, error: MusterError) -> None:
        self._unsubscribe(name)
        self._reply(lambda: say("gone", topic=name, code=error.code, message=error.message))

    def _pong(self) -> str:
        """The position of each topic, so that a client notices a message that was lost at the end."""
        places = {name: [item.sub, item.seq] for name, item in self._subscriptions.items()}
        return say("pong", at=timezone.now(), degraded=self.hub.degraded, topics=places)

    # ------------------------------------------------------------ the writer

    async def _write(self) -> None:
        while True:
            self._wakeup.clear()
            while self._replies:
                await self._say(self._replies.popleft()())
            wait_seconds = await self._send_due()
            if self._replies:
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakeup.wait(), wait_seconds)

    async def _send_due(self) -> float | None:
        """Send what is due; answers the seconds until more is, or None when a wake-up comes first."""
        if self._paused or not self.hub.rights_are_fresh:
            return None  # the hub wakes all clients once rights have been checked
        due: list[float] = []
        for name, subscription in list(self._subscriptions.items()):
            if not subscription.has_news:
                continue
            due_at = max(subscription.due_at, self._quiet_until)
            if due_at <= self._loop.time():
                if not await self._send_next(name, subscription) or not subscription.has_news:
                    continue
                due_at = subscription.due_at
            due.append(due_at)
        return max(0.0, min(due) - self._loop.time()) if due else None

    async def _send_next(self, name: str, subscription: Subscription) -> bool:
        """Send the next message of a topic; False where this subscription has ended."""
        if isinstance(subscription, ViewSubscription) and subscription.went_away:
            self._unsubscribe(name)
            self._reply(lambda: say("gone", topic=name, code="not-found", message="Deleted."))
            return False
        text = await subscription.next_message()
        if self._subscriptions.get(name) is not subscription:
            return False  # the client has subscribed anew meanwhile
        subscription.due_at = self._loop.time() + subscription.pause_seconds
        if subscription.must_resubscribe:
            RESYNCS.inc()
        if text:
            await self._say(text)
            if isinstance(subscription, ViewSubscription):  # a log is read as fast as its reader takes it
                self._pay(len(text))
        return True

    def _pay(self, count: int) -> None:
        """Pause after more bytes than the client's allowance."""
        now = self._loop.time()
        left = self._bytes.take(count, now)
        if left < 0:
            self._quiet_until = now + min(-left / BYTES_PER_SECOND, LONGEST_PAUSE_SECONDS)

    async def _say(self, text: str) -> None:
        self._sending_since = self._loop.time()
        await self._send({"type": "websocket.send", "text": text})
        took, self._sending_since = self._loop.time() - self._sending_since, None
        if took > SLOW_SECONDS:
            self._fall_behind()

    def _fall_behind(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.fall_behind()
