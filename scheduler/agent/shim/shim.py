"""The keeper: a small process that has a node's tasks started, ended and watched, and outlives its agent.

Each task has a guard of its own (`guard.py`), which is its parent and writes down how it ended; so the keeper may be
killed as well, and the next one reads all of it. It speaks JSON lines over a unix socket in the state folder, and
writes every step to a journal first. It needs nothing but the standard library and is started with `-S`, so it stays
small and starts fast.
"""

from __future__ import annotations

import contextlib
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

from scheduler.agent import guard, leftovers, limits, processes
from scheduler.agent.guard import SLIP_VARIABLE
from scheduler.agent.journal import Journal
from scheduler.agent.protocol import NEVER_BEGAN, TaskOrder, TaskRecord
from scheduler.agent.wire import Wire

#: How long the keeper stays without an agent: a restart in between adopts what runs.
ORPHAN_SECONDS: Final = 15.0
#: After a fence or a stop of everything; nobody waits for checkpoints then.
SHORT_GRACE_SECONDS: Final = 5
#: How often guards are looked at that are not our children (we were restarted ourselves).
ADOPTED_POLL_SECONDS: Final = 0.25
#: How often memory and processes of tasks are looked at; more rarely where a look takes long.
USE_POLL_SECONDS: Final = 1.0
_MOST_OF_A_CPU: Final = 0.01
#: How long a keeper that was just killed may hold its lock: until its youngest guard has let go of it.
LOCK_SECONDS: Final = 2.0

GUARD_KILLED: Final = "Its supervisor process on the node was killed, and its processes were ended with it."


class _Task:
    """A record and what only this process needs: its deadlines."""

    def __init__(self, record: TaskRecord, limit_seconds: int | None, grace_seconds: int) -> None:
        self.record = record
        self.limit_seconds = limit_seconds
        self.grace_seconds = grace_seconds
        self.memory_limit_mib: int | None = None
        self.process_limit: int | None = None
        self.guard_pid = 0
        self.cpus: tuple[int, ...] = ()  # that it is bound to; () = to none
        self.kill_at: float | None = None
        self.adopted = False  # its guard is no child of ours

    @property
    def live(self) -> bool:
        return self.record["state"] != "ended"

    @property
    def runs(self) -> bool:
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
        if self.process_limit is not None:
            own["process_limit"] = self.process_limit
        return {**self.record, **own}

    def signal(self, number: int, *, tree: bool = False) -> None:
        """To its group, with `tree` also to what has left it; to nobody once its first process is gone."""
        pid, ticks = self.record["pid"], self.record["start_ticks"]
        if not self.runs or (sys.platform == "linux" and not processes.is_running(pid, ticks)):
            return
        if tree:
            processes.signal_tree(pid, number, below=self.guard_pid or pid)
        else:
            processes.signal_group(pid, number)


