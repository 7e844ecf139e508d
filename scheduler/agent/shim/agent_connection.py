"""The shim's side of its socket: one agent at a time, which gets every record when it connects."""

from __future__ import annotations

import contextlib
import hmac
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from scheduler.agent.isolation.connection_key import read_key
from scheduler.agent.protocol import TaskRecord
from scheduler.agent.shim.wire import Wire

#: More that have not said the key are not kept waiting.
MOST_UNPROVEN: Final = 8


class AgentConnection:
    """Listens in the state folder; a new agent takes the place of the one before it.

    `records` returns what an agent gets when it connects, `fault` why no task can start
    now ("" = none). Where the folder has a key (`connection_key`), only who
    says it first is an agent.
    """

    def __init__(
        self,
        state: Path,
        selector: selectors.BaseSelector,
        records: Callable[[], list[TaskRecord]],
        fault: Callable[[], str] = str,
    ) -> None:
        self._selector = selector
        self._records, self._fault = records, fault
        self._fault_said = ""
        self._wire: Wire | None = None
        #: Connections that have not said the key yet, the oldest first.
        self._unproven: dict[int, Wire] = {}
        self._state = state
        self._state_fd = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        #: When the last agent went, on the monotonic clock; before the first one, when the shim started.
        self.left_at = time.monotonic()

    @property
    def is_open(self) -> bool:
        return self._wire is not None

    def absent_seconds(self, now: float) -> float:
        """How long there has been no agent; 0 while there is one."""
        return 0.0 if self.is_open else now - self.left_at

    def listen(self) -> socket.socket:
        """Open the socket that agents connect to."""
        path = "keeper.sock"  # relative: an absolute one may be longer than the kernel takes
        os.fchdir(self._state_fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(4)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, "listener")
        return listener

    def accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        wire = Wire(connection)
        self._selector.register(wire, selectors.EVENT_READ, "agent")
        if read_key(self._state):
            self._unproven[wire.fileno()] = wire
            if len(self._unproven) > MOST_UNPROVEN:
                self._drop(next(iter(self._unproven)))
        else:
            self._accept_as_agent(wire)

    def _accept_as_agent(self, wire: Wire) -> None:
        """This one is the agent now."""
        self.disconnect()
        self._wire = wire
        self._fault_said = self._fault()
        tasks = self._records()
        self._send({"event": "all", "pid": os.getpid(), "tasks": tasks, "fault": self._fault_said})

    def disconnect(self) -> None:
        if self._wire is not None:
            self._selector.unregister(self._wire)
            self._wire.close()
            self._wire = None
            self.left_at = time.monotonic()

    def handle(self, fd: int, events: int) -> list[dict[str, Any]]:
        """Read commands and send what waits; events of a connection that is closed by now mean nothing."""
        if fd in self._unproven:
            return self._prove(fd)
        if self._wire is None or fd != self._wire.fileno():
            return []
        commands = self._read(self._wire) if events & selectors.EVENT_READ else []
        if events & selectors.EVENT_WRITE:
            self._send()
        return commands

    def _prove(self, fd: int) -> list[dict[str, Any]]:
        """Make a connection the agent's when it says the key first, and drop it when it does not."""
        commands = self._unproven[fd].receive()
        if commands == []:
            return []
        said = str(commands[0].get("key", "")) if commands else ""
        key = read_key(self._state)
        if not commands or not hmac.compare_digest(said.encode(), key.encode()):
            self._drop(fd)
            return []
        self._accept_as_agent(self._unproven.pop(fd))
        return commands[1:]

    def _drop(self, fd: int) -> None:
        wire = self._unproven.pop(fd)
        self._selector.unregister(wire)
        wire.close()

    def publish(self, changed: list[TaskRecord]) -> None:
        """Send the records that have changed, and the fault where that has."""
        fault = self._fault()
        if fault != self._fault_said:
            self._fault_said = fault
            self._send({"event": "changed", "tasks": changed, "fault": fault})
        elif changed:
            self._send({"event": "changed", "tasks": changed})

    def _read(self, wire: Wire) -> list[dict[str, Any]]:
        commands = wire.receive()
        if commands is None:
            self.disconnect()
            return []
        return commands

    def _send(self, *messages: dict[str, Any]) -> None:
        if self._wire is None:
            return
        if not self._wire.send(*messages):
            self.disconnect()  # the agent connects again, and then gets everything
            return
        more = selectors.EVENT_WRITE if self._wire.backlog else 0
        self._selector.modify(self._wire, selectors.EVENT_READ | more, "agent")
