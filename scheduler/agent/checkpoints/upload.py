"""Sends one finished checkpoint to the server: announced, then piece by piece, then its manifest."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from scheduler.agent.checkpoints import folder
from scheduler.agent.checkpoints.folder import Content, Finished, Pieces
from scheduler.agent.console import say
from scheduler.agent.protocol import CHECKPOINTS
from scheduler.agent.results.folder import Unreadable, opened
from scheduler.agent.server.backoff import Backoff
from scheduler.agent.server.client import Refused, ServerClient, ServerUnreachable
from scheduler.agent.tasks.local_task import LocalTask

PATH: Final = "/api/v1/agent/checkpoints"
PIECE_PATH: Final = "/api/v1/agent/piece"
#: To check a checkpoint the server reads it once: at this speed, at the least, and for this long beyond.
_BYTES_A_SECOND: Final = 20 * 1024 * 1024
_CHECK_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 10.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Begun:
    """A checkpoint that the server knows of and waits for."""

    entry: LocalTask
    finished: Finished
    content: Content
    id: str


class Stopped(Exception):
    """The agent ends."""


class Uploads:
    """Calls that are repeated until the server answers, or the agent ends."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping

    def call(self, what: Callable[[], T], *, seconds: float | None = None) -> T:
        """The answer of the server; raises Refused, Stopped, and after so long without any ServerUnreachable."""
        backoff, until = Backoff(), None if seconds is None else time.monotonic() + seconds
        while not self._stopping.is_set():
            try:
                return what()
            except ServerUnreachable:
                if until is not None and time.monotonic() > until:
                    raise
                backoff.wait(self._stopping)
        raise Stopped

    def begin(self, client: ServerClient, entry: LocalTask, one: Finished, why: str) -> Begun | None:
        """Announce a checkpoint; None where it is not wanted, or cannot be taken: it is no use to try again.

        Raises ServerUnreachable.
        """
        said: dict[str, Any] = {
            "op": "begin", "task": entry.task, "epoch": entry.epoch, "name": one.text,
            "marked_ns": one.marked_ns, "why": why,
        }  # fmt: skip
        content: Content | None = None
        try:
            with opened(entry.folder, CHECKPOINTS) as root:
                content = folder.content_of(root, one.name)
            said |= {"files": len(content.files), "size": content.size}
        except Unreadable as error:
            said |= {"files": 0, "size": 0, "trouble": str(error)}
        try:
            answer: dict[str, Any] = client.post(PATH, said, timeout_seconds=_ANSWER_SECONDS)
        except Refused as error:
            say(f"a checkpoint was refused: {error}")
            answer = {}
        if content is None or not answer.get("id"):
            folder.remove(entry.folder, one)
            return None
        return Begun(entry, one, content, str(answer["id"]))

    def send(self, client: ServerClient, begun: Begun) -> None:
        """Send the bytes and the manifest, and remove the checkpoint here; raises Stopped."""
        try:
            with opened(begun.entry.folder, CHECKPOINTS) as root:
                pieces = Pieces(root, begun.content)
                for number, piece in enumerate(pieces):
                    self._send_piece(client, begun.id, number, piece)
            seconds = _CHECK_SECONDS + begun.content.size / _BYTES_A_SECOND
            said = {"op": "finish", "id": begun.id, "manifest": pieces.manifest, "steps": True}
            # The server reads it back, for some seconds at a call.
            while (
                self.call(lambda: client.post(PATH, said, timeout_seconds=seconds)).get("state") == "storing"
            ):
                pass
        except Unreadable as error:
            self._fail(client, begun, str(error))
        except Refused as error:
            say(f"a checkpoint was refused: {error}")
            self._fail(client, begun, str(error))
        folder.remove(begun.entry.folder, begun.finished)

    def _fail(self, client: ServerClient, begun: Begun, text: str) -> None:
        with contextlib.suppress(Refused):
            self.call(lambda: client.post(PATH, {"op": "fail", "id": begun.id, "text": text}))

    def _send_piece(self, client: ServerClient, id: str, number: int, piece: bytes) -> None:
        digest = hashlib.sha256(piece).hexdigest()
        path = f"{PIECE_PATH}?checkpoint={id}&number={number}&sha256={digest}"
        self.call(lambda: client.put_raw(path, piece))
