"""The guard of one task: a small process that starts the task, waits for it, and writes down how it ended.

It is forked from the shim without a new program, so it costs about a millisecond, and it outlives the shim. All
orphans of its task become its children, whatever session or environment they have moved to; it ends them before it
says that the task has ended. What it knows it writes into the task's status file (`guard_status`).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from typing import Any, Final, NoReturn

from scheduler.agent import cpus, numa, processes
from scheduler.agent.protocol import KEY_VARIABLE, TaskOrder
from scheduler.agent.shim.guard_status import StatusWriter, create_status_file

#: Names the task's status file there too. Keys are unique in one portal; a machine may have agents of several portals.
STATUS_FILE_VARIABLE: Final = "MUSTER_TASK_SLIP"
#: Says what of a task could be bound to its NUMA domain: "cpus,memory", "cpus" or nothing.
NUMA_VARIABLE: Final = "MUSTER_NUMA_BOUND"
#: How long the end of a task waits for processes that cannot be killed.
UNKILLABLE_SECONDS: Final = 10.0

_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
_SIG_DFL: Final = 0
_SIG_IGN: Final = 1
#: No shim has more files open than this: a socket, a journal, some pipes.
_MOST_FILES: Final = 1024
#: Python ignores some signals, and a child would inherit that.
_DEFAULT_SIGNALS: Final = [signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD]


def fork_guard(order: TaskOrder, status_path: str, *, bind_to: tuple[int, ...], announce_fd: int) -> int:
    """Start the guard of this task, which starts the task; returns the guard's pid.

    The guard writes the task's key to `announce_fd` after each line of its status file. Raises OSError, also where
    the status file exists already. What can be done before the fork is: after it, everything costs several times as
    much.
    """
    status_file = create_status_file(status_path)
    try:
        make_folder(order)
        pid = os.fork()
        if pid == 0:
            try:
                order["env"] |= {
                    KEY_VARIABLE: order["key"], STATUS_FILE_VARIABLE: os.path.abspath(status_path),
                }  # fmt: skip
                _guard(order, status_file, bind_to, announce_fd)
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(70)
        return pid
    finally:
        os.close(status_file)  # the guard has inherited it, and with it the lock


def make_folder(order: TaskOrder) -> None:
    folder = order["folder"]
    os.mkdir(folder, 0o700)
    os.mkdir(folder + "/work", 0o700)
    if order["script"]:
        with open(folder + "/script", "x", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(order["script"])
            os.fchmod(file.fileno(), 0o700)


def become_subreaper(process_name: str) -> None:
    """Have orphans of our descendants become our children instead of init's, so that none escapes."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _LIBC.prctl(_PR_SET_NAME, process_name.encode(), 0, 0, 0)


def detach_from_shim(*keep: int) -> None:
    """In a child of the shim: a session of its own, no open files but these, and only SIGKILL ends it."""
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


def why_not_started(order: TaskOrder, error: OSError | ValueError) -> str:
    """A sentence for people about a task that could not be started."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.filename == order["cwd"]:
        return f"The working directory {order['cwd'][:300]} cannot be used on this node: {reason[:100]}."
    return f"The task could not be started: {reason[:400]}."


# ---------------------------------------------------------------- the process itself


def _guard(order: TaskOrder, status_file: int, bind_to: tuple[int, ...], announce_fd: int) -> NoReturn:
    detach_from_shim(status_file, announce_fd)
    become_subreaper("muster-guard")
    _show_as(f"muster guard of task {order['key']}")
    status = StatusWriter(status_file, announce_fd, order["key"])
    status.write({"guard": os.getpid()}, announce=False)
    try:
        leader = _launch(order, bind_to)
    except (OSError, ValueError) as error:
        status.write({"error": why_not_started(order, error)})
        os._exit(0)
    status.write({"pid": leader, "ticks": processes.start_ticks(leader), "at": processes.boot_ms()})
    end = _wait_for(leader)
    if left := _end_descendants(UNKILLABLE_SECONDS):
        end["left"] = left
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    scale = 1024 if sys.platform == "linux" else 1024 * 1024
    end["memory_mib"] = -(-usage.ru_maxrss // scale)
    end["cpu_ms"] = round((usage.ru_utime + usage.ru_stime) * 1000)
    status.write(end)
    while left:
        time.sleep(1.0)
        left = _end_descendants(UNKILLABLE_SECONDS)
    os._exit(0)


def _launch(order: TaskOrder, bind_to: tuple[int, ...]) -> int:
    """Start the first process of the task; returns its pid. Raises OSError or ValueError."""
    folder = order["folder"]
    os.chdir(order["cwd"])
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    among = order.get("cpus", [])
    # A task that needs more memory than its domain has free would be killed there: it gets memory from anywhere.
    domain = order.get("memory_domain")
    if domain is not None and numa.free_mib(domain) < order.get("memory_mib", 0):
        domain = None
    bound = ["cpus"] if set(among) & set(cpus.usable_cpus()) else []
    with cpus.on_cpus(bind_to), numa.on_memory(domain) as has_memory:
        if "cpus" in order:
            order["env"][NUMA_VARIABLE] = ",".join([*bound, "memory"] if has_memory else bound)
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


def _wait_for(leader: int) -> dict[str, Any]:
    """How the first process of the task ended; orphans that end before it are only reaped."""
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


def _end_descendants(seconds: float) -> int:
    """Kill our children, and theirs, until none is left; returns how many children are left when the time is up."""
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
    """Set what `ps` shows: a forked guard would look like a second shim."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        if 0 < end - start < 65536:
            line = text.encode()[: end - start - 1]
            ctypes.memmove(start, line + b"\0" * (end - start - len(line)), end - start)
    except (OSError, IndexError, ValueError):
        pass
