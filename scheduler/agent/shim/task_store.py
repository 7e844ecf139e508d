"""The tasks of a state folder, and the journal from which the next shim reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from scheduler.agent import processes
from scheduler.agent.protocol import TaskOrder, TaskRecord
from scheduler.agent.shim.journal import Journal
from scheduler.agent.shim.task import ShimTask


class TaskStore:
    """All tasks that the agent has not yet asked to forget."""

    def __init__(self, state: Path) -> None:
        self.boot_id = processes.boot_id()
        self.tasks: dict[str, ShimTask] = {}
        #: The tasks that have not ended.
        self.live: dict[str, ShimTask] = {}
        self._changed: dict[str, ShimTask] = {}
        self._journal = Journal(state / "journal.jsonl")

    def records(self) -> list[TaskRecord]:
        return [task.record for task in self.tasks.values()]

    # ------------------------------------------------------------ changes

    def add(self, orders: Iterable[TaskOrder]) -> list[tuple[ShimTask, TaskOrder]]:
        """Add the orders whose tasks are new; a known task is published again and never added twice."""
        fresh: list[tuple[ShimTask, TaskOrder]] = []
        for order in orders:
            key = order["key"]
            if (known := self.tasks.get(key)) is not None:
                self.mark_changed(known)
                continue
            task = ShimTask.of_order(order, boot_id=self.boot_id)
            self.tasks[key] = self.live[key] = task
            self.mark_changed(task)
            fresh.append((task, order))
        return fresh

    def mark_changed(self, task: ShimTask) -> None:
        """Have the task written to the journal and published in this turn of the loop."""
        self._changed[task.key] = task

    def end(self, task: ShimTask, *, at_boot_ms: int | None = None) -> None:
        """The task has ended; its exit code and its text are in the record already."""
        task.record |= {"state": "ended", "ended_boot_ms": at_boot_ms or processes.boot_ms()}
        task.kill_at = None
        self.live.pop(task.key, None)
        self.mark_changed(task)

    def end_unstarted(self, task: ShimTask, why: str) -> None:
        """No process of the task was started; 126 is the shell's code for a command that cannot be executed."""
        task.record |= {"exit_code": 126, "text": why}
        self.end(task)

    def take_changes(self) -> list[TaskRecord]:
        """Write the changed tasks to the journal and return their records, for the agent."""
        changed, self._changed = list(self._changed.values()), {}
        if changed:
            self.write(*changed)
        return [task.record for task in changed]

    def forget(self, keys: Iterable[str]) -> list[ShimTask]:
        """Drop the tasks with these keys that have ended, and return them."""
        known = (self.tasks.get(key) for key in dict.fromkeys(keys))
        ended = [task for task in known if task is not None and not task.live]
        try:
            self._journal.append(*({"forget": task.key} for task in ended))
        except OSError:  # the folders that the caller removes now may be what fills the disk
            print("the journal cannot be written: the disk is full?", file=sys.stderr, flush=True)
        for task in ended:
            del self.tasks[task.key]
        return ended

    # ------------------------------------------------------------ the journal

    def write_new(self, tasks: Iterable[ShimTask]) -> None:
        """Write tasks before they start; raises OSError, and then none of them may start."""
        self._journal.append(*(task.journal_entry() for task in tasks))

    def write(self, *tasks: ShimTask) -> None:
        """Write the tasks as they are; on a full disk their guards' status files still say how they ended."""
        try:
            self._journal.append(*(task.journal_entry() for task in tasks))
        except OSError as error:
            print(f"the journal cannot be written: {error}", file=sys.stderr, flush=True)

    def replay(self) -> None:
        """Read the tasks that the shims before this one have left."""
        for entry in self._journal.replay():
            if "forget" in entry:
                self.tasks.pop(entry["forget"], None)
            else:
                self.tasks[entry["key"]] = ShimTask.of_entry(entry)
        self.live = {key: task for key, task in self.tasks.items() if task.live}

    def settle(self) -> None:
        """After a replay: the journal has what is known, and the agent gets all of it when it connects."""
        self._changed.clear()
        self.compact(now=True)

    def compact(self, *, now: bool = False) -> None:
        """Rewrite the journal when it has grown enough, or `now`."""
        self._journal.compact(lambda: [task.journal_entry() for task in self.tasks.values()], now=now)

    def close(self) -> None:
        self._journal.close()
