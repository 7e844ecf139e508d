"""The guard of one task: a small process that starts it, waits for it, and writes down how it ended.

It is forked from the keeper without a new program, so it costs about a millisecond, and outlives the keeper. All
orphans of its task become its children, whatever session or environment they have moved to; it ends them before it
says that the task has ended.

What it knows is in a file of its own, the task's *slip*: a few lines of JSON, whose space is set aside before the
task starts, so that a full disk loses no exit code. The lock of that file is held from before the guard is there
until it is gone: nobody has to trust the number of a process, and a slip that is free and empty is of a task that
never began.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from scheduler.agent import limits, numa, processes
from scheduler.agent.protocol import TaskOrder

#: Names the task in the environment of its processes, unless they clear it.
KEY_VARIABLE: Final = "MUSTER_TASK_KEY"
#: Names the task's slip there. Keys are unique in one portal; a machine may have agents of several.
SLIP_VARIABLE: Final = "MUSTER_TASK_SLIP"
#: Says what of a task could be bound to its NUMA domain: "cpus,memory", "cpus" or nothing.
NUMA_VARIABLE: Final = "MUSTER_NUMA_BOUND"
#: Set aside for a slip.
SLIP_BYTES: Final = 4096
#: How long the end of a task waits for processes that cannot be killed.
STUBBORN_SECONDS: Final = 10.0

_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
_SIG_DFL: Final = 0
_SIG_IGN: Final = 1
#: No keeper has more open than this: a socket, a journal, some pipes.
_MOST_FILES: Final = 1024
#: Python ignores some signals, and a child would inherit that.
_DEFAULT_SIGNALS: Final = [signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD]


@dataclass(frozen=True, slots=True)
class Slip:
    """What a guard has written; `alive` says whether it still runs."""

    alive: bool
    lines: tuple[dict[str, Any], ...] = ()

    def line(self, name: str) -> dict[str, Any] | None:
        return next((line for line in self.lines if name in line), None)

    @property
    def began(self) -> bool:
        """Whether the task may have begun: its guard writes a line before it starts anything."""
        return self.line("guard") is not None


def read_slip(path: str) -> Slip:
    """What the guard wrote there, and whether it lives; of one that does not, these were its last words."""
    try:
        slip = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return Slip(alive=False)
    try:
        try:
            fcntl.flock(slip, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Slip(alive=True, lines=_lines(slip))
        return Slip(alive=False, lines=_lines(slip))  # read once the lock is ours
    finally:
        os.close(slip)


def _lines(slip: int) -> tuple[dict[str, Any], ...]:
    found = []
    for line in os.pread(slip, SLIP_BYTES, 0).rstrip(b"\0").split(b"\n"):
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return tuple(found)


def fork_guard(order: TaskOrder, slip_path: str, *, cpus: tuple[int, ...], news: int) -> int:
    """Start the guard of this task, which starts the task; answers the guard's pid.

    Each line that it writes to its slip it announces by the task's key on `news`. Raises OSError, also where there is
    a slip already. What can be done before the fork is: there it costs a fraction.
    """
    slip = os.open(slip_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(slip, fcntl.LOCK_EX)  # the guard inherits it, and has it alone once we have closed ours
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(slip, 0, SLIP_BYTES)
        make_folder(order)
        pid = os.fork()
        if pid == 0:
            try:
                order["env"] |= {KEY_VARIABLE: order["key"], SLIP_VARIABLE: os.path.abspath(slip_path)}
                _guard(order, slip, cpus, news)
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(70)
        return pid
    finally:
        os.close(slip)


def make_folder(order: TaskOrder) -> None:
    folder = order["folder"]
    os.mkdir(folder, 0o700)
    os.mkdir(folder + "/work", 0o700)
    if order["script"]:
        with open(folder + "/script", "x", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(order["script"])
            os.fchmod(file.fileno(), 0o700)


def be_reaper(name: str) -> None:
    """Orphans of our descendants become our children instead of init's, so that they cannot slip away."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _LIBC.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def leave_the_keeper(*keep: int) -> None:
    """In a child of the keeper: a session of its own, none of its files but these, and no signal but SIGKILL."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    if _LIBC is not None:  # Python's own takes several times as long in a process this young
        _LIBC.signal(int(signal.SIGCHLD), ctypes.c_void_p(_SIG_DFL))
        for number in (15, 2, 1):  # TERM, INT, HUP
            _LIBC.signal(number, ctypes.c_void_p(_SIG_IGN))
    first = 3
    for kept in (*sorted(keep), _MOST_FILES):
        os.closerange(first, kept)
        first = kept + 1


# ---------------------------------------------------------------- the process itself


def _guard(order: TaskOrder, slip: int, cpus: tuple[int, ...], news: int) -> NoReturn:
    leave_the_keeper(slip, news)
    be_reaper("muster-guard")
    _show_as(f"muster guard of task {order['key']}")
    book = _Book(slip, news, order["key"])
    book.write({"guard": os.getpid()}, tell=False)
    try:
        leader = _launch(order, cpus)
    except (OSError, ValueError) as error:
        book.write({"error": why_not_started(order, error)})
        os._exit(0)
    book.write({"pid": leader, "ticks": processes.start_ticks(leader), "at": processes.boot_ms()})
    end = _wait_for(leader)
    if left := _end_the_rest(STUBBORN_SECONDS):
        end["left"] = left
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    scale = 1024 if sys.platform == "linux" else 1024 * 1024
    end["memory_mib"] = -(-usage.ru_maxrss // scale)
    end["cpu_ms"] = round((usage.ru_utime + usage.ru_stime) * 1000)
    book.write(end)
    while left:
        time.sleep(1.0)
        left = _end_the_rest(STUBBORN_SECONDS)
    os._exit(0)


class _Book:
    """Writes the lines of a slip into the space that was set aside for them."""

    def __init__(self, slip: int, news: int, key: str) -> None:
        self.slip, self.news, self.key = slip, news, key
        self.at = 0

    def write(self, line: dict[str, Any], *, tell: bool = True) -> None:
        self.at += os.pwrite(self.slip, json.dumps(line, separators=(",", ":")).encode() + b"\n", self.at)
        if tell:
            with contextlib.suppress(OSError):  # the keeper is gone, or far behind: it looks by itself
                os.write(self.news, self.key.encode() + b"\n")


def _launch(order: TaskOrder, cpus: tuple[int, ...]) -> int:
    folder = order["folder"]
    os.chdir(order["cwd"])
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    among = order.get("cpus", [])
    # What does not fit into its domain as it is now would be killed there: it gets memory where there is some.
    domain = order.get("memory_domain")
    if domain is not None and numa.free_mib(domain) < order.get("memory_mib", 0):
        domain = None
    kept = ["cpus"] if set(among) & set(limits.usable()) else []
    with limits.on_cpus(cpus), numa.on_memory(domain) as has_memory:
        if "cpus" in order:
            order["env"][NUMA_VARIABLE] = ",".join([*kept, "memory"] if has_memory else kept)
        leader = os.posix_spawn(
            order["argv"][0],
            order["argv"],
            order["env"],
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, folder + "/stdout", append, 0o600),
                (os.POSIX_SPAWN_OPEN, 2, folder + "/stderr", append, 0o600),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=_DEFAULT_SIGNALS,
        )
    os.chdir("/")  # no folder of the task is held
    return leader


def why_not_started(order: TaskOrder, error: OSError | ValueError) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.filename == order["cwd"]:
        return f"The working directory {order['cwd'][:300]} cannot be used on this node: {reason[:100]}."
    return f"The task could not be started: {reason[:400]}."


def _wait_for(leader: int) -> dict[str, Any]:
    """How it ended; orphans that end before are only reaped."""
    while True:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert found is not None
        if found.si_pid == leader:
            # Before it is reaped: until then no other process can get its number.
            processes.signal_group(leader, signal.SIGKILL)
        _, status = os.waitpid(found.si_pid, 0)
        if found.si_pid == leader:
            code = os.waitstatus_to_exitcode(status)
            return {"ended": processes.boot_ms(), "code": code}


def _end_the_rest(seconds: float) -> int:
    """Kill our children, and theirs, until none is left; answers how many are left when the time is up."""
    deadline, pause = time.monotonic() + seconds, 0.001
    while True:
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                return 0
        children = processes.children_of(os.getpid())
        for child in children:
            processes.kill_tree(child)
        if time.monotonic() > deadline:
            return len(children)
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)


def _show_as(text: str) -> None:
    """What `ps` shows: else each guard would look like another keeper."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        if 0 < end - start < 65536:
            line = text.encode()[: end - start - 1]
            ctypes.memmove(start, line + b"\0" * (end - start - len(line)), end - start)
    except (OSError, IndexError, ValueError):
        pass
