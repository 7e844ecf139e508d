"""The guard of one task: a small process that starts the task, waits for it, and writes down how it ended.

It is forked from the shim without a new program, and it outlives the shim. All orphans of its task become its
children, whatever session or environment they have moved to; it ends them before it says that the task has ended.
What it knows it writes into the task's status file (`guard_status`). When the task has ended, the shim may give it
another one, which costs less than a fork (`guard_processes`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from scheduler.agent import cpus, numa, processes
from scheduler.agent.isolation.cell import Cell, Hold, hold
from scheduler.agent.isolation.cgroups import SHARE_SECONDS
from scheduler.agent.protocol import KEY_VARIABLE, TaskOrder
from scheduler.agent.shim.folders.output_files import OutputCopies
from scheduler.agent.shim.forks import first_task
from scheduler.agent.shim.forks.first_task import APPEND, DEFAULT_SIGNALS
from scheduler.agent.shim.guard_status import StatusWriter
from scheduler.agent.shim.probes.runner import Probes
from scheduler.agent.shim.wire import as_line

#: Names the task's status file there too. Keys are unique in one portal; a machine may have agents of several portals.
STATUS_FILE_VARIABLE: Final = "MUSTER_TASK_SLIP"
#: Says what of a task could be bound to its NUMA domain: "cpus,memory", "cpus" or nothing.
NUMA_VARIABLE: Final = "MUSTER_NUMA_BOUND"
#: The longest order that is given to a guard by its socket.
MAX_ORDER_BYTES: Final = 64 * 1024
#: A descriptor beside an order.
_FD: Final = struct.Struct("i")
#: A task that ends within this is announced once, with its end: to announce its start as well would wake shim, agent
#: and server once more for it.
SHORT_SECONDS: Final = 0.005
#: A task with one of these in its order needs its guard while it runs.
_NEED_GUARD: Final = {"probes", "output"}
#: Of a guard's first task: it is isolated; it needs none of that; its processes move into their CPU group later.
_ISOLATES: Final = b"i"
_LEAN: Final = b"l"
_SHARES_LATE: Final = b"s"
#: The guard of a task that has run for longer than this has no other one: the next guard is small again, and a fork is
#: little beside such a task.
LONG_SECONDS: Final = 5.0
#: How long the end of a task waits for processes that cannot be killed.
UNKILLABLE_SECONDS: Final = 10.0

_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
_SIG_DFL: Final = 0
_SIG_IGN: Final = 1
#: No shim has more files open than this: a socket, a journal, some pipes.
_MOST_FILES: Final = 1024


@dataclass(frozen=True, slots=True)
class Assigned:
    """A task that a guard is to run: its locked status file, the order, and the CPUs to bind it to (none = all)."""

    status_file: int
    status_path: str
    order: TaskOrder
    bind_to: tuple[int, ...]


def become_subreaper(process_name: str = "") -> None:
    """Have orphans of our descendants become our children instead of init's, so that none escapes."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if process_name:
            name_process(process_name)


