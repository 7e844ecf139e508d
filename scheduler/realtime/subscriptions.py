"""One client's position in one topic, and the next message that brings it up to date."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, TypeVar

from scheduler.realtime import messages
from scheduler.realtime.feeds import Feed, LogFeed, ViewFeed
from scheduler.realtime.messages import View
from scheduler.realtime.topics import STREAMS, Topic

Otherwise = TypeVar("Otherwise", int, None)

#: A client may ask for slower updates, not for faster ones.
LEAST_EVERY_SECONDS: Final = 1.0
MOST_EVERY_SECONDS: Final = 60.0
#: The rest of a long log follows sooner, so that a follower catches up.
NEXT_PIECE_SECONDS: Final = 0.25


class Subscription(ABC):
    """A position in a topic. It queues nothing: a slow client's next message is made when it can be sent."""

    def __init__(self, topic: Topic, sub: int, every_seconds: float) -> None:
        self.topic = str(topic)
        self.parsed = topic
        self.sub = sub
        self.every_seconds = every_seconds
        self.due_at = 0.0
        self.seq = -1
        #: The client was asked to subscribe again; until then there is nothing to send.
        self.must_resubscribe = False

    @property
    @abstractmethod
    def feed(self) -> Feed:
        """Where its content comes from."""

    @abstractmethod
    def attach(self, feed: Feed) -> None:
        """Continue with another source of the same topic, as after a change of rights."""

    @property
    @abstractmethod
    def has_news(self) -> bool:
        """Whether a message would say anything."""

    @property
    def pause_seconds(self) -> float:
        """Shortest time until its next message."""
        return self.every_seconds

    @abstractmethod
    async def next_message(self) -> str:
        """The message that brings the client up to date."""

    def fall_behind(self) -> None:
        """The client reads too slowly: forget its position, and have it subscribe again."""
        if self.seq >= 0:
            self.must_resubscribe = True

    def _dirty(self, version: str) -> str:
        self.must_resubscribe = True
        self.seq += 1
        return messages.dirty(self.topic, self.sub, self.seq, version)


class ViewSubscription(Subscription):
    """Rows: a snapshot, then patches from the view that was sent last, or only that something changed."""

    def __init__(
        self, topic: Topic, sub: int, every_seconds: float, feed: ViewFeed, *, since: str, hints_only: bool
    ) -> None:
        super().__init__(topic, sub, every_seconds)
        self._feed = feed
        self.since = since
        self.hints_only = hints_only
        self._base: View | None = None
        self._touched = 0
        self._owes_dirty = False

    @property
    def feed(self) -> ViewFeed:
        return self._feed

    def attach(self, feed: Feed) -> None:
        assert isinstance(feed, ViewFeed)
        self._feed, self._touched = feed, -1

    @property
    def has_news(self) -> bool:
        view = self._feed.view
        if view is None:
            return False
        if self.seq < 0 or self._owes_dirty:
            return True
        if self.must_resubscribe:
            return False
        if self.hints_only:
            return self._feed.touched != self._touched
        return self._base is None or view.version != self._base.version

    async def next_message(self) -> str:
        view = self._feed.view
        assert view is not None
        base, self._base = self._base, None if self.hints_only else view
        self._touched = self._feed.touched
        if self.seq < 0:
            self.seq = 0
            known = self.hints_only or (self.since and self.since == view.version)
            return messages.snapshot(self.topic, self.sub, view.version, None if known else self._feed.data())
        if self.hints_only:
            self.seq += 1
            return messages.dirty(self.topic, self.sub, self.seq, view.version)
        body = None if base is None or self._owes_dirty else self._feed.patch_from(base)
        if body is None or base is None:
            self._owes_dirty, self._base = False, None
            return self._dirty(view.version)
        self.seq += 1
        return messages.patch(self.topic, self.sub, self.seq, base.version, view.version, body)

    def fall_behind(self) -> None:
        if self.hints_only or self.seq < 0 or self.must_resubscribe:
            return
        super().fall_behind()
        self._owes_dirty, self._base = True, None

    @property
    def went_away(self) -> bool:
        """The one job this topic is about is no longer there."""
        view = self._feed.view
        return self.parsed.kind == "job" and view is not None and not view.rows


class LogSubscription(Subscription):
    """Text by byte offset: a client that missed something subscribes again from its offset."""

    def __init__(
        self,
        topic: Topic,
        sub: int,
        every_seconds: float,
        feed: LogFeed,
        *,
        stream: str,
        offset: int,
        attempt: int | None,
    ) -> None:
        super().__init__(topic, sub, every_seconds)
        self._feed = feed
        self.stream = stream if stream in STREAMS else "merged"
        self.offset = offset
        self.attempt = attempt
        self._looks = -1
        self._more = False
        self._eof = False

    @property
    def feed(self) -> LogFeed:
        return self._feed

    def attach(self, feed: Feed) -> None:
        assert isinstance(feed, LogFeed)
        self._feed, self._looks = feed, -1

    @property
    def has_news(self) -> bool:
        return not self.must_resubscribe and (self._more or self._feed.looks != self._looks)

    @property
    def pause_seconds(self) -> float:
        return NEXT_PIECE_SECONDS if self._more else self.every_seconds

    async def next_message(self) -> str:
        looks = self._feed.looks
        piece = await self._feed.piece(self.stream, self.offset, self.attempt)
        ended, self._eof = self._eof, piece.eof
        self._more, self._looks = piece.more, looks
        again = self.attempt is not None and self.attempt != piece.attempt
        base, self.offset, self.attempt = str(piece.offset), piece.next_offset, piece.attempt
        if self.seq < 0:
            self.seq = 0
            return messages.snapshot(self.topic, self.sub, piece.version, piece.body())
        if not piece.text and piece.eof == ended and not again:
            return ""  # nothing was printed since the last look
        self.seq += 1
        return messages.patch(self.topic, self.sub, self.seq, base, piece.version, piece.body())

    def fall_behind(self) -> None:
        """Nothing is forgotten: the position is an offset, and the next piece starts there."""


def make(topic: Topic, feed: Feed, request: dict[str, Any]) -> Subscription:
    """The subscription that a client's request asks for; odd values fall back to the usual ones."""
    sub: int = _whole(request.get("sub"), 0)
    every = request.get("every")
    every_seconds = 0.0
    if isinstance(every, (int, float)) and not isinstance(every, bool) and abs(every) < 2**53:  # NaN is not
        every_seconds = float(every)
    every_seconds = min(max(every_seconds, LEAST_EVERY_SECONDS), MOST_EVERY_SECONDS)
    if isinstance(feed, LogFeed):
        stream = request.get("stream")
        return LogSubscription(
            topic,
            sub,
            every_seconds,
            feed,
            stream=stream if isinstance(stream, str) else "merged",
            offset=_whole(request.get("offset"), 0),
            attempt=_whole(request.get("attempt"), None),
        )
    assert isinstance(feed, ViewFeed)
    since = request.get("since")
    return ViewSubscription(
        topic,
        sub,
        every_seconds,
        feed,
        since=since if isinstance(since, str) else "",
        hints_only=request.get("data") is False,
    )


def _whole(value: object, otherwise: Otherwise) -> int | Otherwise:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53:
        return value
    return otherwise