class Keeper:
    """All tasks of one state folder."""

    def __init__(self, state: Path, *, watch: tuple[int, int] = (0, 0)) -> None:
        self.state = state
        self.boot_id = processes.boot_id()
        self.tasks: dict[str, _Task] = {}
        #: Those that have not ended.
        self.live: dict[str, _Task] = {}
        #: The guards that are our children.
        self.guards: dict[int, _Task] = {}
        self.journal = Journal(state / "journal.jsonl")
        self.selector = selectors.DefaultSelector()
        self.agent: Wire | None = None
        self.agent_seen_at = time.monotonic()
        self.fence_at: float | None = None
        self.watch = watch
        self.look_at = 0.0
        self.sweep_at: float | None = None
        self.use_at: float | None = None
        self.trash = leftovers.Trash(state)
        self.ending = False
        self.changed: dict[str, _Task] = {}  # since the agent and the journal were told
        self._news = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._slips = state / "guards"
        self._slips.mkdir(mode=0o700, exist_ok=True)
        self._state_fd = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        """Serve until there is neither an agent nor a task left."""
        guard.be_reaper("muster-keeper")  # of guards that are killed
        self._wake_on_child_exit()
        listener = self._listen()
        self._recover()
        while not self._may_exit():
            for key, mask in self.selector.select(self._seconds_to_next_deadline()):
                if key.data == "listener":
                    self._welcome(listener)
                elif key.data == "children":
                    os.read(key.fd, 4096)
                elif key.data == "news":
                    self._hear_guards()
                elif key.data == "agent" and self.agent is not None and key.fd == self.agent.fileno():
                    if mask & selectors.EVENT_READ:
                        self._hear(self.agent)
                    if mask & selectors.EVENT_WRITE:
                        self._send()
            self._reap()
            self._look_at_adopted()
            self._keep_deadlines()
            self._tell(self._write_changes())
            self.journal.compact(lambda: [task.journal_entry() for task in self.tasks.values()])
            self.trash.empty_beside()

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
        self.selector.register(self._news[0], selectors.EVENT_READ, "news")

    def _may_exit(self) -> bool:
        if self.live:
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
        if self.use_at is not None:
            due.append(self.use_at - now)
        for task in self.live.values():
            if task.kill_at is not None:
                due.append(task.kill_at - now)
            if task.adopted or not task.runs:
                due.append(self.look_at - now)
            limit = task.limit_at_boot_ms
            if limit is not None and task.runs and not task.record["stop_reason"]:
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
                self._start(message["tasks"])
            case "stop":
                if task := self.tasks.get(message["key"]):
                    self._stop(task, message["reason"], message["grace_seconds"])
            case "pause":
                if task := self.tasks.get(message["key"]):
                    self._pause(task, still=message["still"])
            case "forget":
                self._forget(message["keys"])
            case "lease":
                seconds = message["fence_seconds"]
                self.fence_at = time.monotonic() + seconds if seconds else None
            case "watch":
                self.watch = (message["pid"], message["start_ticks"])
            case "shutdown":
                self.ending = True
                for task in list(self.live.values()):
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

    def _start(self, orders: list[TaskOrder]) -> None:
        """Start what is new; what is known already is answered with what it is, never started twice."""
        fresh: list[tuple[_Task, TaskOrder]] = []
        for order in orders:
            key = order["key"]
            if (known := self.tasks.get(key)) is not None:
                self.changed[key] = known
                continue
            task = _Task(self._blank(order), order["limit_seconds"], order["grace_seconds"])
            task.memory_limit_mib = order.get("memory_limit_mib")
            task.process_limit = order.get("process_limit")
            self.tasks[key] = self.live[key] = self.changed[key] = task
            fresh.append((task, order))
        try:
            self.journal.append(*(task.journal_entry() for task, _ in fresh))
        except OSError as error:  # what is not written down must not run
            for task, order in fresh:
                self._not_started(task, guard.why_not_started(order, error))
            return
        for task, order in fresh:
            self._spawn(task, order)
        if self.use_at is None:  # starts without end do not put it off
            self._watch_use()

    def _blank(self, order: TaskOrder) -> TaskRecord:
        return TaskRecord(
            key=order["key"], state="starting", boot_id=self.boot_id, folder=order["folder"], meta=order["meta"],
            pid=0, start_ticks=0, started_boot_ms=processes.boot_ms(), ended_boot_ms=0, exit_code=None,
            exit_signal=None, stop_reason="", lost=False, text="", peak_memory_mib=None, cpu_time_ms=None,
        )  # fmt: skip

    def _spawn(self, task: _Task, order: TaskOrder) -> None:
        among = order.get("cpus", [])
        if "cpu_limit_millis" in order or among:
            bound = [other.cpus for other in self.live.values()]
            task.cpus = limits.choose_cpus(order.get("cpu_limit_millis"), among, bound)
        slip = self._slip_of(order["key"])
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(slip)  # of an older world: this one has just been written down for the first time
            task.guard_pid = guard.fork_guard(order, slip, cpus=task.cpus, news=self._news[1])
        except OSError as error:
            self._not_started(task, guard.why_not_started(order, error))
            return
        self.guards[task.guard_pid] = task

    def _not_started(self, task: _Task, why: str) -> None:
        task.record |= {"exit_code": 126, "text": why}
        self._end(task)

    def _slip_of(self, key: str) -> str:
        return f"{self._slips}/{key}"

    # ------------------------------------------------------------ what guards write

    def _hear_guards(self) -> None:
        """Read the slips of those that have something new; what is missed here, `_look_at_adopted` and `_reap` find."""
        with contextlib.suppress(BlockingIOError):
            for name in set(os.read(self._news[0], 65536).split(b"\n")):
                if (task := self.live.get(name.decode(errors="replace"))) is not None:
                    self._take(task, guard.read_slip(self._slip_of(task.record["key"])))

    def _take(self, task: _Task, slip: guard.Slip) -> None:
        """Move a task on by what its guard wrote; the same again changes nothing."""
        record = task.record
        if (line := slip.line("guard")) is not None:
            task.guard_pid = line["guard"]
        if (line := slip.line("error")) is not None:
            self._not_started(task, line["error"])
            return
        if (line := slip.line("pid")) is not None and not task.runs:
            record |= {"state": "running", "pid": line["pid"], "start_ticks": line["ticks"]}
            record["started_boot_ms"] = line["at"]
            self.changed[record["key"]] = task
            self._catch_up(task)
        if (line := slip.line("ended")) is not None:
            code = line["code"]
            record["exit_code"], record["exit_signal"] = (code, None) if code >= 0 else (None, -code)
            record["peak_memory_mib"], record["cpu_time_ms"] = line["memory_mib"], line["cpu_ms"]
            if left := line.get("left"):
                record["text"] = (
                    record["text"] or f"{left} of its processes cannot be ended: another account's."
                )
            self._end(task, at=line["ended"])

    def _catch_up(self, task: _Task) -> None:
        """It runs only now: what was asked of it before."""
        if task.record["stop_reason"]:
            task.signal(signal.SIGTERM)
        elif task.record.get("suspended_boot_ms"):
            task.signal(signal.SIGSTOP, tree=True)

    def _end(self, task: _Task, *, at: int | None = None) -> None:
        task.record |= {"state": "ended", "ended_boot_ms": at or processes.boot_ms()}
        task.kill_at = None
        self.live.pop(task.record["key"], None)
        self.changed[task.record["key"]] = task

    def _write_changes(self) -> list[TaskRecord]:
        """Write down what has changed and answer it, for the agent."""
        if not self.changed:
            return []
        changed, self.changed = list(self.changed.values()), {}
        self._note(*changed)
        return [task.record for task in changed]

    def _note(self, *tasks: _Task) -> None:
        """To the journal; on a full disk the slips still say how tasks ended."""
        try:
            self.journal.append(*(task.journal_entry() for task in tasks))
        except OSError as error:
            print(f"the journal cannot be written: {error}", file=sys.stderr, flush=True)

    # ------------------------------------------------------------ stand still, go on

    def _pause(self, task: _Task, *, still: bool) -> None:
        """SIGSTOP or SIGCONT to the whole group and to what left it; asked again it is sent again.

        The time that it stands still is written down first: whoever starts after us reads it.
        """
        record = task.record
        self.changed[record["key"]] = task
        if not task.live or record["stop_reason"]:
            return
        since = record.get("suspended_boot_ms", 0)
        if still and not since:
            record["suspended_boot_ms"] = processes.boot_ms()
        elif not still and since:
            record["suspended_ms"] = record.get("suspended_ms", 0) + processes.boot_ms() - since
            record["suspended_boot_ms"] = 0
        self._note(task)
        task.signal(signal.SIGSTOP if still else signal.SIGCONT, tree=True)

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
        self._note(task)
        task.signal(signal.SIGTERM)
        task.signal(signal.SIGCONT, tree=True)  # a stopped process cannot end itself

    def _keep_deadlines(self) -> None:
        now, boot_ms = time.monotonic(), processes.boot_ms()
        for task in list(self.live.values()):
            limit = task.limit_at_boot_ms
            if limit is not None and task.runs and boot_ms >= limit and not task.record["stop_reason"]:
                self._stop(task, "time_limit", task.grace_seconds)
            if task.kill_at is not None and now >= task.kill_at:
                task.signal(signal.SIGKILL)
                task.kill_at = now + 1.0
        if self.fence_at is not None and now >= self.fence_at:
            # The server gives our devices away soon: nothing of ours may run by then.
            self._stop_all("fenced")
            self.fence_at = None
        if self.sweep_at is not None and now >= self.sweep_at:
            self._sweep()
        if self.use_at is not None and now >= self.use_at:
            self._look_at_use()
        alone = self.agent is None and now - self.agent_seen_at > ORPHAN_SECONDS
        if alone and self.watch[0] and not processes.is_running(*self.watch):
            self.ending = True
            self._stop_all("shutdown")

    def _watch_use(self, took_seconds: float = 0.0) -> None:
        """Look again in a while, as long as something runs."""
        wait = max(USE_POLL_SECONDS, took_seconds / _MOST_OF_A_CPU)
        self.use_at = time.monotonic() + wait if self.live else None

    def _look_at_use(self) -> None:
        """End tasks that hold more memory or processes than they may, at once, and say why."""
        before = time.monotonic()
        for task in list(self.live.values()):
            if not task.runs or not task.guard_pid:
                continue
            members = list(processes.descendants_of(task.guard_pid))
            text = ""
            if task.process_limit is not None and len(members) > task.process_limit:
                text = (
                    f"It had {len(members):,} processes; a task may have {task.process_limit:,} on this node."
                )
            elif task.memory_limit_mib is not None:
                held = limits.held_mib(members, task.memory_limit_mib)
                if held > task.memory_limit_mib:
                    text = f"It held {held} MiB of memory; its limit is {task.memory_limit_mib} MiB."
            if text:
                task.record["text"] = text
                self._note(task)
                task.signal(signal.SIGKILL)  # the rest falls to its guard
        self._watch_use(time.monotonic() - before)

    def _stop_all(self, reason: str) -> None:
        for task in list(self.live.values()):
            self._stop(task, reason, SHORT_GRACE_SECONDS)

    # ------------------------------------------------------------ ends

    def _reap(self) -> None:
        """Collect ended children: guards, and orphans of tasks whose guard was killed."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.trash.is_emptied_by(pid):
                continue
            task = self.guards.pop(pid, None)
            if task is not None and task.live:
                self._guard_is_gone(task)

    def _look_at_adopted(self) -> None:
        """Now and then: guards of a keeper before us, and those whose news may have got lost."""
        now = time.monotonic()
        if now < self.look_at:
            return
        self.look_at = now + ADOPTED_POLL_SECONDS
        for task in list(self.live.values()):
            if task.adopted:
                self._guard_is_gone(task)
            elif not task.runs:
                self._take(task, guard.read_slip(self._slip_of(task.record["key"])))

    def _guard_is_gone(self, task: _Task) -> None:
        """Take its last words; without a word on the end it was killed, and its task goes with it."""
        record = task.record
        slip = guard.read_slip(self._slip_of(record["key"]))
        if slip.alive or slip.line("ended") or slip.line("error"):
            self._take(task, slip)
        elif not slip.began:
            record |= {"lost": True, "text": NEVER_BEGAN}
            self._end(task)
        else:
            self._take(task, slip)  # a pid that was not heard of yet
            task.signal(signal.SIGKILL, tree=True)
            _kill_all_of(self._slip_of(record["key"]))
            self._sweep()
            record["text"] = record["text"] or GUARD_KILLED
            self._end(task)

    def _sweep(self) -> None:
        """Kill orphans of tasks whose guard was killed, until none is left: all others are children of a guard."""
        ours = {*self.guards, self.trash.emptier}
        orphans = [pid for pid in processes.children_of(os.getpid()) if pid not in ours]
        for pid in orphans:
            processes.kill_tree(pid)
        self.sweep_at = time.monotonic() + 0.05 if orphans else None

    def _forget(self, keys: Iterable[str]) -> None:
        over = {key: task for key in keys if (task := self.tasks.get(key)) is not None and not task.live}
        try:
            self.journal.append(*({"forget": key} for key in over))
        except OSError:  # it may be the space of these that is missing
            print("the journal cannot be written: the disk is full?", file=sys.stderr, flush=True)
        for key, task in over.items():
            del self.tasks[key]
            self.trash.take(task.record["folder"])
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._slip_of(key))

    # ------------------------------------------------------------ after a restart of our own

    def _recover(self) -> None:
        """Read the journal and the slips: adopt what still runs, and learn how the rest ended."""
        for entry in self.journal.replay():
            if "forget" in entry:
                self.tasks.pop(entry["forget"], None)
                continue
            limit, grace = entry.pop("limit_seconds"), entry.pop("grace_seconds")
            memory_limit_mib, process_limit = (
                entry.pop("memory_limit_mib", None),
                entry.pop("process_limit", None),
            )
            record: TaskRecord = entry  # type: ignore[assignment]  # written by journal_entry
            task = self.tasks[record["key"]] = _Task(record, limit, grace)
            task.memory_limit_mib, task.process_limit = memory_limit_mib, process_limit
        self.live = {key: task for key, task in self.tasks.items() if task.live}
        for task in list(self.live.values()):
            self._find_again(task)
        self._watch_use()
        self.changed.clear()
        self.journal.compact(lambda: [task.journal_entry() for task in self.tasks.values()], now=True)
        self.trash.take_unknown({Path(task.record["folder"]).name for task in self.tasks.values()})
        self._drop_old_slips()

    def _find_again(self, task: _Task) -> None:
        record = task.record
        if record["boot_id"] == self.boot_id:
            task.adopted = True
            self._guard_is_gone(task)
            if task.live and record["stop_reason"]:
                task.kill_at = time.monotonic() + task.grace_seconds
            return
        slip = guard.read_slip(self._slip_of(record["key"]))
        if slip.line("ended") or slip.line("error"):
            self._take(task, slip)
        elif not slip.began and not record["pid"]:
            record |= {"lost": True, "text": NEVER_BEGAN}
            self._end(task)
        else:
            record |= {"lost": True, "text": "Its end was not seen: the machine was restarted."}
            self._end(task)

    def _drop_old_slips(self) -> None:
        for name in os.listdir(self._slips):
            if name not in self.tasks and not guard.read_slip(self._slip_of(name)).alive:
                os.unlink(self._slip_of(name))


def _kill_all_of(slip_path: str) -> None:
    """Kill the processes of a task whose guard was killed: those whose environment names its slip."""
    slip = os.path.abspath(slip_path)
    for pid in processes.all_pids():
        if pid != os.getpid() and processes.environment_value(pid, SLIP_VARIABLE) == slip:
            processes.kill_tree(pid)


def main(arguments: list[str]) -> int:
    state = Path(arguments[0])
    lock = os.open(state / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _lock(lock):
        return 0  # one is there already
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    watch = (int(arguments[1]), int(arguments[2])) if len(arguments) > 2 else (0, 0)
    Keeper(state, watch=watch).run()
    return 0


def _lock(file: int) -> bool:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
