"""What a hundred thousand jobs cost that wait: in a cycle, at rest, on the way of others, in memory; and a takeover."""

from __future__ import annotations

import os
import resource
import statistics
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.portal.e2e import CPUS, NODES, TOGETHER, together
from benchmarks.portal.scratch_portal import Portal, portal, until
from benchmarks.registry import Figures, benchmark
from infra.machine.freed_memory import keep_freed_memory

if TYPE_CHECKING:
    from scheduler.models import Cluster, Queue
    from scheduler.state.lease.leases import HeldLease

WAITING = 100_000
#: Changed between two cycles: half of them come, half of them are other than before.
CHANGES = 500
CYCLES = 7
MACHINES, BUSY = 1000, 990
CLASSES = 50
BULK = 1000
REST_SECONDS = 30.0


@benchmark("cycle_whole_ms_100k", "cycle_whole_cpu_ms_100k", "cycle_first_ms_100k")
def whole_cycle() -> Figures:
    """Read, plan, apply and record, with 100,000 jobs that could start and 1,000 machines, nearly all of them full."""
    keep_freed_memory()  # as the planner does
    running = portal()
    from django.db import connection

    from scheduler.models import Node
    from scheduler.services.planning.cycles import plan_once

    cluster, lease = _a_cluster("whole")
    queue = _queue(cluster, "whole")
    Node.objects.bulk_create(
        Node(
            cluster=cluster, name=f"whole-{number}", state="up", cpu_millis=64_000, cpu_millis_capacity=64_000,
            used_cpu_millis=64_000 if number < BUSY else 0, memory_mib=262_144, memory_mib_capacity=262_144,
            storage_mib=1_000_000,
        )
        for number in range(MACHINES)
    )  # fmt: skip
    _submit(running, queue, WAITING)
    began = time.perf_counter()
    plan_once(lease, cluster.pk, "bench")
    yield "cycle_first_ms_100k", (time.perf_counter() - began) * 1000
    for _ in range(15):  # until every job shows its reason: a cycle writes a bounded number of them
        plan_once(lease, cluster.pk, "bench")
    walls, cpus = [], []
    for _ in range(CYCLES):
        _submit(running, queue, CHANGES // 2)
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE scheduler_job SET assemblies_failed = 1 - assemblies_failed %% 2 WHERE number IN"
                " (SELECT number FROM scheduler_job WHERE queue_id = %s AND state = 'queued' ORDER BY number DESC"
                " OFFSET 5000 LIMIT %s)",
                [queue.pk, CHANGES // 2],
            )
        began, used = time.perf_counter(), _cpu_seconds()
        _, result = plan_once(lease, cluster.pk, "bench")
        walls.append((time.perf_counter() - began) * 1000)
        cpus.append((_cpu_seconds() - used) * 1000)
        assert result.planned
    yield "cycle_whole_ms_100k", statistics.median(walls)
    yield "cycle_whole_cpu_ms_100k", statistics.median(cpus)
    _end_all(queue)


@benchmark(
    "e2e_jobs_per_s_100k_pending", "e2e_100k_pending_vs_empty", "rest_cpu_pct_100k_pending",
    "planner_mib_100k_pending", "takeover_s",
)  # fmt: skip
def beside_a_paused_queue() -> Figures:
    """100,000 jobs in a paused queue: what they take from the jobs of another queue, and from a portal at rest."""
    running = portal()
    running.start_agents(NODES, cpus=CPUS)
    from scheduler.models import Cluster

    client = running.client()
    cluster = Cluster.objects.order_by("id").first()
    assert cluster is not None
    together(client, "to warm up")
    empty = [together(client, f"empty {number}") for number in range(3)]
    before = _planner(running).memory_info().rss
    queue = _queue(cluster, "paused", paused=True)
    _submit(running, queue, WAITING)
    _ask_for_a_cycle(cluster)
    until(lambda: not queue.jobs.filter(reason_code="").exists(), seconds=600, every=0.5)
    yield "planner_mib_100k_pending", (_planner(running).memory_info().rss - before) / 2**20
    client = running.client()  # the other has been silent for too long
    beside = [together(client, f"beside {number}") for number in range(3)]
    yield "e2e_jobs_per_s_100k_pending", TOGETHER / statistics.median(beside)
    yield "e2e_100k_pending_vs_empty", statistics.median(empty) / statistics.median(beside)
    time.sleep(5)
    yield "rest_cpu_pct_100k_pending", _cpu_percent(running, REST_SECONDS)
    yield "takeover_s", _takeover(running)
    _end_all(queue)


def _takeover(running: Portal) -> float:
    """From the kill of the planner until a job that was submitted just then has been given to a node."""
    from scheduler.models import Job

    client = running.client()
    spent = []
    for number in range(3):
        _planner(running).kill()
        began = time.perf_counter()
        job = client.post("jobs", {"name": f"after a kill {number}", "command": "true", "memory": "16Mi"})
        row = Job.objects.filter(pk=job["number"])
        until(lambda row=row: not row.filter(state="queued").exists(), seconds=60, every=0.01)
        spent.append(time.perf_counter() - began)
        time.sleep(8)  # until a spare is loaded again
    return statistics.median(spent)


def _planner(running: Portal) -> psutil.Process:
    """The process that plans: its number is in the file whose lock it has."""
    return psutil.Process(int((running.stack.state / "run" / "planner.lock").read_text()))


def _cpu_percent(running: Portal, seconds: float) -> float:
    """CPU time of all processes of the portal but its agents, in per cent of one core."""

    def spent() -> float:
        found = 0.0
        for one in running.stack.descendants():
            try:
                found += sum(one.cpu_times()[:2])
            except psutil.Error:
                continue
        return found

    began, before = time.perf_counter(), spent()
    time.sleep(seconds)
    return 100 * (spent() - before) / (time.perf_counter() - began)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _a_cluster(slug: str) -> tuple[Cluster, HeldLease]:
    """A cluster that only this process plans: the portal's planner gets no lease of it."""
    from scheduler.models import Cluster
    from scheduler.state.lease import leases
    from scheduler.state.lease.lease_holder import new_holder

    cluster = Cluster.objects.create(name=slug, slug=slug)
    lease = leases.acquire(leases.cluster_scope(cluster.pk), holder=new_holder(), seconds=3600)
    assert lease is not None
    return cluster, lease


def _queue(cluster: Cluster, slug: str, **kwargs: Any) -> Queue:
    from scheduler.models import Queue

    return Queue.objects.create(cluster=cluster, name=slug, slug=f"{slug}-{os.getpid()}", **kwargs)


def _submit(running: Portal, queue: Queue, count: int) -> None:
    """Pending jobs of some tens of classes, each of which fits a machine, through the door."""
    client = running.client()
    for first in range(0, count, BULK):
        jobs = [
            {
                "command": "true", "queue": queue.slug, "cpu_cores": 1 + number % 10,
                "memory": f"{64 * (1 + number // 10 % (CLASSES // 10))}Mi",
            }
            for number in range(first, min(first + BULK, count))
        ]  # fmt: skip
        client.post("jobs:bulk", {"jobs": jobs})


def _ask_for_a_cycle(cluster: Cluster) -> None:
    from scheduler.outbox import wake_planner

    wake_planner(cluster.pk, trigger="bench")


def _end_all(queue: Queue) -> None:
    queue.jobs.filter(state="queued").update(state="cancelled", completed_at=datetime.now(UTC))