def name_process(name: str) -> None:
    """Set the short name of this process, which what is forked from it inherits."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


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


def serve(data: bytes, *, status_file: int, orders: int, announce_fd: int) -> NoReturn:
    """Be a guard: run the task of `first_message`, then each task that comes by the socket `orders`.

    It ends when the shim has closed that or is gone. All of its tasks run in one cell. The key of a task is written to
    `announce_fd` after each line of its status file. Its process has a session of its own, and `prepare` was called in
    it or in the one that it was forked from.
    """
    become_subreaper()
    name, private_tmp, viewed_state, marks, rest = data.split(b"\0", 4)
    key = name.decode()
    show_as("muster guard of task " + key)
    try:
        held = hold(
            isolates=_ISOLATES in marks, private_tmp=private_tmp.decode(), viewed_state=viewed_state.decode()
        )
    except OSError as error:
        status = StatusWriter(status_file, announce_fd, key)
        status.write({"guard": os.getpid(), "key": key}, announce=False)
        status.write({"error": f"The task could not be isolated: {error}."[:300], "worn": True})
        os._exit(0)
    first = _First(rest, status_file, announce_fd, held)
    cell = _run_first(first, name, marks) if _LEAN in marks else first.run()
    if cell is None:
        os._exit(0)
    os.close(status_file)  # and with it the lock
    _serve_orders(socket.socket(fileno=orders), announce_fd, cell)


def _serve_orders(orders: socket.socket, announce_fd: int, cell: Cell) -> NoReturn:
    while (assigned := _receive(orders)) is not None:
        show_as(f"muster guard of task {assigned.order['key']}")
        status = StatusWriter(assigned.status_file, announce_fd, assigned.order["key"])
        if not _run(assigned, status, cell):
            break
        os.close(assigned.status_file)
    os._exit(0)


def first_message(order: TaskOrder, status_path: str, bind_to: tuple[int, ...], cell: Cell) -> bytes:
    """What a guard is forked with: what it needs to know at once, then the order and the cell, which it reads later."""
    rest = {"order": order, "status_path": status_path, "bind_to": bind_to, "cell": cell.as_json()}
    marks = _ISOLATES if cell.isolates else b""
    if not order.keys() & _NEED_GUARD:
        marks += _LEAN
    if cell.shares_late and not order.get("cpu_limit_millis"):
        marks += _SHARES_LATE
    head = (order["key"].encode(), os.fsencode(cell.private_tmp), os.fsencode(cell.viewed_state), marks)
    return b"\0".join([*head, as_line(rest)])


class _First:
    """A guard's first task, as the rest of the message about it says; the guard itself reads that late."""

    def __init__(self, rest: bytes, status_file: int, announce_fd: int, held: Hold) -> None:
        self._rest, self._status_file = rest, status_file
        self.announce_fd, self.held = announce_fd, held

    def read(self) -> tuple[Assigned, StatusWriter, Cell]:
        fields = json.loads(self._rest)
        cell = Cell.of(fields.pop("cell"), self.held)
        assigned = Assigned(self._status_file, **fields)
        return assigned, StatusWriter(self._status_file, self.announce_fd, assigned.order["key"]), cell

    def run(self) -> Cell | None:
        """As a later task is run; returns the cell, None where no other task may come."""
        assigned, status, cell = self.read()
        return cell if _run(assigned, status, cell) else None

    def become(self, report: int) -> NoReturn:
        """In a process forked from the guard: become the task's program."""
        assigned, status, cell = self.read()
        _name_in_environment(assigned)
        first_task.become(
            assigned.order,
            cell,
            status,
            report=report,
            binding=lambda: _bound(assigned),
            why_not=lambda error: why_not_started(assigned.order, error),
        )

    def share_cpu(self) -> None:
        self.read()[2].share_cpu()


def send_order(orders: socket.socket, data: bytes, status_file: int) -> None:
    """Give a guard that waits another task; raises OSError where it is gone."""
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _FD.pack(status_file))]
    orders.sendmsg([data], beside, socket.MSG_DONTWAIT)


def _receive(orders: socket.socket) -> Assigned | None:
    """The next task; None when there is none any more."""
    show_as("muster guard without a task")
    try:
        # Not `socket.recv_fds`, which ignores flags: the task would inherit the file, and its lock with it.
        data, beside, _, _ = orders.recvmsg(
            MAX_ORDER_BYTES, socket.CMSG_SPACE(_FD.size), socket.MSG_CMSG_CLOEXEC
        )
    except OSError:
        return None
    if not data or not beside:
        return None
    return Assigned(*_FD.unpack(beside[0][2]), **json.loads(data))


def _run(assigned: Assigned, status: StatusWriter, cell: Cell) -> bool:
    """Start a task, wait for it, end what it has left, and write down all of it; whether another task may come."""
    order = assigned.order
    status.write({"guard": cell.pid, "key": order["key"]}, announce=False)
    _name_in_environment(assigned)
    copies = OutputCopies(order)
    try:
        leader = _launch(assigned, cell, copies)
    except (OSError, ValueError) as error:
        worn = _worn(cell)
        status.write({"error": why_not_started(order, error)} | worn)
        return not worn
    copies.begin()
    line = {"pid": cell.pid_of(leader), "ticks": processes.start_ticks(leader), "at": processes.boot_ms()}
    status.write(line, announce=False)
    probes = _probes(order, leader, cell, status) if "probes" in order else None  # due from now on
    if not _ends_within(leader, SHORT_SECONDS):
        status.announce()
        if cell.shares_late and not _ends_within(leader, SHARE_SECONDS):
            cell.share_cpu()
    usage = Usage()
    end = _wait_for(leader, usage, probes, status)
    left = end_descendants(UNKILLABLE_SECONDS, usage)
    copies.finish()
    return _write_end(end, line["at"], left, usage, cell, status)


