"""From the shim's record of a task to the report that the server gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from scheduler.agent import processes
from scheduler.agent.gpu.usage import Use
from scheduler.agent.protocol import SHUT_DOWN, UNHEALTHY, ProbeResult, Report, TaskRecord
from scheduler.agent.secret_values.masks import Mask
from scheduler.agent.tasks.local_task import LocalTask, is_suspended, stored_bytes

#: Stops that are not the job's: the server starts it again.
_LOST_TEXT: Final = {
    "fenced": "The node was cut off from the server for too long and stopped its tasks.",
    "shutdown": SHUT_DOWN,
}


def report_of(
    entry: LocalTask,
    record: TaskRecord,
    *,
    use: Use | None,
    gpu_faults_of: Callable[[Sequence[int]], str],
    cap_bytes: int,
) -> Report:
    """What has become of a task; `use` is of its GPUs, `cap_bytes` are kept of each stream."""
    record = _with_held_stop(entry, record)
    now_ms = processes.boot_ms()
    same_boot = record["boot_id"] == processes.boot_id()
    report = Report(task=entry.task, epoch=entry.epoch, state=_state_of(record))
    if record["pid"]:
        report["pid"] = record["pid"]
        if same_boot:
            report["started_ago_ms"] = max(0, now_ms - record["started_boot_ms"])
    if entry.saved_ns:
        report["saved_ago_ms"] = max(0, (time.time_ns() - entry.saved_ns) // 1_000_000)
        report["saved_path"] = entry.saved_path
    if use is not None and (use.watched_ms or use.peak_memory_mib):
        report["gpu_watched_ms"], report["gpu_busy_ms"] = round(use.watched_ms), round(use.busy_ms)
        report["peak_gpu_memory_mib"] = use.peak_memory_mib
    if results := [*record.get("probes", ()), *entry.gpu_probe_results]:
        report["probes"] = [_result(one, now_ms) for one in sorted(results, key=lambda one: one["number"])]
    if record["state"] != "ended":
        report["suspended"] = is_suspended(record)
        return report
    if same_boot and record["ended_boot_ms"]:
        report["ended_ago_ms"] = max(0, now_ms - record["ended_boot_ms"])
    _add_end(report, record)
    if text := _text_of(record, report["state"], gpu_faults_of):
        report["text"] = text
    report["stdout_bytes"] = stored_bytes(entry.stream_path("stdout"), cap_bytes)
    report["stderr_bytes"] = stored_bytes(entry.stream_path("stderr"), cap_bytes)
    return report


def masked(report: Report, mask: Mask) -> Report:
    """The report without what its job wrote of its secrets: into its checkpoint file, or as output of a probe."""
    if "text" in report:
        report["text"] = mask.text(report["text"])
    if "saved_path" in report:
        report["saved_path"] = mask.text(report["saved_path"])
    for result in report.get("probes", ()):
        result["text"] = mask.text(result["text"])
    return report


def _with_held_stop(entry: LocalTask, record: TaskRecord) -> TaskRecord:
    """The record of a task that ended while its stop waited for a checkpoint: it was stopped."""
    if not entry.held_stop or record["state"] != "ended" or record["stop_reason"]:
        return record
    stopped = record.copy()
    stopped["stop_reason"] = entry.held_stop
    return stopped


def _result(result: ProbeResult, now_ms: int) -> ProbeResult:
    return ProbeResult(
        number=result["number"],
        ok=result["ok"],
        failures=result["failures"],
        text=result["text"],
        ago_ms=max(0, now_ms - result.get("boot_ms", now_ms)),
    )


def _add_end(report: Report, record: TaskRecord) -> None:
    """How the task ended and what it used, as far as its guard has seen it."""
    unhealthy = record["stop_reason"] == UNHEALTHY
    if record["exit_code"] is not None and not (unhealthy and record["exit_code"] == 0):
        report["exit_code"] = record["exit_code"]
    if record["exit_signal"] is not None:
        report["exit_signal"] = record["exit_signal"]
    if record["peak_memory_mib"] is not None:
        report["peak_memory_mib"] = record["peak_memory_mib"]
    if record["cpu_time_ms"] is not None:
        report["cpu_time_ms"] = record["cpu_time_ms"]
    if failure := record.get("failure"):
        report["failure"] = failure
    if record["stop_reason"] and not unhealthy:
        report["stop_reason"] = record["stop_reason"]


def _text_of(record: TaskRecord, state: str, gpu_faults_of: Callable[[Sequence[int]], str]) -> str:
    """A sentence on the end; a failure without one may be due to a fault of the task's GPUs."""
    text = record["text"] or _LOST_TEXT.get(record["stop_reason"], "")
    if not text and state == "failed":
        return gpu_faults_of(record["meta"].get("devices", ()))
    return text


def _state_of(record: TaskRecord) -> str:
    if record["state"] != "ended":
        return "running"
    if record["lost"] or record["stop_reason"] in _LOST_TEXT:
        return "lost"
    if record["stop_reason"] == UNHEALTHY:
        return "failed"
    if record["stop_reason"]:
        return "stopped"
    return "succeeded" if record["exit_code"] == 0 else "failed"
