"""The whole way: from a request to a process on a node, and back to a completed job."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from benchmarks.portal.scratch_portal import CPUS, NODES, Client, portal, until
from benchmarks.registry import Figures, benchmark

#: One at a time on an idle cluster.
ALONE = 100
#: At once, of a command that does nothing.
TOGETHER = 500
_FIRST_LEFT = """
SELECT number FROM scheduler_job WHERE number BETWEEN %s AND %s AND state <> 'completed' ORDER BY number LIMIT 1
"""


@benchmark("submit_to_start_ms_p50", "submit_to_start_ms_p99")
def submit_to_start() -> Figures:
    """From before the request is sent to when the agent says that the process began."""
    running = portal()
    running.start_agents(NODES, cpus=CPUS)
    from scheduler.models import Job

    client = running.client()
    waits = []
    for number in range(ALONE + 5):
        asked_at = datetime.now(UTC)
        job = client.post("jobs", {"name": f"alone {number}", "command": "true", "memory": "16Mi"})
        row = Job.objects.filter(pk=job["number"])
        until(lambda row=row: row.filter(completed_at__isnull=False).exists(), seconds=60, every=0.01)
        waits.append((row.get().started_at - asked_at).total_seconds() * 1000)
    waits = sorted(waits[5:])
    yield "submit_to_start_ms_p50", waits[len(waits) // 2]
    yield "submit_to_start_ms_p99", waits[len(waits) * 99 // 100]


@benchmark("e2e_jobs_per_s")
def e2e() -> Figures:
    """500 jobs of `true` in one request, until the last has completed."""
    running = portal()
    running.start_agents(NODES, cpus=CPUS)
    client = running.client()
    together(client, "to warm up")
    yield "e2e_jobs_per_s", TOGETHER / together(client, "measured")


def together(client: Client, name: str, count: int = TOGETHER) -> float:
    """Submit `count` jobs (at most 1,000) in one request; the seconds until all have completed."""
    from django.db import connection

    name = f"together, {name}"
    began = time.perf_counter()
    one = {"name": name, "command": "true", "memory": "16Mi"}
    answer = client.post("jobs:bulk", {"jobs": [one] * count})
    numbers = [item["number"] for item in answer["results"]]
    first, last = min(numbers), max(numbers)

    def completed() -> bool:
        """By their keys, from the first that was left at the last look: looking must cost little."""
        nonlocal first
        with connection.cursor() as cursor:
            cursor.execute(_FIRST_LEFT, [first, last])
            left = cursor.fetchone()
        first = left[0] if left else last
        return left is None

    until(completed, every=0.05)
    return time.perf_counter() - began
