"""Fetches what an attempt begins with, before its task is started; nothing else waits for that."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from scheduler.agent import processes
from scheduler.agent.checkpoints.marks import note_fetched
from scheduler.agent.checkpoints.upload import Stopped, Uploads
from scheduler.agent.console import say
from scheduler.agent.fetches.checkpoint import fetch_checkpoint
from scheduler.agent.fetches.upload import fetch_upload
from scheduler.agent.fetches.written_files import BadFetch, Fetching
from scheduler.agent.protocol import NOT_RESTORED, NOT_UPLOADED, TaskOrder, TaskRecord
from scheduler.agent.server.client import Refused, ServerClient, ServerUnreachable
from scheduler.agent.tasks.task_table import TaskTable

#: Tasks whose beginnings are fetched at a time.
_AT_ONCE: Final = 2


class ToFetch(NamedTuple):
    """What a task begins with: the id of an upload, "" for none; and a checkpoint, if there is one."""

    upload: str = ""
    restore: bool = False


class Fetches:
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
        self._restored, self._uploaded = state / "restored", state / "uploaded"
        self._table, self._start, self._connect = table, start, connect
        self._stopping, self._calls = stopping, Uploads(stopping)
        self._turns = threading.Semaphore(_AT_ONCE)
        #: Why tasks are to end that the shim does not know yet.
        self._ended: dict[str, str] = {}

    def clean_up(self) -> None:
        """Remove what an agent before this one has left."""
        known = self._table.keys()
        for folder in (self._restored, self._uploaded):
            for name in _names_in(folder):
                if name not in known:
                    shutil.rmtree(folder / name, ignore_errors=True)

    def begin(self, order: TaskOrder, to_fetch: ToFetch) -> None:
        """Fetch in a thread of its own what the task begins with, and then have it started."""
        threading.Thread(target=self._work, args=(order, to_fetch), name="fetch", daemon=True).start()

    def stop(self, key: str, reason: str) -> None:
        """The task whose beginning is being fetched is not to be started."""
        self._ended[key] = reason

    def _work(self, order: TaskOrder, to_fetch: ToFetch) -> None:
        key = order["key"]
        with self._turns:
            record: TaskRecord | None = None
            try:
                record = self._fetch(order, to_fetch)
            except Stopped:
                return
            if reason := self._ended.pop(key, ""):
                record = _ended(order, stop_reason=reason)
            if record is not None:
                shutil.rmtree(self._restored / key, ignore_errors=True)
                shutil.rmtree(self._uploaded / key, ignore_errors=True)
            meta = order["meta"]
            note_fetched(self._table, meta["task"], meta["epoch"], record)
            if record is None:
                self._start([order])

    def _fetch(self, order: TaskOrder, to_fetch: ToFetch) -> TaskRecord | None:
        """Complete the order; the record of its end where that is not possible. Raises Stopped."""
        key, what = order["key"], NOT_UPLOADED
        about: dict[str, Any] = {"task": order["meta"]["task"], "epoch": order["meta"]["epoch"]}
        fetching = Fetching(self._connect(), self._calls, about, self._stopping, lambda: key in self._ended)
        try:
            if to_fetch.upload:
                fetch_upload(fetching, order, self._uploaded / key)
            what = NOT_RESTORED
            if to_fetch.restore:
                fetch_checkpoint(fetching, order, self._restored / key)
        except (Refused, BadFetch, ServerUnreachable) as error:
            say(f"{what}: {error}")
            return _ended(order, lost=True, text=f"{what}: {error}"[:300])
        return None


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
