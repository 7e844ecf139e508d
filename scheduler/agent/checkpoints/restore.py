"""Fetches the checkpoint that an attempt goes on from, before its task is started; nothing else waits for that."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from scheduler.agent import processes
from scheduler.agent.checkpoints.marks import note_restored
from scheduler.agent.checkpoints.upload import PATH, Stopped, Uploads
from scheduler.agent.console import say
from scheduler.agent.protocol import (
    NOT_RESTORED,
    PIECE_BYTES,
    RESTORE_VARIABLE,
    RESTORED,
    Manifest,
    RestoreAnswer,
    TaskOrder,
    TaskRecord,
)
from scheduler.agent.results.names import decode_path
from scheduler.agent.server.client import Refused, ServerClient, ServerUnreachable
from scheduler.agent.tasks.task_table import TaskTable

READ_PATH: Final = "/api/v1/agent/piece-read"
#: Tasks whose checkpoints are fetched at a time.
_AT_ONCE: Final = 2
#: How long the server, or its storage, may be away before the task is given up here.
_PATIENCE_SECONDS: Final = 300.0
#: From one question to the next, while the checkpoint is on its way to the server.
_WAIT_SECONDS: Final = 1.0
T = TypeVar("T")


class BadCheckpoint(Exception):
    """What came is not what was stored, or cannot be written here; the text is for people."""


class Restores:
    """`start` gives an order to the shim; `connect` makes a client for a thread."""

    def __init__(
        self,
        state: Path,
        table: TaskTable,
        *,
        start: Callable[[list[TaskOrder]], None],
        connect: Callable[[], ServerClient],
        stopping: threading.Event,
    ) -> None:
        self._folder = state / "restored"
        self._table, self._start, self._connect = table, start, connect
        self._stopping, self._uploads = stopping, Uploads(stopping)
        self._turns = threading.Semaphore(_AT_ONCE)
        #: Why tasks are to end that the shim does not know yet.
        self._ended: dict[str, str] = {}

    def clean_up(self) -> None:
        """Remove what an agent before this one has left."""
        known = self._table.keys()
        for name in _names_in(self._folder):
            if name not in known:
                shutil.rmtree(self._folder / name, ignore_errors=True)

    def begin(self, order: TaskOrder) -> None:
        """Fetch in a thread of its own what the task goes on from, and then have it started."""
        threading.Thread(target=self._work, args=(order,), name="restore", daemon=True).start()

    def stop(self, key: str, reason: str) -> None:
        """The task whose checkpoint is being fetched is not to be started."""
        self._ended[key] = reason

    def _work(self, order: TaskOrder) -> None:
        with self._turns:
            record: TaskRecord | None = None
            try:
                self._restore(order)
            except Stopped:
                return
            except (Refused, BadCheckpoint, ServerUnreachable) as error:
                say(f"{NOT_RESTORED}: {error}")
                record = _ended(order, lost=True, text=f"{NOT_RESTORED}: {error}"[:300])
            if reason := self._ended.pop(order["key"], ""):
                record = _ended(order, stop_reason=reason)
            if record is not None:
                shutil.rmtree(self._folder / order["key"], ignore_errors=True)
            meta = order["meta"]
            note_restored(self._table, meta["task"], meta["epoch"], record)
            if record is None:
                self._start([order])

    def _restore(self, order: TaskOrder) -> None:
        """Complete the order with what it goes on from; raises Refused, BadCheckpoint, Stopped."""
        client = self._connect()
        meta = order["meta"]
        about = {"task": meta["task"], "epoch": meta["epoch"]}
        while True:
            answer: RestoreAnswer = self._ask(lambda: client.post(PATH, {"op": "restore", **about}))
            if not answer.get("wait") or order["key"] in self._ended:
                break
            self._stopping.wait(_WAIT_SECONDS)
        if "id" not in answer or "manifest" not in answer or order["key"] in self._ended:
            return
        manifest, into = answer["manifest"], self._folder / order["key"]
        shutil.rmtree(into, ignore_errors=True)
        try:
            into.mkdir(parents=True, mode=0o700)
            _write(into, manifest, self._pieces(client, answer["id"], manifest, about, order["key"]))
        except OSError as error:
            raise BadCheckpoint(f"it cannot be written on the node: {error.strerror}") from error
        order["restore"] = str(into)
        if RESTORE_VARIABLE not in order.get("own_variables", ()):
            name = os.fsdecode(decode_path(manifest["name"])[0])
            order["env"][RESTORE_VARIABLE] = f"{order['folder']}/{RESTORED}/{name}"
        said = {"op": "restored", "id": answer["id"], **about}
        self._ask(lambda: client.post(PATH, said))

    def _ask(self, what: Callable[[], T]) -> T:
        return self._uploads.call(what, seconds=_PATIENCE_SECONDS)

    def _pieces(
        self, client: ServerClient, id: str, manifest: Manifest, about: dict[str, Any], key: str
    ) -> Iterator[bytes]:
        for number in range(-(-manifest["size"] // PIECE_BYTES)):
            if key in self._ended:
                raise BadCheckpoint("the task was stopped while it was fetched")
            body = {"checkpoint": id, "number": number, **about}
            yield self._ask(partial(client.get_raw, READ_PATH, body))


def _write(into: Path, manifest: Manifest, pieces: Iterator[bytes]) -> None:
    """Write files and folders from the pieces, and check each file; raises BadCheckpoint, OSError."""
    for folder in manifest["folders"]:
        os.mkdir(_path(into, folder), 0o700)
    left = b""
    for file in manifest["files"]:
        digest, missing = hashlib.sha256(), file["size"]
        with open(_path(into, file["path"]), "xb") as opened:
            while missing:
                left = left or next(pieces, b"")
                if not left:
                    raise BadCheckpoint(f"{file['path']} is cut short")
                part, left = left[:missing], left[missing:]
                opened.write(part)
                digest.update(part)
                missing -= len(part)
        if digest.hexdigest() != file["sha256"]:
            raise BadCheckpoint(f"the checksum of {file['path']} is wrong")


def _path(into: Path, text: str) -> bytes:
    """A path below the folder; `decode_path` takes none that leads elsewhere."""
    return os.path.join(os.fsencode(into), *decode_path(text))


def _ended(order: TaskOrder, *, lost: bool = False, text: str = "", stop_reason: str = "") -> TaskRecord:
    """The record of a task that ended before the shim had it."""
    now = processes.boot_ms()
    return TaskRecord(
        key=order["key"], state="ended", boot_id=processes.boot_id(), folder=order["folder"], meta=order["meta"],
        pid=0, start_ticks=0, started_boot_ms=now, ended_boot_ms=now, exit_code=None, exit_signal=None,
        stop_reason=stop_reason, lost=lost, text=text, peak_memory_mib=None, cpu_time_ms=None,
    )  # fmt: skip


def _names_in(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []
