"""Elements of an array that share jobs: from one request to the row of the last element."""

from __future__ import annotations

import time

from benchmarks.portal.e2e import CPUS, NODES
from benchmarks.portal.scratch_portal import portal, until
from benchmarks.registry import Figures, benchmark

ELEMENTS = 10_000
#: As many as one job runs: more jobs than there are nodes, so that all are busy to the end.
PER_JOB = 250


@benchmark("elements_per_s")
def elements() -> Figures:
    """10,000 elements of `true`, 250 a job, until all have ended and their jobs have completed."""
    running = portal()
    running.start_agents(NODES, cpus=CPUS)
    from quotas.models import LedgerEntry
    from scheduler.models import ElementEnd, Job

    client = running.client()
    client.post("jobs", {"name": "to warm up", "command": "true", "memory": "16Mi", "array": "0-99",
                         "elements_per_job": 10})  # fmt: skip
    until(lambda: ElementEnd.objects.count() >= 100)
    began = time.perf_counter()
    first = client.post(
        "jobs",
        {"name": "elements", "command": "true", "memory": "16Mi", "array": f"0-{ELEMENTS - 1}",
         "elements_per_job": PER_JOB, "time_limit": 10},
    )  # fmt: skip
    mine = Job.objects.filter(array_id=first["array_id"])
    until(lambda: not mine.exclude(state="completed").exists(), every=0.05)
    seconds = time.perf_counter() - began
    ended = ElementEnd.objects.filter(job__in=mine, state="succeeded", exit_code=0)
    lines = LedgerEntry.objects.filter(
        job_number__in=mine.values("number"), kind="charge", reason__startswith="element "
    )
    if (found := (ended.count(), lines.count())) != (ELEMENTS, ELEMENTS):
        raise RuntimeError(f"of {ELEMENTS} elements there are {found} ends and lines of the ledger")
    yield "elements_per_s", ELEMENTS / seconds
