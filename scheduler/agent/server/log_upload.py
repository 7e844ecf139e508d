"""Sends what tasks print to the server while they run, in chunks at their byte offset, many tasks in one message."""

from __future__ import annotations

import base64
import os
import stat
from dataclasses import dataclass
from typing import Any, Final

from scheduler.agent.client import ServerClient
from scheduler.agent.protocol import CHUNK_BYTES, LOG_BATCH_BYTES, Chunk, LogAnswer
from scheduler.agent.table import STREAMS, LocalTask, TaskTable, cap_marker, stored_bytes

#: A file that goes on growing beyond what is kept is cut back from time to time, so that it cannot fill the disk.
SLACK_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Pumped:
    """What one round did: bytes sent, and whether more is waiting."""

    sent_bytes: int
    more: bool


class LogUploader:
    def __init__(self, table: TaskTable, client: ServerClient) -> None:
        self.table = table
        self.client = client
        self._next_key = ""

    def pump(self) -> Pumped:
        """Send one batch of what is new; raises ServerUnreachable and tries the same again next time."""
        entries = self.table.with_logs()
        ask = [entry for entry in entries if None in entry.uploaded.values()]
        chunks, more = self._collect(entries)
        if not chunks and not ask:
            return Pumped(0, False)
        body: dict[str, Any] = {"chunks": chunks, "ask": [[entry.task, entry.epoch] for entry in ask]}
        answer: LogAnswer = self.client.post("/api/v1/agent/logs", body)
        self._believe(answer, entries)
        return Pumped(sum(len(chunk["data"]) for chunk in chunks) * 3 // 4, more)

    def _collect(self, entries: list[LocalTask]) -> tuple[list[Chunk], bool]:
        """One batch, a chunk of each stream in turn: however much one prints, the others wait for one round."""
        chunks: list[Chunk] = []
        room = LOG_BATCH_BYTES
        waiting = [
            (entry, stream, offset)
            for entry in self._in_turn(entries)
            for stream in STREAMS
            if (offset := entry.uploaded[stream]) is not None and self._has_more(entry, stream, offset)
        ]
        while waiting and room > 0:
            entry, stream, offset = waiting.pop(0)
            data = self._read(entry.stream_path(stream), offset, min(CHUNK_BYTES, room))
            if not data:
                continue
            room -= len(data)
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
        """First the one that was next when the last batch was full."""
        at = next((n for n, entry in enumerate(entries) if entry.key == self._next_key), 0)
        return entries[at:] + entries[:at]

    def _has_more(self, entry: LocalTask, stream: str, offset: int) -> bool:
        return offset < stored_bytes(entry.stream_path(stream), self.table.cap_bytes)

    def _read(self, path: str, offset: int, limit: int) -> bytes:
        """Bytes of the stream as it is kept: the first ones up to the cap, then a note that there was more."""
        cap = self.table.cap_bytes
        if offset >= cap:
            self._cut_back(path)
            return cap_marker(cap)[offset - cap :]
        try:
            # What stands at this path may be the job's doing: never a link, and nothing that makes us wait.
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    return b""
                return os.pread(file, min(limit, cap - offset), offset)
            finally:
                os.close(file)
        except OSError:
            return b""

    def _cut_back(self, path: str) -> None:
        try:
            if os.stat(path).st_size > self.table.cap_bytes + SLACK_BYTES:
                os.truncate(path, self.table.cap_bytes + 1)  # writers append, so they go on from here
        except OSError:
            pass

    def cut_back(self) -> None:
        """Bound the files of tasks that go on printing beyond the cap."""
        for entry in self.table.with_logs():
            for stream in STREAMS:
                if (entry.uploaded[stream] or 0) > self.table.cap_bytes:
                    self._cut_back(entry.stream_path(stream))

    def _believe(self, answer: LogAnswer, entries: list[LocalTask]) -> None:
        """Where a stream goes on is the server's to say: after a restart on either side the two agree again."""
        by_task = {entry.task: entry for entry in entries}
        for end in answer["streams"]:
            if entry := by_task.get(end["task"]):
                entry.uploaded[end["stream"]] = end["next_offset"]
        for task in answer["gone"]:
            if entry := by_task.get(task):
                entry.logs_refused = True
