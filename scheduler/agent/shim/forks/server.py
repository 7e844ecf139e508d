"""The fork server of guards: a process that changes nothing between two forks.

A page of memory is shared after a fork until one side writes to it, and the shim writes to its pages all the time: each
guard that it forks keeps, for itself alone, whatever the shim changes afterwards. This process does nothing but fork,
so that guards share with it, and with each other, all that they do not change themselves. It is forked from the shim,
and a guard's parent is the shim all the same (CLONE_PARENT). It ends with the shim.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from typing import Final, NoReturn

from scheduler.agent.isolation import kernel

#: The length of what a guard gets, and the namespaces that it is forked into.
_REQUEST: Final = struct.Struct("=IQ")
#: Beside it: the status file of the guard's first task, and its end of the socket for orders.
_FILES: Final = struct.Struct("=2i")
#: The process that was forked, or the negative number of an error.
_ANSWER: Final = struct.Struct("=q")
#: A server that does not answer for so long is killed.
ANSWER_SECONDS: Final = 10.0

#: What a guard does: (what it was sent, status file, socket for orders).
Guard = Callable[[bytes, int, int], NoReturn]


class ForkServerLost(OSError):
    """The server has ended, or was killed because it did not answer: a guard may have been forked before."""


class ForkServer:
    """The shim's side: starts the server when it is needed, and again after it was killed.

    `become(*keep)` is called in the server first, and makes it a process of its own that keeps these files.
    """

    def __init__(self, guard: Guard, become: Callable[..., None]) -> None:
        self._guard, self._become = guard, become
        #: The process of the server; 0 while there is none.
        self.pid = 0
        self._requests: socket.socket | None = None

    def fork(self, data: bytes, namespaces: int, *, status_file: int, orders: int) -> int:
        """Fork a guard, which is our child; returns its pid. Raises OSError, ForkServerLost where it may live."""
        try:
            self._send(data, namespaces, status_file, orders)
        except OSError:  # it was killed, and has forked nothing: it has not got all of this
            self.stop()
            self._send(data, namespaces, status_file, orders)
        assert self._requests is not None
        try:
            answer = self._requests.recv(_ANSWER.size, socket.MSG_WAITALL)
        except OSError as error:
            self.stop()
            raise ForkServerLost(
                error.errno, f"the fork server of guards does not answer: {error}"
            ) from error
        if len(answer) < _ANSWER.size:
            self.stop()
            raise ForkServerLost(0, "the fork server of guards has ended")
        (pid,) = _ANSWER.unpack(answer)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return int(pid)

    def _send(self, data: bytes, namespaces: int, status_file: int, orders: int) -> None:
        requests = self._requests or self._start()
        requests.sendmsg(
            [_REQUEST.pack(len(data), namespaces)],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _FILES.pack(status_file, orders))],
        )
        requests.sendall(data)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            try:
                self._become(theirs.fileno())
                _serve(theirs, self._guard)
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(70)
        theirs.close()
        ours.settimeout(ANSWER_SECONDS)
        self.pid, self._requests = pid, ours
        return ours

    def is_ended(self, pid: int) -> bool:
        """Whether this child, which has ended, was the server."""
        if pid != self.pid:
            return False
        self._forget()
        return True

    def stop(self) -> None:
        """End the server; it is reaped like every child."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, 9)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        self._forget()

    def _forget(self) -> None:
        if self._requests is not None:
            self._requests.close()
        self.pid, self._requests = 0, None


def _serve(requests: socket.socket, guard: Guard) -> NoReturn:
    """Fork what is asked for until the shim is gone.

    What a turn touches, each guard has in memory of its own: so it does little, and in the words of C where it can.
    """
    file, size, space = requests.fileno(), _REQUEST.size, socket.CMSG_SPACE(_FILES.size)
    whole = int(socket.MSG_WAITALL)
    closed_on_exec = whole | int(socket.MSG_CMSG_CLOEXEC)
    receive_message, receive, send = requests.recvmsg, requests.recv, requests.send
    while True:
        head, beside, _, _ = receive_message(size, space, closed_on_exec)
        if len(head) < size:
            os._exit(0)
        length, namespaces = _REQUEST.unpack(head)
        data = receive(length, whole)
        status_file, orders = _FILES.unpack(beside[0][2])
        try:
            pid = kernel.fork_into(namespaces | kernel.CLONE_PARENT)
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            os.close(file)
            os.setsid()
            guard(data, status_file, orders)
        os.close(status_file)
        os.close(orders)
        send(_ANSWER.pack(pid))
