"""The keeper: a small process that starts a node's tasks, waits for them, and outlives its agent.

It keeps the only facts that cannot be asked for later: which processes are ours and how they ended. It speaks
JSON lines over a unix socket in the state folder, and writes every step to a journal first. It needs nothing
but the standard library and is started with `-S`, so it stays small and starts fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from scheduler.agent import limits, numa, processes
from scheduler.agent.journal import Journal
from scheduler.agent.protocol import TaskOrder, TaskRecord
from scheduler.agent.wire import Wire

#: How long the keeper stays without an agent: a restart in between adopts what runs.
ORPHAN_SECONDS: Final = 15.0
#: After a fence or a stop of everything; nobody waits for checkpoints then.
SHORT_GRACE_SECONDS: Final = 5
#: How often processes are looked at that are not our children (we were restarted ourselves).
ADOPTED_POLL_SECONDS: Final = 0.25
#: How often the memory of tasks with a limit is looked at.
MEMORY_POLL_SECONDS: Final = 1.0
#: Names the task in the environment of all its processes, also of those that left its process group.
KEY_VARIABLE: Final = "MUSTER_TASK_KEY"

#: Says what of a task could be bound to its NUMA domain: "cpus,memory", "cpus" or nothing.
NUMA_VARIABLE: Final = "MUSTER_NUMA_BOUND"

_PR_SET_CHILD_SUBREAPER: Final = 36
#: Python ignores some signals, and a child would inherit that.
_DEFAULT_SIGNALS: Final = [signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD]


class _Task:
    """A record and what only this process needs: its deadlines."""

    def __init__(self, record: TaskRecord, limit_seconds: int | None, grace_seconds: int) -> None:
        self.record = record
        self.limit_seconds = limit_seconds
        self.grace_seconds = grace_seconds
        self.memory_limit_mib: int | None = None
        self.cpus: tuple[int, ...] = ()  # that it is bound to; () = to none
        self.kill_at: float | None = None
        self.adopted = False

    @property
    def live(self) -> bool:
        return self.record["state"] == "running"

    @property
    def limit_at_boot_ms(self) -> int | None:
        if self.limit_seconds is None or self.record.get("suspended_boot_ms"):
            return None
        still_ms = self.record.get("suspended_ms", 0)
        return self.record["started_boot_ms"] + self.limit_seconds * 1000 + still_ms

    def journal_entry(self) -> dict[str, Any]:
        own = {"limit_seconds": self.limit_seconds, "grace_seconds": self.grace_seconds}
        if self.memory_limit_mib is not None:
            own["memory_limit_mib"] = self.memory_limit_mib
        return {**self.record, **own}


class Keeper:
    """All tasks of one state folder."""

    def __init__(self, state: Path, *, watch: tuple[int, int] = (0, 0)) -> None:
        self.state = state
        self.boot_id = processes.boot_id()
        self.tasks: dict[str, _Task] = {}
        self.by_pid: dict[int, _Task] = {}
        self.journal = Journal(state / "journal.jsonl")
        self.selector = selectors.DefaultSelector()
        self.agent: Wire | None = None
        self.agent_seen_at = time.monotonic()
        self.fence_at: float | None = None
        self.watch = watch
        self.sweep_at: float | None = None
        self.memory_at: float | None = None
        self.ending = False
        self._state_fd = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        """Serve until there is neither an agent nor a task left."""
        self._adopt_children_of_tasks()
        self._wake_on_child_exit()
        listener = self._listen()
        self._recover()
        while not self._may_exit():
            for key, mask in self.selector.select(self._seconds_to_next_deadline()):
                if key.data == "listener":
                    self._welcome(listener)
                elif key.data == "children":
                    os.read(key.fd, 4096)
                elif key.data == "agent" and self.agent is not None and key.fd == self.agent.fileno():
                    if mask & selectors.EVENT_READ:
                        self._hear(self.agent)
                    if mask & selectors.EVENT_WRITE:
                        self._send()
            changed = self._reap() + self._look_at_adopted()
            self._keep_deadlines()
            self._tell(changed)
            self.journal.compact(lambda: [task.journal_entry() for task in self.tasks.values()])

    def _listen(self) -> socket.socket:
        path = "keeper.sock"  # relative: an absolute one may be longer than the kernel takes
        os.fchdir(self._state_fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(4)
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, "listener")
        return listener

    def _wake_on_child_exit(self) -> None:
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.selector.register(read_end, selectors.EVENT_READ, "children")

    def _adopt_children_of_tasks(self) -> None:
        """A task's orphans become our children instead of init's, so that they cannot slip away."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def _may_exit(self) -> bool:
        if any(task.live for task in self.tasks.values()):
            return False
        if self.ending:
            return True
        return self.agent is None and time.monotonic() - self.agent_seen_at > ORPHAN_SECONDS

    def _seconds_to_next_deadline(self) -> float:
        now, boot_ms = time.monotonic(), processes.boot_ms()
        due = [60.0]
        if self.agent is None:
            due.append(1.0)
        if self.fence_at is not None:
            due.append(self.fence_at - now)
        if self.sweep_at is not None:
            due.append(self.sweep_at - now)
        if self.memory_at is not None:
            due.append(self.memory_at - now)
        for task in self.by_pid.values():
            if task.kill_at is not None:
                due.append(task.kill_at - now)
            if task.adopted:
                due.append(ADOPTED_POLL_SECONDS)
            limit = task.limit_at_boot_ms
            if limit is not None and not task.record["stop_reason"]:
                due.append((limit - boot_ms) / 1000)
        return max(0.0, min(due))

    # ------------------------------------------------------------ the agent

    def _welcome(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        self._part()
        self.agent = Wire(connection)
        self.selector.register(self.agent, selectors.EVENT_READ, "agent")
        self._send(
            {"event": "all", "pid": os.getpid(), "tasks": [task.record for task in self.tasks.values()]}
        )

    def _part(self) -> None:
        if self.agent is not None:
            self.selector.unregister(self.agent)
            self.agent.close()
            self.agent = None
            self.agent_seen_at = time.monotonic()

    def _hear(self, agent: Wire) -> None:
        messages = agent.receive()
        if messages is None:
            self._part()
            return
        for message in messages:
            self._obey(message)

    def _obey(self, message: dict[str, Any]) -> None:
        match message.get("op"):
            case "start":
                self._tell(self._start(message["tasks"]))
            case "stop":
                if task := self.tasks.get(message["key"]):
                    self._stop(task, message["reason"], message["grace_seconds"])
            case "pause":
                if task := self.tasks.get(message["key"]):
                    self._pause(task, still=message["still"])
                    self._tell([task.record])
            case "forget":
                self._forget(message["keys"])
            case "lease":
                seconds = message["fence_seconds"]
                self.fence_at = time.monotonic() + seconds if seconds else None
            case "watch":
                self.watch = (message["pid"], message["start_ticks"])
            case "shutdown":
                self.ending = True
                for task in list(self.by_pid.values()):
                    self._stop(task, "shutdown", SHORT_GRACE_SECONDS)

    def _tell(self, changed: list[TaskRecord]) -> None:
        if changed:
            self._send({"event": "changed", "tasks": changed})

    def _send(self, *messages: dict[str, Any]) -> None:
        if self.agent is None:
            return
        if not self.agent.send(*messages):
            self._part()  # it will connect again and be told everything
            return
        more = selectors.EVENT_WRITE if self.agent.backlog else 0
        self.selector.modify(self.agent, selectors.EVENT_READ | more, "agent")

    # ------------------------------------------------------------ start

    def _start(self, orders: list[TaskOrder]) -> list[TaskRecord]:
        """Start what is new; what is known already is answered with what it is, never started twice."""
        known = [self.tasks[order["key"]] for order in orders if order["key"] in self.tasks]
        fresh: list[tuple[_Task, TaskOrder]] = []
        for order in orders:
            if order["key"] not in self.tasks:
                task = self.tasks[order["key"]] = _Task(
                    self._blank(order), order["limit_seconds"], order["grace_seconds"]
                )
                task.memory_limit_mib = order.get("memory_limit_mib")
                fresh.append((task, order))
        self.journal.append(*(task.journal_entry() for task, _ in fresh))
        for task, order in fresh:
            self._spawn(task, order)
        os.fchdir(self._state_fd)
        self.journal.append(*(task.journal_entry() for task, _ in fresh))
        return [task.record for task in known] + [task.record for task, _ in fresh]

    def _blank(self, order: TaskOrder) -> TaskRecord:
        return TaskRecord(
            key=order["key"], state="starting", boot_id=self.boot_id, folder=order["folder"], meta=order["meta"],
            pid=0, start_ticks=0, started_boot_ms=processes.boot_ms(), ended_boot_ms=0, exit_code=None,
            exit_signal=None, stop_reason="", lost=False, text="", peak_memory_mib=None, cpu_time_ms=None,
        )  # fmt: skip

    def _spawn(self, task: _Task, order: TaskOrder) -> None:
        record = task.record
        try:
            pid = self._launch(task, order)
        except (OSError, ValueError) as error:
            record |= {"state": "ended", "ended_boot_ms": processes.boot_ms(), "exit_code": 126}
            record["text"] = _why_not_started(order, error)
            return
        record["started_boot_ms"] = processes.boot_ms()
        record |= {"state": "running", "pid": pid, "start_ticks": processes.start_ticks(pid)}
        self.by_pid[pid] = task
        self._watch_memory()

    def _launch(self, task: _Task, order: TaskOrder) -> int:
        folder = order["folder"]
        os.mkdir(folder, 0o700)
        os.mkdir(folder + "/work", 0o700)
        if order["script"]:
            with open(
                folder + "/script", "x", encoding="utf-8", errors="surrogateescape", newline=""
            ) as file:
                file.write(order["script"])
                os.fchmod(file.fileno(), 0o700)
        os.chdir(order["cwd"])
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        among = order.get("cpus", [])
        if "cpu_limit_millis" in order or among:
            bound = [other.cpus for other in self.by_pid.values()]
            task.cpus = limits.choose_cpus(order.get("cpu_limit_millis"), among, bound)
        # What does not fit into its domain as it is now would be killed there: it gets memory where there is some.
        domain = order.get("memory_domain")
        if domain is not None and numa.free_mib(domain) < order.get("memory_mib", 0):
            domain = None
        kept = ["cpus"] if set(among) & set(limits.usable()) else []
        with limits.on_cpus(task.cpus), numa.on_memory(domain) as has_memory:
            if "cpus" in order:
                order["env"][NUMA_VARIABLE] = ",".join([*kept, "memory"] if has_memory else kept)
            return os.posix_spawn(
                order["argv"][0],
                order["argv"],
                {**order["env"], KEY_VARIABLE: order["key"]},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, folder + "/stdout", append, 0o600),
                    (os.POSIX_SPAWN_OPEN, 2, folder + "/stderr", append, 0o600),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=_DEFAULT_SIGNALS,
            )

    # ------------------------------------------------------------ stand still, go on

    def _pause(self, task: _Task, *, still: bool) -> None:
        """SIGSTOP or SIGCONT to the whole group and to what left it; asked again it is sent again.

        The time that it stands still is written down first: whoever starts after us reads it.
        """
        record = task.record
        if not task.live or record["stop_reason"]:
            return
        since = record.get("suspended_boot_ms", 0)
        if still and not since:
            record["suspended_boot_ms"] = processes.boot_ms()
        elif not still and since:
            record["suspended_ms"] = record.get("suspended_ms", 0) + processes.boot_ms() - since
            record["suspended_boot_ms"] = 0
        self.journal.append(task.journal_entry())
        processes.signal_tree(record["pid"], signal.SIGSTOP if still else signal.SIGCONT)

    # ------------------------------------------------------------ stop

    def _stop(self, task: _Task, reason: str, grace_seconds: float) -> None:
        """SIGTERM to the whole group, SIGKILL after the grace; asked again, only a shorter grace counts."""
        if not task.live:
            return
        kill_at = time.monotonic() + grace_seconds
        task.kill_at = kill_at if task.kill_at is None else min(task.kill_at, kill_at)
        if task.record["stop_reason"]:
            return
        task.record["stop_reason"] = reason
        if since := task.record.get("suspended_boot_ms", 0):
            task.record["suspended_ms"] = task.record.get("suspended_ms", 0) + processes.boot_ms() - since
            task.record["suspended_boot_ms"] = 0
        self.journal.append(task.journal_entry())
        processes.signal_group(task.record["pid"], signal.SIGTERM)
        processes.signal_tree(task.record["pid"], signal.SIGCONT)  # a stopped process cannot end itself

    def _keep_deadlines(self) -> None:
        now, boot_ms = time.monotonic(), processes.boot_ms()
        for task in list(self.by_pid.values()):
            limit = task.limit_at_boot_ms
            if limit is not None and boot_ms >= limit and not task.record["stop_reason"]:
                self._stop(task, "time_limit", task.grace_seconds)
            if task.kill_at is not None and now >= task.kill_at:
                processes.signal_group(task.record["pid"], signal.SIGKILL)
                task.kill_at = now + 1.0
        if self.fence_at is not None and now >= self.fence_at:
            # The server gives our devices away soon: nothing of ours may run by then.
            self._stop_all("fenced")
            self.fence_at = None
        if self.sweep_at is not None and now >= self.sweep_at:
            self._sweep()
        if self.memory_at is not None and now >= self.memory_at:
            self._keep_memory()
        alone = self.agent is None and now - self.agent_seen_at > ORPHAN_SECONDS
        if alone and self.watch[0] and not processes.is_running(*self.watch):
            self.ending = True
            self._stop_all("shutdown")

    def _watch_memory(self) -> None:
        watched = any(task.memory_limit_mib is not None for task in self.by_pid.values())
        self.memory_at = time.monotonic() + MEMORY_POLL_SECONDS if watched else None

    def _keep_memory(self) -> None:
        """End tasks that hold more than their limit, at once: what they ask for is not there for them."""
        over = {
            pid: task.memory_limit_mib
            for pid, task in self.by_pid.items()
            if task.memory_limit_mib is not None
        }
        for pid, held in limits.held_mib(over, over).items():
            if held > over[pid]:
                text = f"It held {held} MiB of memory; its limit is {over[pid]} MiB."
                self.by_pid[pid].record["text"] = text
                self.journal.append(self.by_pid[pid].journal_entry())
                processes.signal_group(pid, signal.SIGKILL)
        self._watch_memory()

    def _stop_all(self, reason: str) -> None:
        for task in list(self.by_pid.values()):
            self._stop(task, reason, SHORT_GRACE_SECONDS)

    # ------------------------------------------------------------ ends

    def _reap(self) -> list[TaskRecord]:
        """Collect every ended child; what its task left behind goes with it."""
        ended: list[TaskRecord] = []
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if found is None:
                break
            task = self.by_pid.pop(found.si_pid, None)
            if task is not None:
                # Before it is reaped: until then no other process can get its number.
                processes.signal_group(found.si_pid, signal.SIGKILL)
            _, status, usage = os.wait4(found.si_pid, 0)
            if task is None:
                continue  # an orphan of a task
            record = task.record
            code = os.waitstatus_to_exitcode(status)
            record["exit_code"], record["exit_signal"] = (code, None) if code >= 0 else (None, -code)
            scale = 1024 if sys.platform == "linux" else 1024 * 1024
            record["peak_memory_mib"] = -(-usage.ru_maxrss // scale)
            record["cpu_time_ms"] = round((usage.ru_utime + usage.ru_stime) * 1000)
            ended.append(self._ended(task))
        if ended:
            self.journal.append(*(self.tasks[record["key"]].journal_entry() for record in ended))
            self._sweep()
        return ended

    def _ended(self, task: _Task) -> TaskRecord:
        task.record |= {"state": "ended", "ended_boot_ms": processes.boot_ms()}
        task.kill_at = None
        return task.record

    def _look_at_adopted(self) -> list[TaskRecord]:
        """Processes of a keeper before us: their end shows, their exit code does not."""
        ended: list[TaskRecord] = []
        for pid, task in list(self.by_pid.items()):
            if task.adopted and not processes.is_running(pid, task.record["start_ticks"]):
                del self.by_pid[pid]
                _kill_all_of(task.record["key"])
                task.record |= {
                    "lost": True,
                    "text": "Its exit code is unknown: what would have seen it was killed.",
                }
                ended.append(self._ended(task))
        if ended:
            self.journal.append(*(self.tasks[record["key"]].journal_entry() for record in ended))
        return ended

    def _sweep(self) -> None:
        """Kill orphans of ended tasks that had left their process group, until none is left.

        One that hid its key from its environment may belong to any task, so it stays until none runs.
        """
        found = False
        for pid in processes.children_of(os.getpid()):
            if pid in self.by_pid:
                continue
            key = processes.environment_value(pid, KEY_VARIABLE)
            task = self.tasks.get(key)
            if self.by_pid if not key else task is not None and task.live:
                continue
            found = True
            _kill_tree(pid)
        self.sweep_at = time.monotonic() + 0.2 if found else None

    def _forget(self, keys: Iterable[str]) -> None:
        over = {key: task for key in keys if (task := self.tasks.get(key)) is not None and not task.live}
        for key in over:
            del self.tasks[key]
        self.journal.append(*({"forget": key} for key in over))
        for task in over.values():
            _remove_folder(task.record["folder"])

    # ------------------------------------------------------------ after a restart of our own

    def _recover(self) -> None:
        """Read the journal: adopt what still runs, and say of the rest that its end was not seen."""
        for entry in self.journal.replay():
            if "forget" in entry:
                self.tasks.pop(entry["forget"], None)
                continue
            limit, grace = entry.pop("limit_seconds"), entry.pop("grace_seconds")
            memory_limit_mib = entry.pop("memory_limit_mib", None)
            record: TaskRecord = entry  # type: ignore[assignment]  # written by journal_entry
            task = self.tasks[record["key"]] = _Task(record, limit, grace)
            task.memory_limit_mib = memory_limit_mib
        for task in self.tasks.values():
            record = task.record
            if record["state"] == "ended":
                continue
            same_boot = record["boot_id"] == self.boot_id
            if same_boot and record["pid"] and processes.is_running(record["pid"], record["start_ticks"]):
                task.adopted = True
                self.by_pid[record["pid"]] = task
                continue
            if same_boot:
                _kill_all_of(record["key"])
            why = "the process that watched it was killed" if same_boot else "the machine was restarted"
            record |= {"lost": True, "text": f"Its end was not seen: {why}."}
            self._ended(task)
        self._watch_memory()
        self.journal.compact(lambda: [task.journal_entry() for task in self.tasks.values()], now=True)


def _why_not_started(order: TaskOrder, error: OSError | ValueError) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.filename == order["cwd"]:
        return f"The working directory {order['cwd']} cannot be used on this node: {reason}."
    return f"The task could not be started: {reason}."


def _kill_tree(pid: int) -> None:
    for child in processes.children_of(pid):
        _kill_tree(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _kill_all_of(key: str) -> None:
    """Processes of a task whose pid we never wrote down, or that outlived their leader."""
    for pid in processes.all_pids():
        if pid != os.getpid() and processes.environment_value(pid, KEY_VARIABLE) == key:
            _kill_tree(pid)


def _remove_folder(folder: str) -> None:
    """`rm -rf` for a folder that a job wrote into: whatever it left, nothing may stop us."""
    try:
        _remove_what_we_made(folder)
        return
    except OSError:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def _remove_what_we_made(folder: str) -> None:
    """The same for one in which a job left nothing of its own, as most do; raises OSError when it did."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in ("stdout", "stderr", "script"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=opened)
        os.rmdir("work", dir_fd=opened)
    finally:
        os.close(opened)
    os.rmdir(folder)


def main(arguments: list[str]) -> int:
    state = Path(arguments[0])
    lock = os.open(state / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # one is there already
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    watch = (int(arguments[1]), int(arguments[2])) if len(arguments) > 2 else (0, 0)
    Keeper(state, watch=watch).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
