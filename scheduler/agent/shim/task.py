"""One task of the shim: its record, its limits, and how a signal reaches its processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from scheduler.agent import processes
from scheduler.agent.protocol import TaskOrder, TaskRecord


class ShimTask:
    """The record that the agent gets, and what only the shim needs: limits and deadlines."""

    def __init__(
        self,
        record: TaskRecord,
        *,
        limit_seconds: int | None,
        grace_seconds: int,
        memory_limit_mib: int | None = None,
        process_limit: int | None = None,
        scratch_limit_mib: int | None = None,
        private_tmp: str = "",
    ) -> None:
        self.record = record
        self.limit_seconds = limit_seconds
        self.grace_seconds = grace_seconds
        self.memory_limit_mib = memory_limit_mib
        self.process_limit = process_limit
        self.scratch_limit_mib = scratch_limit_mib
        #: The folder of its private /tmp; empty where it has none.
        self.private_tmp = private_tmp
        self.guard_pid = 0
        #: The project whose quota limits its disk; 0 = it is measured, or its folder was given out by a shim before us.
        self.project = 0
        #: The CPUs that the task is bound to; () = to none.
        self.cpus: tuple[int, ...] = ()
        #: When its processes get SIGKILL, on the monotonic clock; None while it is not being stopped.
        self.kill_at: float | None = None
        #: The guard was forked by a shim before this one, so it is not our child.
        self.adopted = False
        #: Its guard saw its end, and that none of its processes is left.
        self.ended_whole = False

    @classmethod
    def of_order(cls, order: TaskOrder, *, boot_id: str) -> ShimTask:
        """A task that is about to be started."""
        record = TaskRecord(
            key=order["key"], state="starting", boot_id=boot_id, folder=order["folder"], meta=order["meta"],
            pid=0, start_ticks=0, started_boot_ms=processes.boot_ms(), ended_boot_ms=0, exit_code=None,
            exit_signal=None, stop_reason="", lost=False, text="", peak_memory_mib=None, cpu_time_ms=None,
        )  # fmt: skip
        return cls(
            record,
            limit_seconds=order["limit_seconds"],
            grace_seconds=order["grace_seconds"],
            memory_limit_mib=order.get("memory_limit_mib"),
            process_limit=order.get("process_limit"),
            scratch_limit_mib=order.get("scratch_limit_mib"),
        )

    @classmethod
    def of_entry(cls, entry: Mapping[str, Any]) -> ShimTask:
        """A task as `journal_entry` wrote it, perhaps in an earlier version."""
        limits = (
            "limit_seconds", "grace_seconds", "memory_limit_mib", "process_limit", "scratch_limit_mib", "private_tmp",
        )  # fmt: skip
        record: Any = {name: value for name, value in entry.items() if name not in limits}
        return cls(
            record,
            limit_seconds=entry["limit_seconds"],
            grace_seconds=entry["grace_seconds"],
            memory_limit_mib=entry.get("memory_limit_mib"),
            process_limit=entry.get("process_limit"),
            scratch_limit_mib=entry.get("scratch_limit_mib"),
            private_tmp=entry.get("private_tmp", ""),
        )

    def journal_entry(self) -> dict[str, Any]:
        own: dict[str, Any] = {"limit_seconds": self.limit_seconds, "grace_seconds": self.grace_seconds}
        if self.memory_limit_mib is not None:
            own["memory_limit_mib"] = self.memory_limit_mib
        if self.process_limit is not None:
            own["process_limit"] = self.process_limit
        if self.scratch_limit_mib is not None:
            own |= {"scratch_limit_mib": self.scratch_limit_mib, "private_tmp": self.private_tmp}
        return {**self.record, **own}

    @property
    def key(self) -> str:
        return self.record["key"]

    @property
    def live(self) -> bool:
        return self.record["state"] != "ended"

    @property
    def runs(self) -> bool:
        return self.record["state"] == "running"

    @property
    def limit_at_boot_ms(self) -> int | None:
        """When its time limit is reached, on the boot clock; None without a limit and while it is suspended."""
        if self.limit_seconds is None or self.record.get("suspended_boot_ms"):
            return None
        suspended_ms = self.record.get("suspended_ms", 0)
        return self.record["started_boot_ms"] + self.limit_seconds * 1000 + suspended_ms

    @property
    def awaits_time_limit(self) -> bool:
        """Whether it runs with a time limit that has not yet had it stopped."""
        return self.runs and self.limit_at_boot_ms is not None and not self.record["stop_reason"]

    @property
    def signal_at_boot_ms(self) -> int | None:
        """When it gets the signal before its time limit, on the boot clock; None where none is to come."""
        asked, limit_at_ms = self.record["meta"].get("limit_signal"), self.limit_at_boot_ms
        if asked is None or limit_at_ms is None or not self.awaits_time_limit:
            return None
        if self.record.get("signalled_limit") == self.limit_seconds:
            return None
        before_ms: int = asked["before_seconds"] * 1000
        return max(self.record["started_boot_ms"], limit_at_ms - before_ms)

    def signal(self, number: int, *, tree: bool = False) -> None:
        """Signal the process group of the task, and with `tree` also its descendants in other groups.

        Does nothing once the first process of the task has ended.
        """
        pid, ticks = self.record["pid"], self.record["start_ticks"]
        if not self.runs or (sys.platform == "linux" and not processes.is_running(pid, ticks)):
            return
        if tree:
            processes.signal_tree(pid, number, below=self.guard_pid or pid)
        else:
            processes.signal_group(pid, number)
