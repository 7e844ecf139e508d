"""The tasks of this agent, and what of them the server does not have yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from scheduler.agent import processes
from scheduler.agent.gpu.usage import Holder, Use
from scheduler.agent.protocol import Report, TaskRecord, task_key
from scheduler.agent.secret_values.store import SecretStore
from scheduler.agent.tasks.element_results import MOST_RESULTS, has_results, read_results
from scheduler.agent.tasks.local_task import STREAMS, LocalTask, is_suspended, stored_bytes
from scheduler.agent.tasks.reports import masked, report_of

#: Follows the key of a task whose results of elements are meant.
_RESULTS: Final = "/elements"


def _reported_part(record: TaskRecord) -> tuple[Any, ...]:
    """What of a record is reported when it changes."""
    return record["state"], is_suspended(record), record.get("probes")


class RunningTask(NamedTuple):
    """A running task: its first process, for how long it has run, what memory it asked for."""

    key: str
    task: int
    epoch: int
    leader: int
    ran_ms: int
    memory_mib: int
    has_gpus: bool
    #: As `orders.task_order` writes them.
    gpu_probes: list[dict[str, Any]]
    suspended: bool


class TaskTable:
    """Shared by the agent's threads; `changed` is notified when there is something to report or to upload."""

    def __init__(self, secrets: SecretStore | None = None) -> None:
        #: What is masked in the output and the reports of tasks.
        self.secrets = secrets or SecretStore(None)
        self.changed = threading.Condition()
        self.cap_bytes = 64 * 1024 * 1024
        #: How a task has used its GPUs; None where they are not measured.
        self.gpu_use_of: Callable[[str], Use | None] = lambda key: None
        #: What is wrong with GPUs, by their numbers.
        self.gpu_faults_of: Callable[[Sequence[int]], str] = lambda numbers: ""
        self._tasks: dict[str, LocalTask] = {}
        #: Reports on tasks that the server asked for and that are not here.
        self._unknown: dict[str, Report] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def add(
        self,
        task: int,
        epoch: int,
        *,
        job: int,
        folder: str,
        fetching: bool = False,
    ) -> bool:
        """Add a task that the shim is to start; False when it is here already: an assignment may come twice."""
        key = task_key(task, epoch)
        with self.changed:
            if key in self._tasks:
                return False
            entry = LocalTask(key, task, epoch, job, folder, uploaded=dict.fromkeys(STREAMS, 0))
            entry.fetching = fetching
            self._tasks[key] = entry
            return True

    def get(self, task: int, epoch: int) -> LocalTask | None:
        return self._tasks.get(task_key(task, epoch))

    def update(self, records: Iterable[TaskRecord], *, complete: bool) -> None:
        """Take over records of the shim; `complete` means that tasks without a record are unknown to the shim."""
        with self.changed:
            seen = set()
            for record in records:
                seen.add(record["key"])
                self._take_record(record)
            if complete:
                self._drop_unknown_to_shim(seen)
            self.changed.notify_all()

    def _take_record(self, record: TaskRecord) -> None:
        meta = record["meta"]
        entry = self._tasks.get(record["key"])
        if entry is None:  # started before this agent: adopted
            entry = LocalTask(
                record["key"], meta["task"], meta["epoch"], meta["job"], record["folder"],
                uploaded=dict.fromkeys(STREAMS),
            )  # fmt: skip
            if meta.get("secrets"):
                self.secrets.load(entry.key)
            self._tasks[record["key"]] = entry
        before = _reported_part(entry.record) if entry.record else None
        entry.record = record
        if _reported_part(record) != before and record["state"] != "starting":
            entry.version += 1

    def _drop_unknown_to_shim(self, seen: set[str]) -> None:
        for key in [key for key in self._tasks if key not in seen]:
            entry = self._tasks[key]
            if entry.fetching:
                continue
            if entry.record is None:
                del self._tasks[key]  # the order never arrived; the server will give it again
                self.secrets.forget([key])
            elif not entry.ended:
                entry.record = entry.record.copy()
                entry.record |= {
                    "state": "ended",
                    "lost": True,
                    "text": "The record of the task on the node is missing.",
                }
                entry.version += 1

    # ------------------------------------------------------------ reports

    def known(self) -> list[list[int]]:
        """Tasks whose end has not been reported, as [task, epoch]."""
        with self.changed:
            return [[entry.task, entry.epoch] for entry in self._tasks.values() if not entry.reported]

    def verify(self, asked: Iterable[list[int]]) -> None:
        """The server asks for these tasks: report the ones that are not here, and ended ones once more."""
        with self.changed:
            for task, epoch in asked:
                key = task_key(task, epoch)
                entry = self._tasks.get(key)
                if entry is None:
                    text = "The node has no record of the task: its state folder was removed."
                    self._unknown[key] = Report(task=task, epoch=epoch, state="lost", text=text)
                elif entry.ended and entry.reported and not entry.stale:
                    entry.acknowledged = -1
            self.changed.notify_all()

    def pending_reports(self, limit: int) -> tuple[list[Report], dict[str, int]]:
        """Reports to send, and the version of each that an answer will acknowledge.

        Under the key with `_RESULTS` after it stands how far the results of a task's elements are in its report.
        """
        with self.changed:
            reports: list[Report] = []
            versions: dict[str, int] = {}
            results_left = MOST_RESULTS
            for key, report in list(self._unknown.items())[:limit]:
                reports.append(report)
                versions[key] = -1
            for entry in self._tasks.values():
                if len(reports) >= limit:
                    break
                if not entry.has_pending_report or entry.record is None:
                    continue
                if entry.has_elements:
                    results_left -= self._add_with_results(
                        entry, entry.record, results_left, reports, versions
                    )
                    continue
                reports.append(self._report_of(entry, entry.record))
                versions[entry.key] = entry.version
            return reports, versions

    def _add_with_results(
        self,
        entry: LocalTask,
        record: TaskRecord,
        most: int,
        reports: list[Report],
        versions: dict[str, int],
    ) -> int:
        """Report a task with results of its elements, and its end only with the last of them; answers how many."""
        now_ms = processes.boot_ms()
        results, upto = read_results(entry.folder, entry.elements_at, now_ms=now_ms, most=most)
        whole = not has_results(entry.folder, upto)
        if not whole and entry.ended:
            record = record.copy()
            record["state"] = "running"
        report = self._report_of(entry, record)
        if results:
            report["elements"] = results
        reports.append(report)
        versions[entry.key + _RESULTS] = upto
        if whole or not entry.ended:
            versions[entry.key] = entry.version
        return len(results)

    def _report_of(self, entry: LocalTask, record: TaskRecord) -> Report:
        use, cap = self.gpu_use_of(entry.key), self.cap_bytes
        report = report_of(entry, record, use=use, gpu_faults_of=self.gpu_faults_of, cap_bytes=cap)
        mask = self.secrets.masks.get(entry.key)
        return report if mask is None else masked(report, mask)

    def look_for_checkpoints(self) -> None:
        """Report the running tasks that have written their checkpoint file since the last call."""
        with self.changed:
            for entry in self._tasks.values():
                if entry.running and entry.has_saved():
                    entry.version += 1
                    self.changed.notify_all()

    def look_for_results(self) -> None:
        """Report the running tasks of which more elements have ended than the server has."""
        with self.changed:
            for entry in self._tasks.values():
                if entry.running and entry.has_elements and has_results(entry.folder, entry.elements_at):
                    entry.version += 1
                    self.changed.notify_all()

    def report_gpu_use(self) -> None:
        """Report the use of GPUs while a task runs: after a minute, after two, after four, then every five minutes."""
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
        return bool(self._unknown) or any(entry.has_pending_report for entry in self._tasks.values())

    def wait_for_reports(self, seconds: float) -> None:
        """Wait until there is something to report, or until the time is up."""
        until = time.monotonic() + seconds
        with self.changed:
            while not self.has_pending_reports():
                due = [
                    entry.report_due_ms / 1000 for entry in self._tasks.values() if entry.report_due_ms > 0
                ]
                left = min([until - time.monotonic(), *due])
                if left <= 0:
                    return
                self.changed.wait(left)

    def acknowledge(self, versions: dict[str, int]) -> None:
        with self.changed:
            for key, version in versions.items():
                if version == -1:
                    self._unknown.pop(key, None)
                elif key.endswith(_RESULTS):
                    if entry := self._tasks.get(key.removesuffix(_RESULTS)):
                        entry.elements_at = max(entry.elements_at, version)
                elif entry := self._tasks.get(key):
                    entry.acknowledged = version
            self.changed.notify_all()

    # ------------------------------------------------------------ logs, and tasks to forget

    def with_logs(self) -> list[LocalTask]:
        """Tasks whose output the server still takes."""
        with self.changed:
            return [
                entry for entry in self._tasks.values() if entry.record is not None and not entry.logs_refused
            ]

    def take_finished(self) -> list[str]:
        """Forget the tasks whose report, output and checkpoints the server has to the end; returns their keys."""
        with self.changed:
            done = [
                entry.key
                for entry in self._tasks.values()
                if entry.ended
                and entry.reported
                and (entry.logs_refused or _uploaded_whole(entry, self.cap_bytes))
                and (entry.checkpoints_stored or entry.checkpoint_terms is None)
            ]
            for key in done:
                del self._tasks[key]
            self.secrets.forget(done)
            return done

    def entries(self) -> list[LocalTask]:
        with self.changed:
            return list(self._tasks.values())

    def gpu_holders(self) -> list[Holder]:
        """The running tasks with their GPUs, also tasks without: these may use GPUs all the same."""
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

    def running(self) -> list[RunningTask]:
        """The running tasks, for those that measure them."""
        now = processes.boot_ms()
        with self.changed:
            return [
                RunningTask(
                    key, entry.task, entry.epoch, record["pid"], now - record["started_boot_ms"],
                    record["meta"].get("memory_mib", 0), bool(record["meta"].get("devices")),
                    record["meta"].get("gpu_probes", []), is_suspended(record),
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


def _uploaded_whole(entry: LocalTask, cap_bytes: int) -> bool:
    return all(
        (at := entry.uploaded[stream]) is not None
        and at >= stored_bytes(entry.stream_path(stream), cap_bytes)
        for stream in STREAMS
    )
