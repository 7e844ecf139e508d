"""The guards that are children of this shim: each is forked for a task, and given the next one when it has ended.

A fork of a Python process costs several times as much as the task's own process does, so a guard whose task has ended
stays for a while. Which task a guard has is only in memory: a guard of an earlier shim ends with its task.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

from scheduler.agent.isolation import kernel
from scheduler.agent.isolation.accounts import Account
from scheduler.agent.isolation.cell import Cell
from scheduler.agent.isolation.cells import Cells
from scheduler.agent.isolation.namespaces import remember_account
from scheduler.agent.protocol import TaskOrder
from scheduler.agent.shim import guard
from scheduler.agent.shim.forks.server import ForkServer, ForkServerLost
from scheduler.agent.shim.task import ShimTask
from scheduler.agent.shim.wire import as_line

#: Guards that wait for a task, and how long one does: it holds about 1.7 MB.
MOST_IDLE: Final = 16
IDLE_SECONDS: Final = 30.0


@dataclass(eq=False, slots=True)
class GuardProcess:
    """`task` is None while it waits for one of the same `person`, since `idle_since` (monotonic)."""

    pid: int
    orders: socket.socket
    task: ShimTask | None
    person: str
    account: Account | None
    cell: Cell
    group: str
    idle_since: float = 0.0


class GuardProcesses:
    """`announce_fd` is the pipe on which guards say that a status file has a new line; `cells` isolates them."""

    def __init__(self, announce_fd: int, cells: Cells) -> None:
        self._announce_fd, self._cells = announce_fd, cells
        self._server = ForkServer(self._be_guard, self._be_server)
        self._has_clone = kernel.AVAILABLE
        self._by_pid: dict[int, GuardProcess] = {}
        #: The one that has waited for the shortest time is last, and is taken first: its memory is warm.
        self._idle: list[GuardProcess] = []

    def pids(self) -> Iterator[int]:
        """Our children: the guards, and the server that forks them."""
        yield from self._by_pid
        yield self._server.pid

    def assign(
        self,
        task: ShimTask,
        order: TaskOrder,
        *,
        account: Account | None,
        status_path: str,
        status_file: int,
    ) -> None:
        """Have a guard run this task: one of the same person's that waits, else a new one.

        Raises OSError where none can be forked.
        """
        person = order.get("user", "")
        while process := self._take_idle(person, account):
            self._cells.complete(order, account, process.cell)
            data = _as_message(order, status_path, task.cpus)
            if len(data) > guard.MAX_ORDER_BYTES:
                self._idle.append(process)
                break
            try:
                process.cell.charge(task.project)
                guard.send_order(process.orders, data, status_file)
            except OSError:  # it was killed
                process.orders.close()
                continue
            process.task, task.guard_pid = task, process.pid
            task.private_tmp = process.cell.private_tmp
            return
        self._fork(task, order, status_path, status_file, person, account)

    def _take_idle(self, person: str, account: Account | None) -> GuardProcess | None:
        for at in range(len(self._idle) - 1, -1, -1):
            process = self._idle[at]
            if (process.person, process.account) == (person, account) and self._cells.is_current(
                process.cell
            ):
                return self._idle.pop(at)
        return None

    def _fork(
        self,
        task: ShimTask,
        order: TaskOrder,
        status_path: str,
        status_file: int,
        person: str,
        account: Account | None,
    ) -> None:
        cell, group = self._cells.make(account)
        self._cells.complete(order, account, cell)
        needed: TaskOrder = _needed(order)  # type: ignore[assignment]
        data = guard.first_message(needed, status_path, task.cpus, cell)
        try:
            cell.charge(task.project)
            try:
                pid, orders = self._fork_with_orders(data, cell.means.clone_flags, status_file)
            except _NothingForked:
                pid, orders = self._fork_with_orders(data, cell.means.clone_flags, status_file)
        except OSError:
            self._cells.discard(cell, group)
            raise
        task.guard_pid, task.private_tmp = pid, cell.private_tmp
        self._by_pid[pid] = GuardProcess(pid, orders, task, person, account, cell, group)

    def _fork_with_orders(self, data: bytes, namespaces: int, status_file: int) -> tuple[int, socket.socket]:
        """The guard's pid, and our end of its socket. Raises OSError; ForkServerLost where a guard may have begun."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            return self.fork_guard(data, namespaces, status_file, theirs.fileno()), ours
        except ForkServerLost as error:
            theirs.close()
            is_forked = _has_other_end(ours)
            ours.close()
            if is_forked:
                raise
            raise _NothingForked(*error.args) from error
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()

    def fork_guard(self, data: bytes, namespaces: int, status_file: int, orders: int) -> int:
        """Fork it from the server; from here where the kernel, or a container's filter, has no clone3(2)."""
        if self._has_clone or namespaces:
            try:
                return self._server.fork(data, namespaces, status_file=status_file, orders=orders)
            except OSError as error:
                # One that is to be in namespaces must never be forked without: it would mount on the machine itself.
                if error.errno != errno.ENOSYS or namespaces:
                    raise
                self._has_clone = False
        pid = os.fork()
        if pid == 0:
            guard.become_server(status_file, orders, self._announce_fd)
            self._be_guard(data, status_file, orders)
        return pid

    def _be_guard(self, data: bytes, status_file: int, orders: int) -> NoReturn:
        """In a process that was just forked."""
        try:
            guard.serve(data, status_file=status_file, orders=orders, announce_fd=self._announce_fd)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(70)

    def _be_server(self, requests: int) -> None:
        remember_account()
        guard.become_server(requests, self._announce_fd)

    def release(self, task: ShimTask, *, reusable: bool) -> None:
        """The task has ended: its guard may have another one, or goes when it is not `reusable`."""
        process = self._by_pid.get(task.guard_pid)
        if process is None or process.task is not task:
            return
        process.task = None
        if reusable and len(self._idle) < MOST_IDLE:
            process.idle_since = time.monotonic()
            self._idle.append(process)
        else:
            process.orders.close()

    def reaped(self, pid: int) -> ShimTask | None:
        """This child has ended: the task that it had."""
        if self._server.is_ended(pid):
            return None
        process = self._by_pid.pop(pid, None)
        if process is None:
            return None
        process.orders.close()
        self._cells.discard(process.cell, process.group)
        with contextlib.suppress(ValueError):
            self._idle.remove(process)
        return process.task

    def dismiss_idle(self, now: float) -> None:
        """Let those go that have waited for long."""
        while self._idle and now >= self._idle[0].idle_since + IDLE_SECONDS:
            self._idle.pop(0).orders.close()

    def due_at(self) -> Iterator[float]:
        """When `dismiss_idle` has something to do next (monotonic)."""
        if self._idle:
            yield self._idle[0].idle_since + IDLE_SECONDS


class _NothingForked(ForkServerLost):
    """The server has ended before it has forked the guard."""


def _has_other_end(ours: socket.socket) -> bool:
    """Whether a process has the other end of this socket, which has been closed here."""
    try:
        return ours.recv(1, socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _needed(order: TaskOrder) -> dict[str, object]:
    return {name: value for name, value in order.items() if name not in ("script", "meta")}


def _as_message(order: TaskOrder, status_path: str, bind_to: tuple[int, ...]) -> bytes:
    """What a guard needs of an order, as it reads it from its socket."""
    message = {"order": _needed(order), "status_path": status_path, "bind_to": bind_to}
    return as_line(message)