def _run_first(first: _First, key: bytes, marks: bytes) -> Cell | None:
    """Run a guard's first task; returns the cell, None where no other task may come.

    Until the task has ended, as little of Python is used as can be: what is used takes memory.
    """
    leader, said = first_task.start(first.become)
    if not first_task.runs(said):
        _say_not_started(first, leader, said)
        return None
    if not _ends_within(leader, SHORT_SECONDS):
        try:  # noqa: SIM105  a `with` takes memory
            os.write(first.announce_fd, key + b"\n")
        except OSError:  # as in `StatusWriter.announce`
            pass
        if _SHARES_LATE in marks and not _ends_within(leader, SHARE_SECONDS):
            _beside(first.share_cpu)
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    usage = Usage()
    _, status, cell = first.read()
    end = _wait_for(leader, usage, None, status)
    left = end_descendants(UNKILLABLE_SECONDS, usage)
    made = first_task.Made.of(said)
    cell.resume(made.cell)
    status.offset = made.status_offset
    usage.without(made.cpu_seconds)
    return cell if _write_end(end, made.started_boot_ms, left, usage, cell, status) else None


def _say_not_started(first: _First, leader: int, said: bytes) -> None:
    """Nothing was started: the forked process has written why, unless there is none, or it was killed."""
    if leader:
        os.waitpid(leader, 0)
    if not said:
        _, status, _ = first.read()
        status.write({"guard": first.held.pid, "key": status.key}, announce=False)
        status.write(
            {"error": "The task could not be started: the node cannot create another process.", "worn": True}
        )


def _name_in_environment(assigned: Assigned) -> None:
    """Have the task's environment name it, by its key and by its status file."""
    assigned.order["env"] |= {
        KEY_VARIABLE: assigned.order["key"],
        STATUS_FILE_VARIABLE: os.path.abspath(assigned.status_path),
    }


def _write_end(
    end: dict[str, Any], began_boot_ms: int, left: int, usage: Usage, cell: Cell, status: StatusWriter
) -> bool:
    """Write down how a task ended; returns once nothing is left of it, with whether another one may come."""
    if left:
        end["left"] = left
    if cell.ran_out_of_memory():
        end["out_of_memory"] = True
    worn = _worn(cell)
    if end["ended"] - began_boot_ms > LONG_SECONDS * 1000:
        worn = {"worn": True}
    status.write(end | usage.as_line() | worn)
    while left:
        time.sleep(1.0)
        left = end_descendants(UNKILLABLE_SECONDS, usage)
    return not worn


def _beside(work: Callable[[], object]) -> None:
    """Do it in a child, whose memory goes with it."""
    try:
        pid = os.fork()
    except OSError:
        work()
        return
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _probes(order: TaskOrder, leader: int, cell: Cell, status: StatusWriter) -> Probes:
    return Probes(
        order, leader, start=lambda spawn: cell.start_beside(order, spawn), on_change=status.write_probes
    )


def _worn(cell: Cell) -> dict[str, bool]:
    """Makes the cell ready for the next task; says where that cannot be, and this guard has had its last one."""
    try:
        return {} if cell.clear() else {"worn": True}
    except OSError:
        return {"worn": True}


