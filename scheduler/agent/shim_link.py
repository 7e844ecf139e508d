"""The agent's end of the line to its keeper: finds it, starts it when there is none, and comes back after a break."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from scheduler.agent import processes
from scheduler.agent.protocol import TaskOrder, TaskRecord

CONNECT_SECONDS: Final = 15.0
_PACKAGE_ROOT: Final = Path(__file__).resolve().parents[2]


class KeeperLink:
    """Sends orders from any thread; a thread of its own hands every record to `on_records`.

    `on_records(records, complete)` is told with `complete` True when these are all there are.
    """

    def __init__(
        self, state: Path, *, watch_pid: int, on_records: Callable[[list[TaskRecord], bool], None]
    ) -> None:
        self.state = state
        self.on_records = on_records
        self.watch_pid = watch_pid
        self.keeper_pid = 0
        self._socket: socket.socket | None = None
        self._sending = threading.Lock()
        #: The keepers that we started and that have not been seen to end.
        self._started: list[subprocess.Popen[bytes]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="keeper", daemon=True)

    def start(self) -> None:
        """Connect, and return once the keeper has told what it knows."""
        told = threading.Event()
        inner = self.on_records

        def first(records: list[TaskRecord], complete: bool) -> None:
            inner(records, complete)
            told.set()

        self.on_records = first
        self._thread.start()
        if not told.wait(CONNECT_SECONDS + 5):
            raise RuntimeError(f"the keeper of {self.state} does not answer; see {self.state / 'keeper.log'}")
        self.on_records = inner

    def close(self) -> None:
        self._closed = True
        if self._socket is not None:
            self._socket.close()

    # ------------------------------------------------------------ orders

    def start_tasks(self, orders: list[TaskOrder]) -> None:
        self._send({"op": "start", "tasks": orders})

    def stop_task(self, key: str, *, reason: str, grace_seconds: float) -> None:
        self._send({"op": "stop", "key": key, "reason": reason, "grace_seconds": grace_seconds})

    def pause_task(self, key: str, *, still: bool) -> None:
        self._send({"op": "pause", "key": key, "still": still})

    def forget(self, keys: list[str]) -> None:
        self._send({"op": "forget", "keys": keys})

    def extend_lease(self, fence_seconds: float) -> None:
        self._send({"op": "lease", "fence_seconds": fence_seconds})

    def shutdown(self) -> None:
        self._send({"op": "shutdown"})

    def _send(self, message: dict[str, Any]) -> None:
        import json

        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            if self._socket is None:
                return  # the reader connects again; what was lost is asked for again by the server
            try:
                self._socket.sendall(data)
            except OSError:
                self._socket = None

    # ------------------------------------------------------------ records

    def _listen(self) -> None:
        import json

        while not self._closed:
            try:
                connection = self._connect()
            except OSError as error:
                print(f"no keeper: {error}", file=sys.stderr, flush=True)
                time.sleep(1.0)
                continue
            with connection, connection.makefile("rb") as lines:
                self._introduce(connection)
                try:
                    for line in lines:
                        message = json.loads(line)
                        if message["event"] == "all":
                            self.keeper_pid = message["pid"]
                        self.on_records(message["tasks"], message["event"] == "all")
                except OSError:
                    pass
            with self._sending:
                self._socket = None

    def _introduce(self, connection: socket.socket) -> None:
        with self._sending:
            self._socket = connection
        ticks = processes.start_ticks(self.watch_pid) if self.watch_pid else 0
        self._send({"op": "watch", "pid": self.watch_pid, "start_ticks": ticks})

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + CONNECT_SECONDS
        spawned = False
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                # By way of the folder's descriptor: the path itself may be longer than the kernel takes.
                folder = os.open(self.state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    connection.connect(f"/proc/self/fd/{folder}/keeper.sock")
                finally:
                    os.close(folder)
                return connection
            except OSError:
                connection.close()
                if self._closed or time.monotonic() > deadline:
                    raise
            if not spawned:
                self._spawn()
                spawned = True
            time.sleep(0.02)

    def _spawn(self) -> None:
        """Start a keeper that does not end with us: a session of its own, and no death signal is inherited."""
        # One that was killed lets go of its socket before it can be reaped.
        self._started = [keeper for keeper in self._started if keeper.poll() is None]
        with (self.state / "keeper.log").open("ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-S", "-m", "scheduler.agent.keeper", str(self.state), *self._watched()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.state,
                env={"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(_PACKAGE_ROOT)},
                start_new_session=True,
            )
        self._started.append(keeper)

    def _watched(self) -> list[str]:
        if not self.watch_pid:
            return []
        return [str(self.watch_pid), str(processes.start_ticks(self.watch_pid))]
