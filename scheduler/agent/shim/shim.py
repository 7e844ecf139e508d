"""The shim: a small process that has a node's tasks started, stopped and watched, and outlives its agent.

Each task has a guard of its own (`guard`), which is its parent and writes down how the task ended; so the shim may be
killed as well, and the next one reads all of it. The shim speaks JSON lines over a unix socket in the state folder,
and writes every step to a journal first. It needs nothing but the standard library and is started with `-S`, so it
stays small and starts fast.

Its name on disk, on the socket and in `ps` is older: `keeper`. An agent and a shim of different versions meet there.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from scheduler.agent.isolation.cells import Cells
from scheduler.agent.isolation.means import Means
from scheduler.agent.protocol import TaskOrder, TaskRecord
from scheduler.agent.shim import control, guard
from scheduler.agent.shim.agent_connection import AgentConnection
from scheduler.agent.shim.deadlines import Deadlines, Owner
from scheduler.agent.shim.folders.scratch_watch import ScratchWatch
from scheduler.agent.shim.folders.task_folders import TaskFolders
from scheduler.agent.shim.folders.trash import Trash
from scheduler.agent.shim.guards import Guards
from scheduler.agent.shim.recovery import recover
from scheduler.agent.shim.task import ShimTask
from scheduler.agent.shim.task_store import TaskStore
from scheduler.agent.shim.usage_watch import UsageWatch

#: How long the shim stays without an agent: an agent that is started again within this adopts what runs.
ORPHAN_SECONDS: Final = 15.0
#: The longest sleep of the loop, and the longest without an agent.
_MOST_SLEEP_SECONDS: Final = 60.0
_SLEEP_ALONE_SECONDS: Final = 1.0
#: From an error of a step of the loop to the next attempt, and the shortest sleep until then.
TRY_AGAIN_SECONDS: Final = 1.0
_LEAST_SLEEP_SECONDS: Final = 0.05


class Shim:
    """The loop over all tasks of one state folder: commands of the agent, ends of guards, deadlines."""

    def __init__(self, state: Path, *, owner: Owner | None = None) -> None:
        self.store = TaskStore(state)
        self.trash = Trash(state)
        self.folders = TaskFolders(state, self.trash)
        self.cells = Cells(state, self.trash.take)
        self.guards = Guards(state, self.store, self.folders, self.trash, self.cells)
        self.deadlines = Deadlines(self.store)
        self.usage = UsageWatch(self.store)
        self.scratch = ScratchWatch(self.store)
        self.owner = owner or Owner(0, 0)
        self.ending = False
        self._selector = selectors.DefaultSelector()
        self.agent = AgentConnection(
            state, self._selector, self.store.records, lambda: self.cells.fault or self._unexpected
        )
        #: The last error of a step that nothing there expects; empty where every step has worked since.
        self._unexpected = ""
        self._failed_steps: dict[str, str] = {}
        self._try_again_at = 0.0

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        """Serve until there is neither an agent nor a task left."""
        guard.become_subreaper("muster-keeper")  # of guards that are killed, and of their tasks
        self._wake_on_child_exit()
        listener = self.agent.listen()
        self.recover()
        while not self.may_exit():
            for key, events in self._selector.select(self._seconds_to_next_deadline()):
                if key.data == "listener":
                    _survive("a connection", lambda: self.agent.accept(listener))
                elif key.data == "children":
                    os.read(key.fd, 4096)
                elif key.data == "guards":
                    _survive("what guards say", self.guards.read_announced)
                elif key.data == "agent":
                    for command in self.agent.handle(key.fd, events):
                        self.do_command(command)
            self._try("ends of guards", self.guards.reap)
            self._try("looking after guards", self.guards.poll)
            self._try("starts", self.guards.start_waiting)
            self._try("deadlines", self._keep_deadlines)
            changes = self.store.take_changes()
            self._remove_secrets(changes)
            self.agent.publish(changes)
            self._try("the journal", self.store.compact)
            self._try("the trash", self.trash.empty_beside)
        self.cells.close()

    def do_command(self, command: dict[str, Any]) -> None:
        """Do what the agent says, as far as that can be done: the server repeats what is not."""
        _survive(f"command {command.get('op')}", lambda: self.handle_command(command))

    def _try(self, step: str, work: Callable[[], object]) -> None:
        """Do a step of every turn: an error there must not take their supervisor from all tasks of the node.

        Each error is written to the log once, and reported as a fault of the node until the step has worked again.
        """
        try:
            work()
        except OSError as error:
            text = f"{step}: {error}"[:190]
            if self._failed_steps.get(step) != text:
                print(text, file=sys.stderr, flush=True)
            self._failed_steps[step] = self._unexpected = text
            self._try_again_at = time.monotonic() + TRY_AGAIN_SECONDS
        else:
            if self._failed_steps.pop(step, ""):
                self._unexpected = next(iter(self._failed_steps.values()), "")

    def recover(self) -> None:
        """Take over from the shims before this one: their tasks, their folders, their status files."""
        recover(self.store, self.guards)
        self._remove_secrets([task.record for task in self.store.tasks.values()])
        self.usage.schedule()
        for task in self.store.live.values():
            self.scratch.task_started(task)
        self.folders.take_unknown({Path(task.record["folder"]).name for task in self.store.tasks.values()})
        self.guards.drop_unknown_statuses()

    def _remove_secrets(self, records: Iterable[TaskRecord]) -> None:
        """Nobody hears of the end of a task before its secrets are gone."""
        for record in records:
            if record["state"] == "ended" and record["meta"].get("secrets"):
                self.folders.remove_secrets(record["folder"])

    def _wake_on_child_exit(self) -> None:
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._selector.register(read_end, selectors.EVENT_READ, "children")
        self._selector.register(self.guards.announcements, selectors.EVENT_READ, "guards")

    def may_exit(self) -> bool:
        if self.store.live:
            return False
        return self.ending or self._is_alone(time.monotonic())

    def _is_alone(self, now: float) -> bool:
        """Whether no agent has come back for so long that none is expected."""
        return self.agent.absent_seconds(now) > ORPHAN_SECONDS

    def _keep_deadlines(self) -> None:
        now = time.monotonic()
        self.deadlines.enforce(now)
        self.guards.keep_deadlines(now)
        self.usage.check_when_due(now)
        self.scratch.check_when_due(now)
        self.cells.retry(now)
        if self._is_alone(now) and self.owner.has_ended():
            self._shut_down()

    def _seconds_to_next_deadline(self) -> float:
        now = time.monotonic()
        due = [now + (_MOST_SLEEP_SECONDS if self.agent.is_open else _SLEEP_ALONE_SECONDS)]
        due += self.deadlines.due_at(now)
        due += self.guards.due_at()
        due += self.cells.due_at()
        if self._failed_steps:
            # What failed is due still: not at once, which would keep a processor busy.
            return max(_LEAST_SLEEP_SECONDS, min(self._try_again_at, *due) - now)
        if self.usage.due_at is not None:
            due.append(self.usage.due_at)
        if self.scratch.due_at is not None:
            due.append(self.scratch.due_at)
        return max(0.0, min(due) - now)

    # ------------------------------------------------------------ commands of the agent

    def handle_command(self, command: dict[str, Any]) -> None:
        """Do what the agent says; each command may come twice."""
        match command.get("op"):
            case "start":
                self.start(command["tasks"])
            case "stop" | "unhealthy" | "pause" | "limit":
                if task := self.store.tasks.get(command["key"]):
                    self._change(task, command)
            case "forget":
                self.forget(command["keys"])
            case "discard":
                self.folders.discard(command["names"])
            case "lease":
                self.deadlines.extend_lease(command["fence_seconds"])
            case "isolate":
                self._isolate(Means.of(command["means"]))
            case "watch":
                self.owner = Owner(command["pid"], command["start_ticks"])
            case "shutdown":
                self._shut_down()

    def _change(self, task: ShimTask, command: dict[str, Any]) -> None:
        match command["op"]:
            case "stop":
                control.stop(self.store, task, command["reason"], command["grace_seconds"])
            case "unhealthy":
                control.stop_unhealthy(self.store, task, command["text"])
            case "pause":
                self._set_suspended(task, command["still"])
            case "limit":
                control.change_limit(self.store, task, command["seconds"])

    def _isolate(self, means: Means) -> None:
        if means != self.cells.means:
            self.cells.use(means)

    def _set_suspended(self, task: ShimTask, suspended: bool) -> None:
        if suspended:
            control.suspend(self.store, task)
        else:
            control.resume(self.store, task)

    def start(self, orders: list[TaskOrder]) -> None:
        """Start the tasks that are new; a known task is published as it is, and never started twice."""
        fresh = self.store.add(orders)
        try:
            self.store.write_new(task for task, _ in fresh)
        except OSError as error:  # a task that is not written down must not run
            for task, order in fresh:
                self.store.end_unstarted(task, guard.why_not_started(order, error))
            return
        for task, order in fresh:
            self.guards.start(task, order)
            self.scratch.task_started(task)
        self.guards.start_waiting()
        self.usage.task_started()

    def forget(self, keys: list[str]) -> None:
        """Remove what is left of tasks that have ended and that the server knows all about."""
        for task in self.store.forget(keys):
            if task.record["meta"].get("secrets"):
                self.folders.remove_output(task.record["folder"])
            self.folders.take_back(task.record["folder"], reusable=task.ended_whole)
            self.guards.drop_status(task)

    def _shut_down(self) -> None:
        self.ending = True
        control.stop_all(self.store, "shutdown")


def _survive(step: str, work: Callable[[], object]) -> None:
    """Do what is done once: the agent or a later turn of the loop repeats what an error has kept from being done."""
    try:
        work()
    except OSError as error:
        print(f"{step}: {error}", file=sys.stderr, flush=True)
