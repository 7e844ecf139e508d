"""Assignments and task records as agents get them, with plain values where a test gives none."""

from __future__ import annotations

from typing import Any

from scheduler.agent import processes
from scheduler.agent.protocol import Assignment, TaskRecord


def an_assignment(**fields: Any) -> Assignment:
    plain: dict[str, Any] = {
        "task": 5, "epoch": 2, "job": 41, "job_id": "u-u-i-d", "name": "train", "user": "alice", "project": "vision",
        "queue": "default", "rank": 1, "tasks": 4, "local_rank": 1, "node_rank": 0, "nodes": 2,
        "node_names": ["n1", "n2"], "master_address": "n1", "master_port": 20041, "command": "true", "script": "",
        "env": {}, "working_dir": "", "devices": [3, 5], "cpu_millis": 2500, "memory_mib": 100, "limit_seconds": None,
        "grace_seconds": 60,
    }  # fmt: skip
    return Assignment(**(plain | fields))  # type: ignore[typeddict-item]


def a_record(**fields: Any) -> TaskRecord:
    plain: dict[str, Any] = {
        "key": "5-2", "state": "running", "boot_id": processes.boot_id(), "folder": "/nowhere", "pid": 9,
        "meta": {"task": 5, "epoch": 2, "job": 41}, "start_ticks": 1, "started_boot_ms": processes.boot_ms() - 1000,
        "ended_boot_ms": 0, "exit_code": None, "exit_signal": None, "stop_reason": "", "lost": False, "text": "",
        "peak_memory_mib": None, "cpu_time_ms": None,
    }  # fmt: skip
    return TaskRecord(**(plain | fields))  # type: ignore[typeddict-item]
