"""After a restart of the shim: which tasks still run, and how the others ended."""

from __future__ import annotations

import time

from scheduler.agent.protocol import NEVER_BEGAN
from scheduler.agent.shim.guards import Guards
from scheduler.agent.shim.task import ShimTask
from scheduler.agent.shim.task_store import TaskStore

MACHINE_RESTARTED = "The end of the task was not seen: the machine was restarted."


def recover(store: TaskStore, guards: Guards) -> None:
    """Read the journal and the guards' status files: adopt the tasks that run, and end the others."""
    store.replay()
    for task in list(store.live.values()):
        if task.record["boot_id"] == store.boot_id:
            _adopt(task, guards)
        else:
            _end_from_another_boot(task, store, guards)
    store.settle()


def _adopt(task: ShimTask, guards: Guards) -> None:
    """The guard is no child of ours, so it is polled; a task that was being stopped gets its grace again."""
    task.adopted = True
    guards.check(task)
    if task.live and task.record["stop_reason"]:
        task.kill_at = time.monotonic() + task.grace_seconds


def _end_from_another_boot(task: ShimTask, store: TaskStore, guards: Guards) -> None:
    """No process outlives a restart of the machine; the status file says whether the end was seen before it."""
    status = guards.status_of(task)
    if status.is_final:
        guards.update(task, status)
        return
    unseen = status.began or task.record["pid"]
    task.record |= {"lost": True, "text": MACHINE_RESTARTED if unseen else NEVER_BEGAN}
    store.end(task)
