"""The guards of a state folder: gives each task one, and takes over what they write about their tasks."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from scheduler.agent import cpus, processes
from scheduler.agent.isolation import project_quotas
from scheduler.agent.isolation.accounts import NoAccount
from scheduler.agent.isolation.cells import Cells
from scheduler.agent.protocol import (
    GUARD_KILLED,
    NEVER_BEGAN,
    NOT_ISOLATED,
    OUT_OF_MEMORY,
    OUT_OF_STORAGE,
    TaskOrder,
)
from scheduler.agent.shim import control, guard
from scheduler.agent.shim.folders.task_folders import TaskFolders
from scheduler.agent.shim.folders.trash import Trash
from scheduler.agent.shim.forks.server import ForkServerLost
from scheduler.agent.shim.guard_processes import GuardProcesses
from scheduler.agent.shim.guard_status import GuardStatus, StatusFiles
from scheduler.agent.shim.task import ShimTask
from scheduler.agent.shim.task_store import TaskStore

#: How often guards are polled that are not our children (a shim before us forked them), or that have not yet started.
POLL_SECONDS: Final = 0.25
#: From one round of killing orphans to the next, while there are some.
SWEEP_SECONDS: Final = 0.05
#: Passes over /proc after the kill of a guard: the last ones find nothing, unless a process cannot be killed.
CLEAN_KILL_PASSES: Final = 2
MOST_KILL_PASSES: Final = 50
KILL_PASS_SECONDS: Final = 0.005
#: Tasks that are at their start at a time, for each CPU of the machine: more would only take turns on the CPUs,
#: each with a guard of its own, where the guard of a short task could have the next one.
STARTS_PER_CPU: Final = 2
#: A start that takes longer (a working directory that does not answer) keeps no other task waiting.
START_SECONDS: Final = 0.25


class Guards:
    """Guards by their status files; `announcements` is the pipe on which they announce new lines."""

    def __init__(
        self, state: Path, store: TaskStore, folders: TaskFolders, trash: Trash, cells: Cells
    ) -> None:
        self._store = store
        self._folders = folders
        self._trash = trash
        self._files = StatusFiles(state)
        self.announcements, announce_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        #: The guards that are our children.
        self._processes = GuardProcesses(announce_fd, cells)
        self._cells = cells
        #: Tasks that wait for their turn to start, and until when each that is at its start counts (monotonic).
        self._waiting: deque[tuple[ShimTask, TaskOrder]] = deque()
        self._starting: dict[str, float] = {}
        self.most_starting = STARTS_PER_CPU * max(2, len(cpus.usable_cpus()))
        self._poll_at = 0.0
        self._sweep_at: float | None = None

    # ------------------------------------------------------------ start

    def start(self, task: ShimTask, order: TaskOrder) -> None:
        """Have a guard start this task at its turn, see `start_waiting`."""
        self._waiting.append((task, order))

    def start_waiting(self) -> None:
        """Start the tasks that wait, as many at a time as the machine's CPUs can use; the others wait some ms.

        A task that was stopped before its turn ends without a start: its node may have been fenced.
        """
        if not self._waiting:
            return
        now = time.monotonic()
        self._starting = {
            key: until for key, until in self._starting.items() if self._is_at_start(key, until, now)
        }
        while self._waiting and len(self._starting) < self.most_starting:
            task, order = self._waiting.popleft()
            if task.record["stop_reason"]:
                self._store.end(task)
            elif self._cells.fault:
                task.record |= {"lost": True, "text": NOT_ISOLATED}
                self._store.end(task)
            else:
                self._start(task, order)
                self._starting[task.key] = now + START_SECONDS

    def _is_at_start(self, key: str, until: float, now: float) -> bool:
        task = self._store.live.get(key)
        return task is not None and not task.runs and now < until

    def _start(self, task: ShimTask, order: TaskOrder) -> None:
        """Have a guard start this task; a task that cannot get a folder or a guard has ended."""
        among = order.get("cpus", [])
        if "cpu_limit_millis" in order or among:
            bound = [other.cpus for other in self._store.live.values()]
            task.cpus = cpus.choose_cpus(order.get("cpu_limit_millis"), among, bound)
        try:
            account = self._cells.owner_of(order)
            owner = (account.uid, account.gid) if account else None
            task.project = self._folders.give(
                order, owner=owner, ended=self._ended_folders, means=self._cells.means
            )
            status_file = self._files.create(task.key)
            try:
                self._processes.assign(
                    task,
                    order,
                    account=account,
                    status_path=self._files.path(task.key),
                    status_file=status_file,
                )
            finally:
                os.close(status_file)  # the guard has it, and with it the lock
        except ForkServerLost:
            # Its guard may live, and is none that we know: `poll` finds out what it has begun.
            self.sweep()
            task.adopted = True
        except (OSError, NoAccount) as error:
            self._store.end_unstarted(task, guard.why_not_started(order, error))

    def _ended_folders(self) -> list[str]:
        """The folders of tasks that have ended with all their processes and are not forgotten yet."""
        tasks = self._store.tasks.values()
        return [task.record["folder"] for task in tasks if not task.live and task.ended_whole]

    # ------------------------------------------------------------ what guards write

    def read_announced(self) -> None:
        """Read the status files that have new lines; `poll` and `reap` find what is missed here."""
        with contextlib.suppress(BlockingIOError):
            for name in set(os.read(self.announcements, 65536).split(b"\n")):
                if (task := self._store.live.get(name.decode(errors="replace"))) is not None:
                    self.update(task, self.status_of(task))

    def update(self, task: ShimTask, status: GuardStatus) -> None:
        """Move a task on by what its guard wrote; the same status again changes nothing."""
        if (line := status.line("guard")) is not None:
            task.guard_pid = line["guard"]
        if (line := status.line("error")) is not None:
            self._store.end_unstarted(task, line["error"])
            self._processes.release(task, reusable=not line.get("worn"))
            return
        record = task.record
        if (line := status.line("pid")) is not None and not task.runs:
            record |= {"state": "running", "pid": line["pid"], "start_ticks": line["ticks"]}
            record["started_boot_ms"] = line["at"]
            self._store.mark_changed(task)
            control.apply_pending(task)
        self._take_probes(task, status)
        if (line := status.line("ended")) is not None:
            self._take_end(task, line)

    def _take_probes(self, task: ShimTask, status: GuardStatus) -> None:
        """Publish new results of probes, and stop a task that its guard calls unhealthy."""
        record = task.record
        if (line := status.line("probes")) is not None and line["probes"] != record.get("probes"):
            record["probes"] = line["probes"]
            self._store.mark_changed(task)
        if (line := status.line("unhealthy")) is not None and task.runs and not record["stop_reason"]:
            control.stop_unhealthy(self._store, task, line["unhealthy"])

    def _take_end(self, task: ShimTask, line: dict[str, Any]) -> None:
        record, code = task.record, line["code"]
        record["exit_code"], record["exit_signal"] = (code, None) if code >= 0 else (None, -code)
        record["peak_memory_mib"], record["cpu_time_ms"] = line["memory_mib"], line["cpu_ms"]
        if (left := line.get("left")) and not record["text"]:
            record["text"] = f"{left} of its processes cannot be ended: another account's."
        if line.get("out_of_memory") and code != 0 and not record["text"]:
            record["text"], record["failure"] = _out_of_memory(task), OUT_OF_MEMORY
        elif code != 0 and not record["text"] and not record["stop_reason"] and _has_filled_its_disk(task):
            record["text"], record["failure"] = _out_of_storage(task), OUT_OF_STORAGE
        task.ended_whole = not left
        self._store.end(task, at_boot_ms=line["ended"])
        self._processes.release(task, reusable=task.ended_whole and not line.get("worn"))

    def status_of(self, task: ShimTask) -> GuardStatus:
        return self._files.read(task.key)

    # ------------------------------------------------------------ guards that end

    def reap(self) -> None:
        """Collect ended children: guards, orphans of tasks whose guard was killed, and what empties the trash."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._trash.is_emptied_by(pid):
                continue
            task = self._processes.reaped(pid)
            if task is not None and task.live:
                self.check(task)

    def poll(self) -> None:
        """Now and then, look after guards of a shim before us, and guards whose announcement may be lost."""
        now = time.monotonic()
        if now < self._poll_at:
            return
        self._poll_at = now + POLL_SECONDS
        for task in list(self._store.live.values()):
            if task.adopted:
                self.check(task)
            elif not task.runs:
                self.update(task, self.status_of(task))

    def check(self, task: ShimTask) -> None:
        """Take over the last lines of a guard that may have ended; one that was killed ends its task."""
        status = self.status_of(task)
        if status.alive or status.is_final:
            self.update(task, status)
        elif not status.began:
            task.record |= {"lost": True, "text": NEVER_BEGAN}
            self._store.end(task)
        else:
            self.update(task, status)  # its line about the first process may be new
            self._end_without_guard(task)

    def _end_without_guard(self, task: ShimTask) -> None:
        """Kill all processes of a task whose guard was killed: its group, its environment's, our orphans."""
        task.signal(signal.SIGKILL, tree=True)
        _kill_named_in_environment(self._files.path(task.key))
        self.sweep()
        task.record["text"] = task.record["text"] or GUARD_KILLED
        self._store.end(task)

    def sweep(self) -> None:
        """Kill orphans of tasks whose guard was killed, until none is left: other processes have a guard."""
        ours = {*self._processes.pids(), self._trash.emptier}
        orphans = [pid for pid in processes.children_of(os.getpid()) if pid not in ours]
        for pid in orphans:
            processes.kill_tree(pid)
        self._sweep_at = time.monotonic() + SWEEP_SECONDS if orphans else None

    def keep_deadlines(self, now: float) -> None:
        """Sweep when that is due, and let guards go that have waited long for a task; `now` is monotonic."""
        if self._sweep_at is not None and now >= self._sweep_at:
            self.sweep()
        self._processes.dismiss_idle(now)

    def due_at(self) -> Iterable[float]:
        """The next times (monotonic) at which guards need attention."""
        if self._sweep_at is not None:
            yield self._sweep_at
        if any(task.adopted or not task.runs for task in self._store.live.values()):
            yield self._poll_at
        if self._waiting:
            yield min(self._starting.values(), default=0.0)
        yield from self._processes.due_at()

    # ------------------------------------------------------------ status files

    def drop_status(self, task: ShimTask) -> None:
        self._files.drop(task.key, reusable=task.ended_whole and not task.adopted)

    def drop_unknown_statuses(self) -> None:
        """Remove the files of forgotten tasks, but not of a guard that is alive."""
        self._files.drop_unknown(self._store.tasks)


