"""Writes what the portal says of a campaign's jobs; run inside a portal's process (`manage.py shell`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scheduler.models import Allocation, Attempt, Job, Node
from tests.scheduler.state.small import broken_invariants


def write(path: str) -> None:
    """Jobs, attempts, what they held and when (seconds since 1970), nodes, and the invariants broken now."""
    rows: dict[str, Any] = {
        "jobs": [
            {
                "name": job.name + ("" if job.array_index is None else f"-{job.array_index}"),
                "state": job.state, "exit_code": job.exit_code, "attempts": job.epoch,
                "failure": job.failure_class, "text": job.end_text,
            }
            for job in Job.objects.filter(name__startswith="w").iterator()
        ],
        "attempts": [
            [job, epoch, begin.timestamp(), end.timestamp() if end else None]
            for job, epoch, begin, end in Attempt.objects.values_list("job_id", "epoch", "scheduled_at", "ended_at")
        ],
        "held": [
            [node, cpu, memory, begin.timestamp(), end.timestamp() if end else None]
            for node, cpu, memory, begin, end in Allocation.objects.values_list(
                "node_id", "cpu_millis", "memory_mib", "held_at", "released_at"
            )
        ],
        "nodes": {node.pk: [node.cpu_millis_capacity, node.memory_mib_capacity] for node in Node.objects.all()},
        "invariants": broken_invariants(),
    }  # fmt: skip
    Path(path).write_text(json.dumps(rows))
