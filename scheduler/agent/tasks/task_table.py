"""The tasks this agent answers for, and what the server has still to be told of each."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduler.agent import processes
from scheduler.agent.gpu_use import Holder, Use
from scheduler.agent.protocol import SHUT_DOWN, Report, TaskRecord, task_key

STREAMS: Final = ("stdout", "stderr")
_GONE_TEXT: Final = {
    "fenced": "The node was cut off from the server for too long and stopped its tasks.",
    "shutdown": SHUT_DOWN,
}


@dataclass
class LocalTask:
    """One task; `version` rises with each change, `acknowledged` is the version the server has."""

    key: str
    task: int
    epoch: int
    job: int
    folder: str
    record: TaskRecord | None = None
    version: int = 0
    acknowledged: int = 0
    #: The server waits for no report of it any more.
    stale: bool = False
    #: Bytes of each stream that the server has; None until it has told.
    uploaded: dict[str, int | None] = field(default_factory=dict)
    #: The server takes no more of its logs.
    logs_refused: bool = False
    #: When it last wrote its checkpoint file (ns since 1970), and the first line of that.
    saved_ns: int = 0
    saved_path: str = ""
    #: When its age says that the use of its GPUs is to be told again.
    use_due_ms: int = 60_000

    @property
    def ended(self) -> bool:
        return self.record is not None and self.record["state"] == "ended"

    @property
    def reported(self) -> bool:
        return self.stale or (self.ended and self.acknowledged == self.version)

    def stream_path(self, stream: str) -> str:
        return f"{self.folder}/{stream}"

    def has_saved(self) -> bool:
        """Whether it has written its checkpoint file since we looked: whatever a job left there, we only read."""
        try:
            file = os.open(f"{self.folder}/{CHECKPOINT}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_mtime_ns == self.saved_ns:
                return False
            line = os.read(file, 4096).split(b"\n", 1)[0].decode(errors="replace")
            self.saved_ns, self.saved_path = found.st_mtime_ns, line.strip().replace("\0", "")[:1024]
            return True
        except OSError:
            return False
        finally:
            os.close(file)


#: The file in its folder that a task writes when it has saved its work; the first line says where.
CHECKPOINT: Final = "checkpoint"


def cap_marker(cap_bytes: int) -> bytes:
    return f"\n[muster: only the first {cap_bytes // 1024} KiB of this output are kept]\n".encode()


def stored_bytes(path: str, cap_bytes: int) -> int:
    """How many bytes of this stream the server is to have in the end, given what is there now."""
    try:
        size = os.stat(path).st_size
    except OSError:
        return 0
    return size if size <= cap_bytes else cap_bytes + len(cap_marker(cap_bytes))


class TaskTable:
    """Shared by the agent's threads; `changed` is notified when there is something to report or upload."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.cap_bytes = 64 * 1024 * 1024
        #: How a task used its GPUs, where somebody watches them.
        self.gpu_use_of: Callable[[str], Use | None] = lambda key: None
        #: What is wrong with GPUs, by their numbers.
        self.gpu_faults_of: Callable[[Sequence[int]], str] = lambda numbers: ""
        self._tasks: dict[str, LocalTask] = {}
        #: Tasks the server asked for that are not here.
        self._unknown: dict[str, Report] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: int, epoch: int, *, job: int, folder: str) -> bool:
        """False when it is here already: an assignment that came twice."""
        key = task_key(task, epoch)
        with self.changed:
            if key in self._tasks:
                return False
            self._tasks[key] = LocalTask(key, task, epoch, job, folder, uploaded=dict.fromkeys(STREAMS, 0))
            return True

    def get(self, task: int, epoch: int) -> LocalTask | None:
        return self._tasks.get(task_key(task, epoch))

    def update(self, records: Iterable[TaskRecord], *, complete: bool) -> None:
        """Take over what the keeper says; when it said everything, what it does not know is not there."""
        with self.changed:
            seen = set()
            for record in records:
                seen.add(record["key"])
                self._take(record)
            if complete:
                self._drop_unknown_to_keeper(seen)
            self.changed.notify_all()

    def _take(self, record: TaskRecord) -> None:
        meta = record["meta"]
        entry = self._tasks.get(record["key"])
        if entry is None:  # from before this agent was started: adopted
            entry = LocalTask(
                record["key"], meta["task"], meta["epoch"], meta["job"], record["folder"],
                uploaded=dict.fromkeys(STREAMS),
            )  # fmt: skip
            self._tasks[record["key"]] = entry
        before = (entry.record["state"], _stands_still(entry.record)) if entry.record else ("", False)
        entry.record = record
        if (record["state"], _stands_still(record)) != before and record["state"] != "starting":
            entry.version += 1

    def _drop_unknown_to_keeper(self, seen: set[str]) -> None:
        for key in [key for key in self._tasks if key not in seen]:
            entry = self._tasks[key]
            if entry.record is None:
                del self._tasks[key]  # the order never arrived; the server will give it again
            elif not entry.ended:
                entry.record = entry.record.copy()
                entry.record |= {"state": "ended", "lost": True, "text": "Its record on the node is gone."}
                entry.version += 1

    # ------------------------------------------------------------ what the server is to know

    def known(self) -> list[list[int]]:
        """Tasks that are not reported to their end."""
        with self.changed:
            return [[entry.task, entry.epoch] for entry in self._tasks.values() if not entry.reported]

    def verify(self, asked: Iterable[list[int]]) -> None:
        """The server believes these to be here; say so where it is wrong."""
        with self.changed:
            for task, epoch in asked:
                key = task_key(task, epoch)
                entry = self._tasks.get(key)
                if entry is None:
                    text = "The node knows nothing of it: its state folder was removed."
                    self._unknown[key] = Report(task=task, epoch=epoch, state="lost", text=text)
                elif entry.ended and entry.reported and not entry.stale:
                    entry.acknowledged = -1  # say it again
            self.changed.notify_all()

    def pending_reports(self, limit: int) -> tuple[list[Report], dict[str, int]]:
        """Reports to send, and the version of each that an answer will acknowledge."""
        with self.changed:
            reports: list[Report] = []
            versions: dict[str, int] = {}
            for key, report in list(self._unknown.items())[:limit]:
                reports.append(report)
                versions[key] = -1
            for entry in self._tasks.values():
                if len(reports) >= limit:
                    break
                if entry.version != entry.acknowledged and not entry.stale and entry.record is not None:
                    reports.append(self._report(entry, entry.record))
                    versions[entry.key] = entry.version
            return reports, versions

    def look_for_checkpoints(self) -> None:
        """Have those tasks reported that say they have saved their work."""
        with self.changed:
            for entry in self._tasks.values():
                if entry.record is not None and entry.record["state"] == "running" and entry.has_saved():
                    entry.version += 1
                    self.changed.notify_all()

    def look_at_gpu_use(self) -> None:
        """Have the use of GPUs told while a task runs: after a minute, after two, four, then every five."""
        now = processes.boot_ms()
        with self.changed:
            for entry in self._tasks.values():
                if (record := entry.record) is None or record["state"] != "running":
                    continue
                age_ms = now - record["started_boot_ms"]
                if age_ms < entry.use_due_ms or not record["meta"].get("devices"):
                    continue
                entry.use_due_ms = age_ms + min(age_ms, 300_000)
                if self.gpu_use_of(entry.key) is not None:
                    entry.version += 1
                    self.changed.notify_all()

    def has_pending_reports(self) -> bool:
        return bool(self._unknown) or any(
            entry.version != entry.acknowledged and not entry.stale for entry in self._tasks.values()
        )

    def acknowledge(self, versions: dict[str, int]) -> None:
        with self.changed:
            for key, version in versions.items():
                if version == -1:
                    self._unknown.pop(key, None)
                elif entry := self._tasks.get(key):
                    entry.acknowledged = version
            self.changed.notify_all()

    def _report(self, entry: LocalTask, record: TaskRecord) -> Report:
        now = processes.boot_ms()
        same_boot = record["boot_id"] == processes.boot_id()
        report = Report(task=entry.task, epoch=entry.epoch, state=_state_of(record))
        if record["pid"]:
            report["pid"] = record["pid"]
            if same_boot:
                report["started_ago_ms"] = max(0, now - record["started_boot_ms"])
        if entry.saved_ns:
            report["saved_ago_ms"] = max(0, (time.time_ns() - entry.saved_ns) // 1_000_000)
            report["saved_path"] = entry.saved_path
        if (use := self.gpu_use_of(entry.key)) is not None and (use.watched_ms or use.peak_memory_mib):
            report["gpu_watched_ms"], report["gpu_busy_ms"] = round(use.watched_ms), round(use.busy_ms)
            report["peak_gpu_memory_mib"] = use.peak_memory_mib
        if record["state"] != "ended":
            report["suspended"] = _stands_still(record)
            return report
        if same_boot and record["ended_boot_ms"]:
            report["ended_ago_ms"] = max(0, now - record["ended_boot_ms"])
        if record["exit_code"] is not None:
            report["exit_code"] = record["exit_code"]
        if record["exit_signal"] is not None:
            report["exit_signal"] = record["exit_signal"]
        if record["peak_memory_mib"] is not None:
            report["peak_memory_mib"] = record["peak_memory_mib"]
        if record["cpu_time_ms"] is not None:
            report["cpu_time_ms"] = record["cpu_time_ms"]
        if record["stop_reason"]:
            report["stop_reason"] = record["stop_reason"]
        text = record["text"] or _GONE_TEXT.get(record["stop_reason"], "")
        if not text and report["state"] == "failed":
            text = self.gpu_faults_of(record["meta"].get("devices", ()))
        if text:
            report["text"] = text
        report["stdout_bytes"] = stored_bytes(entry.stream_path("stdout"), self.cap_bytes)
        report["stderr_bytes"] = stored_bytes(entry.stream_path("stderr"), self.cap_bytes)
        return report

    # ------------------------------------------------------------ done with it

    def with_logs(self) -> list[LocalTask]:
        """Tasks that may have something to upload."""
        with self.changed:
            return [
                entry for entry in self._tasks.values() if entry.record is not None and not entry.logs_refused
            ]

    def take_finished(self) -> list[str]:
        """Keys of tasks that are reported and uploaded to the end; they are forgotten here."""
        with self.changed:
            done = [
                entry.key
                for entry in self._tasks.values()
                if entry.ended and entry.reported and (entry.logs_refused or self._uploaded_whole(entry))
            ]
            for key in done:
                del self._tasks[key]
            return done

    def _uploaded_whole(self, entry: LocalTask) -> bool:
        return all(
            (at := entry.uploaded[stream]) is not None
            and at >= stored_bytes(entry.stream_path(stream), self.cap_bytes)
            for stream in STREAMS
        )

    def gpu_holders(self) -> list[Holder]:
        """The tasks that run here, with the GPUs they were given; those without may use some all the same."""
        now = processes.boot_ms()
        with self.changed:
            return [
                Holder(
                    key, record["pid"], tuple(record["meta"].get("devices", ())),
                    max(0, now - record["started_boot_ms"]),
                )
                for key, entry in self._tasks.items()
                if (record := entry.record) is not None and record["state"] == "running"
            ]  # fmt: skip

    def keys(self) -> list[str]:
        with self.changed:
            return list(self._tasks)

    def live(self) -> int:
        with self.changed:
            return sum(not entry.ended for entry in self._tasks.values())


def _stands_still(record: TaskRecord) -> bool:
    return bool(record.get("suspended_boot_ms"))


def _state_of(record: TaskRecord) -> str:
    if record["state"] != "ended":
        return "running"
    if record["lost"] or record["stop_reason"] in _GONE_TEXT:
        return "lost"
    if record["stop_reason"]:
        return "stopped"
    return "succeeded" if record["exit_code"] == 0 else "failed"
