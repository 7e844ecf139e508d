"""`python -m config.up.forks.fork_server`: loads modules once, and forks the processes that need them.

A process that is forked here shares the memory of what was loaded for as long as neither writes to it, and it begins
in milliseconds where a new interpreter loads for seconds. It is otherwise like one that was started by itself: its own
session, environment, command line, log and exit. It becomes a child of the supervisor, not of this process, so that it
neither ends with this process nor is counted by it. `config.up.forks.forking` is the other side.

Nothing that is loaded may start a thread or open a connection, for a fork would copy half of it.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

from scheduler.agent.shim.guard import find_command_line, show_as

#: Descriptors keep their numbers in the process that is forked, so no module may take one below this.
PASSED_BELOW: Final = 64
#: The last argument: a command line can only be written over, and that of a forked process is longer than ours.
ROOM: Final = "." * 2000
#: Descriptors that come with an order: a log, the pipe on which the supervisor answers, a listening socket.
MOST_FDS: Final = 16
#: What is answered where there was no room for another process.
REFUSED: Final = -1
_PR_SET_PDEATHSIG: Final = 1
#: A thread that has been joined is among the kernel's for a while, on a busy machine.
THREADS_END_SECONDS: Final = 5.0

Order = dict[str, Any]


def main(arguments: list[str]) -> int:
    given = _parse(arguments)
    find_command_line()
    _show("config.up.forks.fork_server", arguments[:-1])
    supervisor = socket.socket(fileno=given.fd)
    preloaded = _load(given.preload)
    require_forkable()
    given.ready_file.touch()
    forked = serve(supervisor)
    if forked is None:
        return 0
    supervisor.close()
    become(*forked)
    for module in preloaded:
        if begin := getattr(module, "begin_forked", None):
            begin()
    runpy.run_module(forked[0]["module"], run_name="__main__", alter_sys=True)
    return 0


def _parse(arguments: list[str]) -> Namespace:
    parser = ArgumentParser(prog="python -m config.up.forks.fork_server")
    parser.add_argument("--fd", type=int, required=True, help="socket on which orders come")
    parser.add_argument("--ready-file", type=Path, required=True, help="file to make once all is loaded")
    parser.add_argument(
        "--preload", action="append", required=True,
        help="module to load; its load_before_forks() loads more, its begin_forked() is called in what is forked",
    )  # fmt: skip
    parser.add_argument("room", help="anything; written over by longer command lines")
    return parser.parse_args(arguments)


def _load(names: list[str]) -> list[Any]:
    """Import these modules and call their `load_before_forks`; what they open gets no number below `PASSED_BELOW`."""
    held: list[int] = []
    while not held or held[-1] < PASSED_BELOW:
        held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    # Collecting garbage would move what is freed and taken again through all of the memory that is to be shared.
    gc.disable()
    modules = [importlib.import_module(name) for name in names]
    for module in modules:
        if load := getattr(module, "load_before_forks", None):
            load()
    for fd in held:
        os.close(fd)
    gc.freeze()  # no later collection writes to it
    return modules


def require_forkable(*, patience_seconds: float = THREADS_END_SECONDS) -> None:
    """Raise RuntimeError where a thread runs beside us; one that was joined is there for a moment longer."""
    deadline = time.monotonic() + patience_seconds
    while len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > deadline:
            names = ", ".join(one.name for one in threading.enumerate() if one is not threading.main_thread())
            raise RuntimeError(
                "a module that was loaded has started a thread, and a process with threads cannot be forked: "
                + (names or "one that Python does not know")
            )
        time.sleep(0.01)


# ---------------------------------------------------------------- orders


def serve(supervisor: socket.socket) -> tuple[Order, list[int]] | None:
    """Fork for each order. Returns None when the supervisor is gone, and in a forked process its order."""
    while True:
        received = _receive(supervisor)
        if received is None:
            return None
        order, fds = received
        try:
            pid = _fork()
        except OSError as error:
            print(f"could not fork {order['module']}: {error}", file=sys.stderr, flush=True)
            pid = REFUSED
        if pid == 0:
            return order, fds
        for fd in fds:
            os.close(fd)
        supervisor.sendall(b"%d\n" % pid)


def _receive(supervisor: socket.socket) -> tuple[Order, list[int]] | None:
    data, fds, _, _ = socket.recv_fds(supervisor, 65536, MOST_FDS)
    while not data.endswith(b"\n"):
        more = supervisor.recv(65536)
        if not more:
            return None
        data += more
    return json.loads(data), fds


def _fork() -> int:
    """Fork a child of the supervisor: its number, and 0 in that child. Raises OSError."""
    read, write = os.pipe()
    try:
        if (middle := os.fork()) == 0:
            _fork_and_end(write)
            os.close(read)
            return 0
    except OSError:
        os.close(read)
        raise
    finally:
        os.close(write)
    with os.fdopen(read, "rb") as number:
        pid = number.read()
    # Once this has ended, the supervisor is the parent of what it forked.
    os.waitpid(middle, 0)
    return int(pid or REFUSED)


def _fork_and_end(write: int) -> None:
    """End in the process between, having written the number of the one that goes on; returns in that one."""
    try:
        pid = os.fork()
    except OSError:
        os._exit(1)
    if pid:
        os.write(write, str(pid).encode())
        os._exit(0)


# ---------------------------------------------------------------- in a forked process


def become(order: Order, fds: list[int]) -> None:
    """Wait until the supervisor knows us, and take on what it has ordered; ends where it does not."""
    # Beyond every number that is to be taken, before the first is.
    log, known, *passed = [_move_up(fd) for fd in fds]
    if not os.read(known, 1):
        os._exit(1)
    os.close(known)
    os.setsid()
    if order["death_signal"]:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, order["death_signal"])
        if os.getppid() != order["supervisor"]:  # it has ended meanwhile
            os._exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for fd, number in ((nothing, 0), (log, 1), (log, 2), *zip(passed, order["pass_fds"], strict=True)):
        os.dup2(fd, number)
    for fd in (nothing, log, *passed):
        os.close(fd)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    _show(order["module"], order["arguments"])
    sys.argv = [order["module"], *order["arguments"]]
    gc.enable()


def _show(module: str, arguments: list[str]) -> None:
    show_as(" ".join([sys.executable, "-m", module, *arguments]))


def _move_up(fd: int) -> int:
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, PASSED_BELOW)
    os.close(fd)
    return moved


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
