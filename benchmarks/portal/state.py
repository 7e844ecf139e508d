"""Rows: how fast a plan is applied and a world is loaded, and how fast jobs come in through REST, durably."""

from __future__ import annotations

import statistics
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.portal.scratch_portal import Client, portal
from benchmarks.registry import Figures, benchmark, median_ms

if TYPE_CHECKING:
    from scheduler.models import Cluster, Queue
    from scheduler.state.lease.leases import HeldLease

STARTS = 100
REPEATS = 9
#: Enough machines that every repeat finds room.
NODES = 40
CLIENTS = 8
SUBMISSIONS = 1600
BULK, BULKS = 1000, 5


@benchmark(
    "apply_ms_per_100_starts",
    "apply_wall_ms_per_100_starts",
    "apply_statements_per_100_starts",
    "load_ms_10k_pending",
)
def rows_of_plans() -> Figures:
    """Plans of 100 starts, with a GPU or without, written and committed: CPU time here and in PostgreSQL; median."""
    portal()
    from django.db import connection, transaction
    from django.test.utils import CaptureQueriesContext

    from scheduler.core.cycle import plan_cycle
    from scheduler.state.apply.apply_context import ApplyContext
    from scheduler.state.apply.apply_plan import apply_plan
    from scheduler.state.load import snapshots

    cluster, queue, lease = _a_cluster_of_our_own()

    def apply(count_statements: bool = False) -> tuple[float, float, int]:
        _jobs(queue, STARTS)
        loaded = snapshots.load_snapshot(cluster_id=cluster.pk)
        plan = plan_cycle(loaded.snapshot, loaded.policy)
        with CaptureQueriesContext(connection) if count_statements else _Nothing() as captured:
            began, spent = time.perf_counter(), _cpu_ms()
            with transaction.atomic():
                context = ApplyContext(
                    cluster_id=cluster.pk, backend=loaded.backend, snapshot=loaded.snapshot,
                    policy=loaded.policy, lease=lease, at=datetime.now(UTC),
                )  # fmt: skip
                outcome = apply_plan(plan, context)
            spent, took = _cpu_ms() - spent, time.perf_counter() - began
        assert len(outcome.started) == STARTS, outcome.refused[:3]
        return spent, took * 1000, len(captured) if count_statements else 0

    apply()
    spent, took, _ = zip(*(apply() for _ in range(REPEATS)), strict=True)
    yield "apply_ms_per_100_starts", statistics.median(spent)
    yield "apply_wall_ms_per_100_starts", statistics.median(took)
    yield "apply_statements_per_100_starts", float(apply(count_statements=True)[2])

    _jobs(queue, 10_000)
    yield "load_ms_10k_pending", median_ms(lambda: snapshots.load_snapshot(cluster_id=cluster.pk))
    _cancel_all(queue)


@benchmark("submit_jobs_per_s", "submit_bulk_jobs_per_s")
def submissions() -> Figures:
    """Jobs accepted through REST: eight people with one job a request, then one with 1,000 a request."""
    running = portal()
    from scheduler.models import Cluster

    cluster = Cluster.objects.order_by("id").first()
    assert cluster is not None
    queue = _queue(cluster, "waits", paused=True)
    payload = {"command": "true", "queue": queue.slug, "cpu_cores": 1, "memory": "64Mi"}

    def submit(client: Client, count: int) -> None:
        for _ in range(count):
            client.post("jobs", payload)

    submit(running.client(), 20)
    clients = [running.client(person) for person in range(CLIENTS)]
    threads = [threading.Thread(target=submit, args=(client, SUBMISSIONS // CLIENTS)) for client in clients]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield "submit_jobs_per_s", SUBMISSIONS / (time.perf_counter() - began)
    assert queue.jobs.count() == SUBMISSIONS + 20

    client = running.client()
    client.post("jobs:bulk", {"jobs": [payload] * 10})
    began = time.perf_counter()
    for _ in range(BULKS):
        client.post("jobs:bulk", {"jobs": [payload] * BULK})
    yield "submit_bulk_jobs_per_s", BULKS * BULK / (time.perf_counter() - began)
    assert queue.jobs.count() == SUBMISSIONS + 20 + BULKS * BULK + 10
    _cancel_all(queue)


def _cpu_ms() -> float:
    """CPU time of this thread and of the process of PostgreSQL that serves it."""
    from django.db import connection

    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    of_postgres = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return (time.thread_time_ns() + of_postgres) / 1e6


class _Nothing:
    """Counts nothing and costs nothing."""

    def __enter__(self) -> list[Any]:
        return []

    def __exit__(self, *_: object) -> None:
        return None


def _a_cluster_of_our_own() -> tuple[Cluster, Queue, HeldLease]:
    """Machines without agents, and the lease on them: the portal's own planner keeps its hands off."""
    from scheduler.models import Cluster, Device, Node
    from scheduler.state.lease import leases
    from scheduler.state.lease.lease_holder import new_holder

    cluster = Cluster.objects.create(name="bench", slug="bench")
    lease = leases.acquire(leases.cluster_scope(cluster.pk), holder=new_holder(), seconds=3600)
    assert lease is not None
    nodes = Node.objects.bulk_create(
        Node(
            cluster=cluster, name=f"row-{number}", cpu_millis=64_000, cpu_millis_capacity=64_000,
            memory_mib=262_144, memory_mib_capacity=262_144, storage_mib=1_000_000, gpu_millis=16_000,
        )
        for number in range(NODES)
    )  # fmt: skip
    Device.objects.bulk_create(
        Device(node=node, index=index, model="H100", memory_mib=81_920, numa_domain=index // 8)
        for node in nodes
        for index in range(16)
    )
    return cluster, _queue(cluster, "apply"), lease


def _queue(cluster: Cluster, slug: str, **kwargs: Any) -> Queue:
    from scheduler.models import Queue

    return Queue.objects.create(cluster=cluster, name=slug, slug=slug, **kwargs)


def _jobs(queue: Queue, count: int) -> None:
    from accounts.models import Project, User
    from scheduler.models import Job
    from scheduler.services.jobs.bulk_insert import NewRows, insert_jobs_with_events

    person, project, now = (
        User.objects.get(username="bench0"),
        Project.objects.get(slug="bench"),
        datetime.now(UTC),
    )
    rows = NewRows(
        equal={
            field.column: field.get_default()
            for field in Job._meta.concrete_fields
            if field.column not in ("number", "outcome", "array_number")
        }
        | {
            "user_id": person.pk, "project_id": project.pk, "queue_id": queue.pk, "command": "true",
            "cpu_millis": 1000, "memory_mib": 64, "state": "queued", "created_at": now, "eligible_at": now,
        }
    )  # fmt: skip
    for name, column in (
        ("uuid", [uuid.uuid4() for _ in range(count)]),
        ("name", [f"job {number}" for number in range(count)]),
        ("gpus", [number % 2 for number in range(count)]),
    ):
        rows.equal.pop(name)
        rows.add(name, column)
    event = {
        "at": now, "kind": "job.submitted", "because": "", "epoch": None, "actor_id": person.pk,
        "details": {"via": "api"},
    }  # fmt: skip
    insert_jobs_with_events(rows, [event])


def _cancel_all(queue: Queue) -> None:
    queue.jobs.filter(state="queued").update(state="cancelled", completed_at=datetime.now(UTC))
