"""The agent's side of the shim's socket: finds the shim, starts one where there is none, reconnects after a break."""

from __future__ import annotations

import json
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
from scheduler.agent.isolation.connection_key import ensure_key, read_key
from scheduler.agent.isolation.means import Means
from scheduler.agent.protocol import TaskOrder, TaskRecord

CONNECT_SECONDS: Final = 15.0
_PACKAGE_ROOT: Final = Path(__file__).resolve().parents[2]


class ShimLink:
    """Sends commands from any thread; a thread of its own hands every record to `on_records`.

    `on_records(records, complete)` is called with `complete` True when the records are of all tasks of the shim.
    """

    def __init__(
        self,
        state: Path,
        *,
        watch_pid: int,
        on_records: Callable[[list[TaskRecord], bool], None],
        means: Means | None = None,
    ) -> None:
        self.state = state
        self.on_records = on_records
        self.watch_pid = watch_pid
        #: How the shim is to isolate tasks.
        self.means = means or Means()
        self.shim_pid = 0
        self._socket: socket.socket | None = None
        self._sending = threading.Lock()
        #: The shims that we started and that have not been seen to end.
        self.started: list[subprocess.Popen[bytes]] = []
        self._closed = False
        #: Why the shim can start no task now, as it says; empty where it can.
        self.fault = ""
        self._thread = threading.Thread(target=self._read_records, name="shim", daemon=True)

    def start(self) -> None:
        """Connect, and return once the shim has sent all its records; raises RuntimeError where it does not."""
        received = threading.Event()
        inner = self.on_records

        def first(records: list[TaskRecord], complete: bool) -> None:
            inner(records, complete)
            received.set()

        self.on_records = first
        if self.means.landlock and not self.means.namespaces:
            ensure_key(self.state)
        self._thread.start()
        if not received.wait(CONNECT_SECONDS + 5):
            raise RuntimeError(f"the shim of {self.state} does not answer; see {self.state / 'keeper.log'}")
        self.on_records = inner

    def close(self) -> None:
        """Disconnect and start no further shim; the shim goes on."""
        self._closed = True
        if self._socket is not None:
            self._socket.close()

    def join(self, seconds: float) -> bool:
        """After `close`, wait for the reading thread, which notices it when the shim ends; whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # ------------------------------------------------------------ commands

    def start_tasks(self, orders: list[TaskOrder]) -> None:
        self._send({"op": "start", "tasks": orders})

    def stop_task(self, key: str, *, reason: str, grace_seconds: float) -> None:
        self._send({"op": "stop", "key": key, "reason": reason, "grace_seconds": grace_seconds})

    def stop_unhealthy(self, key: str, text: str) -> None:
        """Stop a task of which a probe of the agent has failed; `text` is the sentence about its end."""
        self._send({"op": "unhealthy", "key": key, "text": text})

    def suspend_task(self, key: str) -> None:
        self._send({"op": "pause", "key": key, "still": True})

    def resume_task(self, key: str) -> None:
        self._send({"op": "pause", "key": key, "still": False})

    def change_limit(self, key: str, seconds: int) -> None:
        """The time limit of a running task, from its start; 0 = none."""
        self._send({"op": "limit", "key": key, "seconds": seconds})

    def forget(self, keys: list[str]) -> None:
        self._send({"op": "forget", "keys": keys})

    def discard_results(self, names: list[str]) -> None:
        """Remove these kept folders."""
        self._send({"op": "discard", "names": names})

    def extend_lease(self, fence_seconds: float) -> None:
        self._send({"op": "lease", "fence_seconds": fence_seconds})

    def shutdown(self) -> None:
        self._send({"op": "shutdown"})

    def _send(self, command: dict[str, Any]) -> None:
        data = json.dumps(command, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            if self._socket is None:
                return  # the thread connects again; the server repeats what was lost
            try:
                self._socket.sendall(data)
            except OSError:
                self._socket = None

    # ------------------------------------------------------------ records

    def _read_records(self) -> None:
        while not self._closed:
            try:
                connection = self._connect()
            except OSError as error:
                print(f"no shim: {error}", file=sys.stderr, flush=True)
                time.sleep(1.0)
                continue
            with connection, connection.makefile("rb") as lines:
                self._send_terms(connection)
                try:
                    for line in lines:
                        event = json.loads(line)
                        if event["event"] == "all":
                            self.shim_pid = event["pid"]
                        self.fault = event.get("fault", self.fault)
                        self.on_records(event["tasks"], event["event"] == "all")
                except OSError:
                    pass
            with self._sending:
                self._socket = None

    def _send_terms(self, connection: socket.socket) -> None:
        """Say how tasks are isolated, before any is started, and name the process that they must not outlive."""
        with self._sending:
            self._socket = connection
        if key := read_key(self.state):
            self._send({"op": "hello", "key": key})
        ticks = processes.start_ticks(self.watch_pid) if self.watch_pid else 0
        self._send({"op": "isolate", "means": self.means.as_json()})
        self._send({"op": "watch", "pid": self.watch_pid, "start_ticks": ticks})

    def _connect(self) -> socket.socket:
        """Connect to the shim, and start one where none answers; raises OSError when the time is up."""
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
        """Start a shim that does not end with us: a session of its own, and no death signal is inherited."""
        # A shim that was killed closes its socket before it can be reaped.
        self.started = [shim for shim in self.started if shim.poll() is None]
        with (self.state / "keeper.log").open("ab") as log:
            shim = subprocess.Popen(
                [
                    sys.executable,
                    "-S",
                    "-m",
                    "scheduler.agent.shim",
                    str(self.state),
                    *self._owner_arguments(),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.state,
                env={"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(_PACKAGE_ROOT)},
                start_new_session=True,
            )
        self.started.append(shim)

    def _owner_arguments(self) -> list[str]:
        if not self.watch_pid:
            return []
        return [str(self.watch_pid), str(processes.start_ticks(self.watch_pid))]
