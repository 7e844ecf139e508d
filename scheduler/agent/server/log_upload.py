"""Sends what tasks print to the server while they run, in chunks at their byte offset, many tasks in one message."""

from __future__ import annotations

import base64
import contextlib
import os
import stat
from dataclasses import dataclass
from typing import Any, Final

from scheduler.agent.protocol import CHUNK_BYTES, LOG_BATCH_BYTES, Chunk, LogAnswer
from scheduler.agent.server.client import ServerClient
from scheduler.agent.tasks.local_task import STREAMS, LocalTask, cap_marker, stored_bytes
from scheduler.agent.tasks.task_table import TaskTable

#: An output file that grows this far beyond what is kept is truncated, so that it cannot fill the disk.
SLACK_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What one batch did: bytes sent, and whether more is waiting."""

    sent_bytes: int
    more: bool


class LogUploader:
    """Uploads the output of all tasks in turn; `client` is a connection of its own."""

    def __init__(self, table: TaskTable, client: ServerClient) -> None:
        self.table = table
        self.client = client
        self._next_key = ""

    def upload_batch(self) -> Uploaded:
        """Send one batch of new output; after ServerUnreachable or Refused the next call sends the same again."""
        entries = self.table.with_logs()
        ask = [entry for entry in entries if None in entry.uploaded.values()]
        chunks, more = self._collect(entries)
        if not chunks and not ask:
            return Uploaded(0, False)
        body: dict[str, Any] = {"chunks": chunks, "ask": [[entry.task, entry.epoch] for entry in ask]}
        answer: LogAnswer = self.client.post("/api/v1/agent/logs", body)
        self._apply(answer, entries)
        return Uploaded(sum(len(chunk["data"]) for chunk in chunks) * 3 // 4, more)

    def _collect(self, entries: list[LocalTask]) -> tuple[list[Chunk], bool]:
        """One batch, a chunk of each stream in turn: a task that prints much delays the others by one chunk each."""
        chunks: list[Chunk] = []
        left_bytes = LOG_BATCH_BYTES
        waiting = [
            (entry, stream, offset)
            for entry in self._in_turn(entries)
            for stream in STREAMS
            if (offset := entry.uploaded[stream]) is not None and self._has_more(entry, stream, offset)
        ]
        while waiting and left_bytes > 0:
            entry, stream, offset = waiting.pop(0)
            data = self._read(entry, stream, offset, min(CHUNK_BYTES, left_bytes))
            if not data:
                continue
            left_bytes -= len(data)
            chunks.append(
                Chunk(
                    task=entry.task,
                    epoch=entry.epoch,
                    stream=stream,
                    offset=offset,
                    data=base64.b64encode(data).decode(),
                )
            )
            if self._has_more(entry, stream, offset + len(data)):
                waiting.append((entry, stream, offset + len(data)))
        if waiting:
            self._next_key = waiting[0][0].key
        return chunks, bool(waiting)

    def _in_turn(self, entries: list[LocalTask]) -> list[LocalTask]:
        """The tasks, beginning with the one at which the last batch was full."""
        at = next((n for n, entry in enumerate(entries) if entry.key == self._next_key), 0)
        return entries[at:] + entries[:at]

    def _has_more(self, entry: LocalTask, stream: str, offset: int) -> bool:
        return offset < stored_bytes(entry.stream_path(stream), self.table.cap_bytes)

    def _read(self, entry: LocalTask, stream: str, offset: int, limit: int) -> bytes:
        """Bytes of the stream as it is kept: the first ones up to the cap, masked, then a line on the rest."""
        cap, path = self.table.cap_bytes, entry.stream_path(stream)
        ended = entry.ended  # asked first: then the file is whole
        if offset >= cap:
            self._truncate(path)
            return cap_marker(cap)[offset - cap :]
        try:
            # The path is in the job's folder: no link is followed, and a pipe there must not block us.
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    return b""
                limit = min(limit, cap - offset)
                if (mask := self.table.secrets.masks.get(entry.key)) is not None:
                    return mask.read(file, offset, limit, ended=ended)
                return os.pread(file, limit, offset)
            finally:
                os.close(file)
        except OSError:
            return b""

    def _truncate(self, path: str) -> None:
        with contextlib.suppress(OSError):
            # The path is in the job's folder, and we may be root: no link is followed, of either kind.
            file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                found = os.fstat(file)
                is_own = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
                if is_own and found.st_size > self.table.cap_bytes + SLACK_BYTES:
                    os.ftruncate(file, self.table.cap_bytes + 1)  # writers append, so they go on from here
            finally:
                os.close(file)

    def truncate_capped(self) -> None:
        """Truncate the files of tasks that go on printing beyond the cap."""
        for entry in self.table.with_logs():
            for stream in STREAMS:
                if (entry.uploaded[stream] or 0) > self.table.cap_bytes:
                    self._truncate(entry.stream_path(stream))

    def _apply(self, answer: LogAnswer, entries: list[LocalTask]) -> None:
        """Take over how far the server has each stream: after a restart on either side the two agree again."""
        by_task = {entry.task: entry for entry in entries}
        for end in answer["streams"]:
            if entry := by_task.get(end["task"]):
                entry.uploaded[end["stream"]] = end["next_offset"]
        for task in answer["gone"]:
            if entry := by_task.get(task):
                entry.logs_refused = True


def has_unsent_ends(table: TaskTable) -> bool:
    """Whether the end of a task waits to be reported of which the server lacks at most a chunk of output."""
    return any(
        entry.ended
        and entry.has_pending_report
        and not entry.logs_refused
        and 0 < _unsent_bytes(entry, table.cap_bytes) <= CHUNK_BYTES
        for entry in table.entries()
    )


def _unsent_bytes(entry: LocalTask, cap_bytes: int) -> int:
    return sum(
        max(0, stored_bytes(entry.stream_path(stream), cap_bytes) - (entry.uploaded[stream] or 0))
        for stream in STREAMS
    )
