"""The fresh picture of the rows that a plan is about to change, locked until the transaction ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from infra.db.prepared import ask_together
from quotas.core.pricing import Price
from scheduler.core.snapshot.request_classes import ClassTable
from scheduler.core.snapshot.snapshot import PendingColumns, ProjectColumns, RunningColumns, Snapshot
from scheduler.state.db.query import Batch, Table, fetch, joined, only
from scheduler.state.db.sql import Rows, Statement, int_array
from scheduler.state.ledger import ledger
from scheduler.state.ledger.ledger import Books
from scheduler.state.ledger.ledger_sql import BUDGETS, PERIODS, PRICES, BudgetRow, PeriodRow
from scheduler.state.load import node_rows, queue_rows
from scheduler.state.load.cluster_rows import APPLIED_CLUSTER, AppliedClusterRow
from scheduler.state.load.job_rows import (
    CLOSED,
    PENDING,
    RUNNING,
    RUNNING_IN_ARRAYS_OF,
    THESE_JOBS,
    ClosedRow,
    moment_of,
    named,
    own_columns,
    pending_columns,
    running_columns,
)
from scheduler.state.load.project_rows import (
    AWAY,
    LOST_UNREAD,
    PROJECTS,
    AwayRow,
    ProjectRow,
    away_parameters,
    budget_columns,
    organizations_of,
    pairs_of,
    project_columns,
)
from scheduler.state.load.quota_rows import Lines, ask_lines

#: The people of these jobs.
_PEOPLE_OF_JOBS = "ANY(ARRAY(SELECT user_id FROM scheduler_job WHERE number = ANY(%s::bigint[])))"


@dataclass(frozen=True, slots=True)
class Locked:
    """The fresh picture of what a plan touches, and all quota lines that its starts count on."""

    snapshot: Snapshot
    lines: Lines
    books: Books


def applied_to(cluster_id: int) -> Statement:
    """What `load_for_apply` has to know first."""
    return APPLIED_CLUSTER.sql(), [cluster_id]


def load_for_apply(
    *, cluster_id: int, applied_to: Rows, node_ids: list[int], device_ids: list[int], queue_ids: list[int],
    project_ids: list[int], job_ids: list[int],
) -> Locked:  # fmt: skip
    """The rows a plan is about to change, locked against others until the transaction ends.

    Every writer takes its locks in this order and by rising id (queues, nodes, devices, quotas, budget
    periods, jobs), so that none can wait for another in a circle. `applied_to` are the rows of that statement.
    """
    if not applied_to:
        raise LookupError(f"there is no cluster with id {cluster_id}")
    cluster = APPLIED_CLUSTER.read(applied_to)[0]
    wanted = _Wanted(cluster_id, node_ids, device_ids, queue_ids, project_ids, job_ids)
    tables = _lock(wanted, cluster)
    classes = ClassTable()
    pending = pending_columns(
        own_columns(tables.jobs, classes),
        moment_of(cluster.now_ms, awaited=(), closed=tables.closed),
    )
    around = _read_around(wanted, tables, pending, classes)
    quotas = tables.lines.columns()
    snapshot = Snapshot.build(
        now_ms=cluster.now_ms,
        nodes=node_rows.node_columns(around.nodes, around.bound),
        devices=node_rows.device_columns(tables.devices),
        classes=classes.classes,
        pending=around.pending,
        running=around.running,
        allocations=node_rows.allocation_columns(only(around.held, "job_id", set(around.running.id.tolist())))
        if around.has_job_terms or around.has_parts
        else None,
        reservations=node_rows.reservation_columns(tables.reservations),
        queues=queue_rows.queue_columns(around.queues, cluster_paused=cluster.paused_text),
        projects=with_others(
            project_columns(
                tables.projects, tables.lines, quotas, pairs_of(pending, around.counted), tables.away
            ),
            around.running,
        ),
        quotas=quotas,
        pools=node_rows.pool_columns(around.everywhere, around.held),
        budgets=budget_columns(tables.periods, tables.prices, now_ms=cluster.now_ms),
    )
    return Locked(snapshot, tables.lines, ledger.books(tables.budgets, tables.prices, tables.periods))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The ids of what a plan touches."""

    cluster_id: int
    node_ids: Sequence[int]
    device_ids: Sequence[int]
    queue_ids: Sequence[int]
    project_ids: Sequence[int]
    job_ids: Sequence[int]

    def of_jobs(self) -> list[str]:
        """Parameters of the jobs that are as planned: a job in another queue or project by now is not."""
        return [int_array(self.job_ids), int_array(self.queue_ids), int_array(self.project_ids)]


@dataclass(frozen=True, slots=True)
class _LockedTables:
    """The rows of the plan, and what belongs to them."""

    queues: Table
    nodes: Table
    devices: Table
    projects: list[ProjectRow]
    away: list[AwayRow]
    prices: list[Price]
    lines: Lines
    budgets: list[BudgetRow]
    periods: list[PeriodRow]
    jobs: Table
    closed: list[ClosedRow]
    reservations: list[node_rows.ReservationRow]


