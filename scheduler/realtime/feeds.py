"""Feeds: the content of each followed topic, read at most once a second a process and shown to many."""

from __future__ import annotations

import asyncio
import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import structlog
from channels.db import database_sync_to_async
from django.db import DatabaseError

from scheduler.models import Job
from scheduler.realtime.messages import MAX_PATCH_BYTES, View, difference, encode
from scheduler.realtime.topics import Source
from scheduler.services.jobs.logs import read_log

log = structlog.get_logger(__name__)
T = TypeVar("T")

#: No topic is read more often, and a costly one takes at most this share of a thread.
REFRESH_SECONDS: Final = 1.0
REFRESH_SHARE: Final = 0.2
#: While hints arrive, every topic is still read this often: a hint may be lost.
SAFETY_SECONDS: Final = 8.0
#: While no hints arrive, every topic is read this often instead.
FALLBACK_SECONDS: Final = 2.5
#: Readings a second without a hint, of all topics of a process together; more topics wait longer.
UNPROMPTED_PER_SECOND: Final = 25.0
RETRY_SECONDS: Final = 2.0

#: One piece of a log; a faster writer is followed in several pieces.
LOG_PIECE_BYTES: Final = 64 * 1024

# Reading must neither fill the connection pool of the process nor delay the check of rights.
_LOOKERS: Final = ThreadPoolExecutor(max_workers=3, thread_name_prefix="live-look")
_DOORKEEPERS: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="live-door")


async def look(function: Callable[[], T]) -> T:
    """Run a reading function in a thread with a database connection of its own."""
    return await database_sync_to_async(function, thread_sensitive=False, executor=_LOOKERS)()


async def check(function: Callable[[], T]) -> T:
    """The same for checks of rights, which wait behind nothing else."""
    return await database_sync_to_async(function, thread_sensitive=False, executor=_DOORKEEPERS)()


class Pace(Protocol):
    """How long a feed waits for a hint before it reads anyway."""

    def unprompted_seconds(self) -> float: ...


class Feed(ABC):
    """The content of one source while any client follows it."""

    def __init__(self, source: Source, pace: Pace) -> None:
        self.source = source
        self.pace = pace
        self.readers: set[Callable[[], None]] = set()
        self.hinted = False
        self._wakeup = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def nudge(self) -> None:
        """Read soon: a hint has come, or hints may have been missed."""
        self.hinted = True
        self._wakeup.set()

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wakeup.clear()
            started = loop.time()
            hinted, self.hinted = self.hinted, False
            try:
                if await self._look(hinted):
                    for wake in list(self.readers):
                        wake()
            except (DatabaseError, OSError) as error:
                log.warning("live_look_failed", source=str(self.source.key), error=str(error))
                self.hinted = self.hinted or hinted
                await asyncio.sleep(RETRY_SECONDS)
                continue
            # However many hints come, the next reading waits; those that come meanwhile share it.
            took = loop.time() - started
            await asyncio.sleep(max(REFRESH_SECONDS - took, took / REFRESH_SHARE - took, 0.05))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakeup.wait(), self.pace.unprompted_seconds())

    @abstractmethod
    async def _look(self, hinted: bool) -> bool:
        """Read once; true when readers have something to send."""


class ViewFeed(Feed):
    """Rows by key. A patch from an older view is made once, for all readers that have that view."""

    def __init__(self, source: Source, pace: Pace) -> None:
        self.view: View | None = None
        #: Rises with each change, and with each hint of a pointed source.
        self.touched = 0
        self._patches: dict[str, str | None] = {}
        self._data: str | None = None
        super().__init__(source, pace)

    async def _look(self, hinted: bool) -> bool:
        view = await look(lambda: View.of(self.source.build()))
        if self.view is None or view.version != self.view.version:
            self.view, self._patches, self._data = view, {}, None
        elif not (hinted and self.source.pointed):
            return False
        self.touched += 1
        return True

    def data(self) -> str:
        assert self.view is not None
        if self._data is None:
            self._data = self.view.data()
        return self._data

    def patch_from(self, base: View) -> str | None:
        """What changed since that view; None when it would be too long to send."""
        assert self.view is not None
        if base.version not in self._patches:
            body = difference(base, self.view)
            self._patches[base.version] = body if len(body.encode()) <= MAX_PATCH_BYTES else None
        return self._patches[base.version]


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Text from one byte offset to the next; `more` says that another piece is there already."""

    text: str
    offset: int
    next_offset: int
    eof: bool
    more: bool
    #: Each attempt prints from the beginning again.
    attempt: int

    @property
    def version(self) -> str:
        return str(self.next_offset)

    def body(self) -> str:
        return encode(
            {
                "text": self.text,
                "offset": self.offset,
                "next_offset": self.next_offset,
                "eof": self.eof,
                "more": self.more,
                "attempt": self.attempt,
            }
        )


class LogFeed(Feed):
    """The log of a job. Each reader has its own offset; readers at one offset share a reading."""

    def __init__(self, source: Source, pace: Pace) -> None:
        self.number: int = source.key[1]
        #: Rises with each reading; a reader that has read at this number has nothing new to ask for.
        self.looks = 0
        self._pieces: dict[tuple[str, int, int | None], asyncio.Task[LogPiece]] = {}
        super().__init__(source, pace)

    async def _look(self, hinted: bool) -> bool:
        self.looks += 1
        self._pieces = {}
        return True

    async def piece(self, stream: str, offset: int, attempt: int | None) -> LogPiece:
        key = (stream, offset, attempt)
        task = self._pieces.get(key)
        if task is None:
            reading = look(lambda: read_piece(self.number, stream, offset, attempt))
            task = self._pieces[key] = asyncio.get_running_loop().create_task(reading)
        # Shielded: one reader that leaves must not take the piece away from the others.
        return await asyncio.shield(task)


def read_piece(number: int, stream: str, offset: int, attempt: int | None) -> LogPiece:
    """The log from `offset`, cut where a character ends; from its beginning when there is a newer attempt."""
    job = Job.objects.filter(pk=number).first()
    if job is None:
        return LogPiece(text="", offset=offset, next_offset=offset, eof=True, more=False, attempt=0)
    if attempt is not None and attempt != job.epoch:
        offset = 0
    found = read_log(job=job, stream=stream, offset=offset, limit=LOG_PIECE_BYTES)
    text, used = decode_piece(bytes(found.data), final=found.eof)
    return LogPiece(
        text=text,
        offset=found.offset,
        next_offset=found.offset + used,
        eof=found.eof and found.offset + used == found.next_offset,
        more=not found.eof and len(found.data) >= LOG_PIECE_BYTES,
        attempt=job.epoch,
    )


def decode_piece(data: bytes, *, final: bool) -> tuple[str, int]:
    """Text, and how many bytes it took: a character that is not whole yet is left for the next piece."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data, final)
    waiting: Any = decoder.getstate()[0]
    return text, len(data) - len(waiting)