def _out_of_memory(task: ShimTask) -> str:
    """A sentence on a task of which the kernel has killed a process for its memory."""
    limit = task.memory_limit_mib
    return (
        f"Out of memory: the limit is {limit} MiB."
        if limit
        else "Out of memory: the node has no free memory."
    )


def _has_filled_its_disk(task: ShimTask) -> bool:
    """Whether a task of which the kernel limits the disk could write nearly nothing more when it ended."""
    if task.scratch_limit_mib is None or not (project := project_quotas.project_of(task.record["folder"])):
        return False
    try:
        return project_quotas.use_of(project, task.record["folder"]).is_full
    except OSError:
        return False


def _out_of_storage(task: ShimTask) -> str:
    return f"The task filled its disk (working folder, output and /tmp); its limit is {task.scratch_limit_mib} MiB."


def _kill_named_in_environment(status_path: str) -> None:
    """Kill every process, with its descendants, whose environment names this status file, until none is left.

    A process in the middle of `execve` has no environment to read, and one that was killed keeps its own for a
    moment: only two passes that find nothing, one after the other, show that none is left.
    """
    wanted = os.path.abspath(status_path)
    clean_passes = 0
    for _ in range(MOST_KILL_PASSES):
        found = [
            pid
            for pid in processes.all_pids()
            if pid != os.getpid() and processes.environment_value(pid, guard.STATUS_FILE_VARIABLE) == wanted
        ]
        for pid in found:
            processes.kill_tree(pid)
        clean_passes = 0 if found else clean_passes + 1
        if clean_passes == CLEAN_KILL_PASSES:
            return
        time.sleep(KILL_PASS_SECONDS)
