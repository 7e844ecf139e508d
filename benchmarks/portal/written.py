"""What a job writes: WAL from its request to its end, and the room that it takes when it has ended."""

from __future__ import annotations

import statistics
import time
from typing import Final

import psycopg

from benchmarks.portal.e2e import together
from benchmarks.portal.scratch_portal import CPUS, NODES, Portal, portal
from benchmarks.registry import Figures, NotMeasuredError, benchmark, note

JOBS, REPEATS = 1000, 3
#: In the database of the portal under measurement only: reads the log record by record.
_WAL: Final = """
SELECT "resource_manager/record_type", count, record_size, fpi_size FROM pg_get_wal_stats(%s, %s, true) WHERE count > 0
"""
_RELATIONS: Final = """
SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_class c
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'm')
"""


@benchmark("wal_kb_per_job", "wal_kb_per_job_with_pages")
def wal() -> Figures:
    """WAL of 1,000 jobs of `true` from request to end, without images of whole pages: median of three.

    The first change of a page after each checkpoint writes the whole page, so the plain difference of
    `pg_current_wal_lsn` says more about when a checkpoint was than about a job. `pg_walinspect` reads the records
    between the two positions and says how much of them are such images. What the portal writes meanwhile beside the
    jobs (heartbeats, recordings, autovacuum) is in both figures.
    """
    running = portal()
    running.start_agents(NODES, cpus=CPUS)
    client = running.client()
    try:
        running.as_superuser("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
    except psycopg.Error as problem:
        raise NotMeasuredError(f"this PostgreSQL cannot look into its log: {problem}") from problem
    together(client, "before the log is read", JOBS)
    plain, whole = [], []
    for number in range(REPEATS):
        begin = _position(running)
        together(client, f"read from the log, {number}", JOBS)
        end = _position(running)
        rows = running.as_superuser(_WAL, begin, end)
        plain.append(sum(int(size) for _, _, size, _ in rows) / 1000 / JOBS)
        whole.append(sum(int(size) + int(images) for _, _, size, images in rows) / 1000 / JOBS)
    for name, count, size, _ in sorted(rows, key=lambda row: -row[2])[:8]:
        note(f"{name:<32} {int(count) / JOBS:>6.1f} records, {int(size) / JOBS:>7.0f} bytes a job")
    yield "wal_kb_per_job", statistics.median(plain)
    yield "wal_kb_per_job_with_pages", statistics.median(whole)


def _position(running: Portal) -> str:
    """Where the log ends, once nothing of the jobs is on its way any more."""
    time.sleep(1)
    return str(running.as_superuser("SELECT pg_current_wal_flush_lsn()")[0][0])


@benchmark("disk_mb_per_1000_jobs")
def disk() -> Figures:
    """What 2,000 ended jobs of `true` add to all tables and indexes after VACUUM, for each 1,000.

    The portal has run as many before, so room that their rows left is used again, as in a database of some age.
    """
    running = portal()
    running.start_agents(NODES, cpus=CPUS)
    client = running.client()
    for number in range(2):
        together(client, f"before the room is looked at, {number}", JOBS)
    before = _sizes(running)
    for number in range(2):
        together(client, f"whose room is looked at, {number}", JOBS)
    after = _sizes(running)
    added = {name: (size - before.get(name, 0)) / 2 / 1e6 for name, size in after.items()}
    for name, size in sorted(added.items(), key=lambda item: -item[1])[:8]:
        note(f"{name:<40} {size:>7.3f} MB")
    yield "disk_mb_per_1000_jobs", sum(added.values())


def _sizes(running: Portal) -> dict[str, int]:
    """Bytes of each table with its indexes and long values, vacuumed."""
    time.sleep(1)
    running.as_superuser("VACUUM (ANALYZE)")
    return {name: int(size) for name, size in running.as_superuser(_RELATIONS)}