def _lock(wanted: _Wanted, cluster: AppliedClusterRow) -> _LockedTables:
    """Lock and read, in one round trip.

    Lending lines and budgets are asked for only where there are any: planning a statement that finds nothing
    takes the database as long as one that does.
    """
    lock = "FOR NO KEY UPDATE OF {}".format
    project_ids = int_array(wanted.project_ids)
    batch = Batch()
    queues = batch.add(
        queue_rows.QUEUES, [int_array(wanted.queue_ids)],
        which=queue_rows.THESE_QUEUES, counted=queue_rows.COUNTED_IF_LIMITED, lock=lock("queue"),
    )  # fmt: skip
    nodes = batch.add(
        node_rows.NODES, [int_array(wanted.node_ids)], which=node_rows.THESE_NODES, lock=lock("node")
    )
    devices = batch.add(
        node_rows.DEVICES, [int_array(wanted.device_ids)], which=node_rows.THESE_DEVICES, lock=lock("device")
    )
    projects = batch.add(PROJECTS, [project_ids], lost=LOST_UNREAD)
    away = batch.add(AWAY, away_parameters(wanted.project_ids))
    prices = batch.add(PRICES)
    lines = ask_lines(
        batch, wanted.project_ids, wanted.job_ids,
        users=_PEOPLE_OF_JOBS, lock=lock("quota"), lenders=cluster.lends,
    )  # fmt: skip
    budgets = batch.add(BUDGETS, [project_ids, datetime.now(UTC)], when=cluster.has_budgets)
    periods = batch.add(PERIODS, [project_ids], when=cluster.has_budgets, lock=lock("period"))
    jobs = batch.add(PENDING, wanted.of_jobs(), which=THESE_JOBS, limit="", lock=lock("job"))
    closed = batch.add(CLOSED, [project_ids, int_array(wanted.job_ids)], users=_PEOPLE_OF_JOBS)
    reservations = batch.add(node_rows.RESERVATIONS, [wanted.cluster_id])
    batch.send(ask_together)
    found = projects.read()
    return _LockedTables(
        queues=queues.read(), nodes=nodes.read(), devices=devices.read(), projects=found, away=away.read(),
        prices=[row.price() for row in prices.read()], lines=lines.read(organizations_of(found)),
        budgets=budgets.read(), periods=periods.read(), jobs=jobs.read(), closed=closed.read(),
        reservations=reservations.read(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Around:
    """What the starts depend on beyond their own rows, read where some of their requests ask for it."""

    pending: PendingColumns
    running: RunningColumns
    queues: Table  # those of the plan, and with job terms every other
    nodes: Table  # the same
    everywhere: Table  # every node, where countable things are asked for
    held: Table  # what runs on them
    bound: list[node_rows.BoundRow]
    has_job_terms: bool
    has_parts: bool  # of some node of the plan a part is reserved
    counted: RunningColumns  # those of `running` that are of the plan's projects


def _read_around(
    wanted: _Wanted, tables: _LockedTables, pending: PendingColumns, classes: ClassTable
) -> _Around:
    """Running jobs of the same arrays; with countable things or terms about other jobs, the whole cluster."""
    live = RUNNING_IN_ARRAYS_OF.read([])
    if pending.array_max_running.any():
        live = fetch(RUNNING_IN_ARRAYS_OF, wanted.of_jobs())
    running = running_columns(live, classes)
    has_job_terms = any(request.job_terms for request in classes.classes)
    held, everywhere = node_rows.ALLOCATIONS.read([]), node_rows.NODES.read([])
    has_parts = any(
        node_id in wanted.node_ids
        for row in node_rows.reservation_columns(tables.reservations).parts
        for node_id, *_ in row
    )
    if has_job_terms or has_parts or any(request.per_task.extras for request in classes.classes):
        held, everywhere = _read_held(wanted.cluster_id)
    bound: list[node_rows.BoundRow] = []
    if any(request.one_domain for request in classes.classes):
        bound = fetch(node_rows.BOUND, [int_array(wanted.node_ids)])
    queues, nodes = tables.queues, tables.nodes
    counted = running
    if has_job_terms or has_parts:
        # What runs beside a reserved part decides what is left of it, whosever it is. The jobs of a project decide
        # together where each may run, wherever they are in the cluster. Only the holder of the lease starts jobs, so
        # jobs of others that keep apart from these need no second look.
        others, all_queues = _read_running(wanted.cluster_id)
        nodes, queues = joined(nodes, everywhere), joined(queues, all_queues)
        counted = running_columns(only(others, "project_id", set(wanted.project_ids)), classes)
        running = running_columns(others, classes) if has_parts else counted
        pending, running = named(pending, running, classes, ())
    return _Around(
        pending=pending, running=running, queues=queues, nodes=nodes, everywhere=everywhere, held=held,
        bound=bound, has_job_terms=has_job_terms, has_parts=has_parts, counted=counted,
    )  # fmt: skip


def with_others(projects: ProjectColumns, running: RunningColumns) -> ProjectColumns:
    """The projects, and those of other running jobs by their ids alone: their limits do not matter here."""
    others = sorted(set(running.project_id.tolist()) - set(projects.id.tolist()))
    if not others:
        return projects
    bare = ProjectColumns.from_columns(id=others)
    columns = {f.name: (*getattr(projects, f.name), *getattr(bare, f.name)) for f in fields(ProjectColumns)}
    return ProjectColumns.from_columns(**columns)


def _read_held(cluster_id: int) -> tuple[Table, Table]:
    """What is held in the whole cluster, and all its nodes: countable things belong to the whole cluster."""
    batch = Batch()
    held = batch.add(node_rows.ALLOCATIONS, [cluster_id, cluster_id])
    nodes = batch.add(node_rows.NODES, [cluster_id], which=node_rows.NODES_OF_CLUSTER, lock="")
    batch.send()
    return held.read(), nodes.read()


def _read_running(cluster_id: int) -> tuple[Table, Table]:
    """Every running job of the cluster, and every queue."""
    batch = Batch()
    running = batch.add(RUNNING, [cluster_id])
    queues = batch.add(
        queue_rows.QUEUES, [cluster_id], which=queue_rows.QUEUES_OF_CLUSTER, counted="true", lock=""
    )
    batch.send()
    return running.read(), queues.read()