def _ends_within(leader: int, seconds: float) -> bool:
    """Whether the first process of the task has ended by then; it is not reaped."""
    deadline = time.monotonic() + seconds
    while os.waitid(os.P_PID, leader, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        left = deadline - time.monotonic()
        # Returns at once for a child of an earlier task, and then waits.
        if left <= 0 or signal.sigtimedwait([signal.SIGCHLD], left) is None:
            return False
    return True


class Usage:
    """What the ended processes of one task have used, by what the kernel says of each: a guard has had tasks before."""

    def __init__(self) -> None:
        self._memory = 0
        self._cpu_seconds = 0.0

    def add(self, used: resource.struct_rusage) -> None:
        """A process that was reaped, with the descendants that it has reaped itself."""
        self._memory = max(self._memory, used.ru_maxrss)
        self._cpu_seconds += used.ru_utime + used.ru_stime

    def without(self, cpu_seconds: float) -> None:
        """Leave out CPU time that was used for the task before its program started."""
        self._cpu_seconds = max(0.0, self._cpu_seconds - cpu_seconds)

    def as_line(self) -> dict[str, int]:
        scale = 1024 if sys.platform == "linux" else 1024 * 1024
        return {"memory_mib": -(-self._memory // scale), "cpu_ms": round(self._cpu_seconds * 1000)}


def _launch(assigned: Assigned, cell: Cell, copies: OutputCopies) -> int:
    """Start the first process of the task; returns its pid. Raises OSError or ValueError."""
    with _bound(assigned):
        return cell.start(assigned.order, lambda: _spawn(assigned.order, copies))


@contextlib.contextmanager
def _bound(assigned: Assigned) -> Iterator[None]:
    """Bind what is started inside to the CPUs and the memory that the task is to have."""
    order = assigned.order
    among = order.get("cpus", [])
    # A task that needs more memory than its domain has free would be killed there: it gets memory from anywhere.
    domain = order.get("memory_domain")
    if domain is not None and numa.free_mib(domain) < order.get("memory_mib", 0):
        domain = None
    bound = ["cpus"] if among and set(among) & set(cpus.usable_cpus()) else []
    with cpus.on_cpus(tuple(assigned.bind_to)), numa.on_memory(domain) as has_memory:
        if "cpus" in order:
            order["env"][NUMA_VARIABLE] = ",".join([*bound, "memory"] if has_memory else bound)
        yield


def _spawn(order: TaskOrder, copies: OutputCopies) -> int:
    """Start the task's program in the present folder and with the present rights; returns its pid."""
    copies.open()
    return os.posix_spawn(
        order["argv"][0],
        order["argv"],
        order["env"],
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, order["folder"] + "/stdout", APPEND, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, order["folder"] + "/stderr", APPEND, 0o600),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=DEFAULT_SIGNALS,
    )


def _wait_for(leader: int, usage: Usage, probes: Probes | None, status: StatusWriter) -> dict[str, Any]:
    """How the first process of the task ended; orphans that end before it are only reaped."""
    while True:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | (os.WNOHANG if probes else 0))
        if found is None:
            assert probes is not None
            _probe(probes, status)
            continue
        if found.si_pid == leader:
            # Before it is reaped: until then no other process can get its number.
            processes.signal_group(leader, signal.SIGKILL)
        _, wait_status, used = os.wait4(found.si_pid, 0)
        code = os.waitstatus_to_exitcode(wait_status)
        if probes is not None and probes.ended(found.si_pid, code):
            continue
        usage.add(used)
        if found.si_pid == leader:
            if probes is not None:
                probes.close()
            return {"ended": processes.boot_ms(), "code": code}


def _probe(probes: Probes, status: StatusWriter) -> None:
    """Check what is due, say once that the task is unhealthy, and wait for the next check or the end of a child."""
    probes.work()
    if sentence := probes.take_unhealthy():
        status.write({"unhealthy": sentence})
    signal.sigtimedwait([signal.SIGCHLD], probes.wait_seconds())


def end_descendants(seconds: float, usage: Usage) -> int:
    """Kill our children, and theirs, until none is left; returns how many children are left when the time is up."""
    deadline, pause = time.monotonic() + seconds, 0.001
    while True:
        while True:
            try:
                pid, _, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return 0
            if pid == 0:
                break
            usage.add(used)
        children = processes.children_of(os.getpid())
        for child in children:
            processes.kill_tree(child)
        if time.monotonic() > deadline:
            return len(children)
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)


@functools.cache
def _command_line_place() -> tuple[int, int]:
    """Where this program's command line is in its memory, and how long it may be; it is the same after a fork."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        return (start, end - start) if 0 < end - start < 65536 else (0, 0)
    except (OSError, IndexError, ValueError):
        return (0, 0)


def find_command_line() -> None:
    """Remember where this process has its command line, for those that are forked from it and `show_as`."""
    _command_line_place()


def become_server(*keep: int) -> None:
    """In the process that guards are forked from: be what each of them is to be, and keep these files."""
    detach_from_shim(*keep)
    name_process("muster-guard")
    show_as("muster guards are forked here")
    # Waited for in `_ends_within`; tasks start without a mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    # A collection would write to each object, and so take its pages from what all guards share.
    gc.disable()
    gc.freeze()


def show_as(text: str) -> None:
    """Set what `ps` shows: a forked guard would look like a second shim."""
    start, length = _command_line_place()
    if length:
        line = text.encode()[: length - 2]
        # A last byte other than NUL has the kernel end the command line at the first NUL, as for setproctitle(3).
        ctypes.memmove(start, line + b"\0" * (length - len(line) - 1) + b"\1", length)
