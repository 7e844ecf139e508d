"""What can be done to a task that was started: stop it, suspend it, resume it."""

from __future__ import annotations

import signal
import time
from typing import Final

from scheduler.agent import processes
from scheduler.agent.protocol import UNHEALTHY
from scheduler.agent.shim.task import ShimTask
from scheduler.agent.shim.task_store import TaskStore

#: After a fence or a stop of everything: too short for a checkpoint.
SHORT_GRACE_SECONDS: Final = 5


def stop(store: TaskStore, task: ShimTask, reason: str, grace_seconds: float) -> None:
    """SIGTERM to the process group now, SIGKILL after the grace; a second stop can only shorten the grace."""
    if not task.live:
        return
    kill_at = time.monotonic() + grace_seconds
    task.kill_at = kill_at if task.kill_at is None else min(task.kill_at, kill_at)
    if task.record["stop_reason"]:
        return
    task.record["stop_reason"] = reason
    _count_suspension(task)
    store.write(task)
    task.signal(signal.SIGTERM)
    task.signal(signal.SIGCONT, tree=True)  # a stopped process cannot handle SIGTERM


def stop_unhealthy(store: TaskStore, task: ShimTask, why: str) -> None:
    """Stop a task of which a probe has failed too often; `why` is the sentence about its end."""
    if task.live and not task.record["stop_reason"]:
        task.record["text"], task.record["failure"] = why[:300], UNHEALTHY
        stop(store, task, UNHEALTHY, task.grace_seconds)


def stop_all(store: TaskStore, reason: str) -> None:
    for task in list(store.live.values()):
        stop(store, task, reason, SHORT_GRACE_SECONDS)


def suspend(store: TaskStore, task: ShimTask) -> None:
    """SIGSTOP to the process group and to descendants outside it; a second call sends the signal again.

    The time is written to the journal first: the next shim reads it.
    """
    store.mark_changed(task)
    if not task.live or task.record["stop_reason"]:
        return
    if not task.record.get("suspended_boot_ms"):
        task.record["suspended_boot_ms"] = processes.boot_ms()
    store.write(task)
    task.signal(signal.SIGSTOP, tree=True)


def resume(store: TaskStore, task: ShimTask) -> None:
    """SIGCONT to the process group and to descendants outside it; a second call sends the signal again."""
    store.mark_changed(task)
    if not task.live or task.record["stop_reason"]:
        return
    _count_suspension(task)
    store.write(task)
    task.signal(signal.SIGCONT, tree=True)


def change_limit(store: TaskStore, task: ShimTask, seconds: int) -> None:
    """Count its time limit anew, from its start; 0 = no limit. One that has passed stops it with the next deadline.

    The limit is written to the journal first: the next shim reads it.
    """
    store.mark_changed(task)
    if not task.live or task.record.get("changed_limit") == seconds:
        return
    task.record["changed_limit"] = seconds
    task.limit_seconds = seconds or None
    store.write(task)


def signal_before_limit(store: TaskStore, task: ShimTask) -> None:
    """Send the signal that the job asked for before its time limit to the processes that handle it.

    Until some do it is not sent: a script that has just begun may set its handlers later.
    """
    asked = task.record["meta"]["limit_signal"]
    pid, ticks = task.record["pid"], task.record["start_ticks"]
    if not processes.is_running(pid, ticks):
        return
    if processes.signal_handlers(pid, asked["signal"], tree=asked["to"] == "all"):
        task.record["signalled_limit"] = task.limit_seconds or 0
        store.write(task)


def apply_pending(task: ShimTask) -> None:
    """Send a task that has just started running what was asked for before it ran."""
    if task.record["stop_reason"]:
        task.signal(signal.SIGTERM)
    elif task.record.get("suspended_boot_ms"):
        task.signal(signal.SIGSTOP, tree=True)


def _count_suspension(task: ShimTask) -> None:
    """End the present suspension, if any, and add its length to the time that the task was suspended."""
    if since := task.record.get("suspended_boot_ms", 0):
        task.record["suspended_ms"] = task.record.get("suspended_ms", 0) + processes.boot_ms() - since
        task.record["suspended_boot_ms"] = 0
