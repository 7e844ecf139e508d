"""Rows to Snapshot: what a cycle plans from, in a fixed number of queries and as one consistent picture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from django.db import connection, transaction

from quotas.core.pricing import Price
from scheduler.core.columns import Ints
from scheduler.core.policy import Policy
from scheduler.core.snapshot.request_classes import ClassTable
from scheduler.core.snapshot.snapshot import PendingColumns, RunningColumns, Snapshot
from scheduler.state.db.query import Batch, Table
from scheduler.state.db.sql import int_array
from scheduler.state.ledger.ledger_sql import PERIODS, PRICES, PeriodRow
from scheduler.state.load import node_rows, queue_rows
from scheduler.state.load.cluster_rows import CLUSTER, ClusterRow, policy_of, the_cluster
from scheduler.state.load.fair_share import SHARE_SHAPE, ShareShape, with_shares
from scheduler.state.load.job_rows import PENDING, RUNNING, named, pending_columns, running_columns
from scheduler.state.load.load_sql import OF_CLUSTER
from scheduler.state.load.project_rows import (
    AWAY,
    LOST,
    PROJECTS,
    AwayRow,
    ProjectRow,
    away_parameters,
    budget_columns,
    organizations_of,
    pairs_of,
    project_columns,
)
from scheduler.state.load.quota_rows import BOUNDED, Lines, ask_lines
from scheduler.state.load.reason_marks import reported_reasons


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a cycle starts from: the snapshot, the policy, and the reasons that pending jobs show now."""

    cluster_id: int
    #: Where its attempts run (Cluster.backend).
    backend: str
    snapshot: Snapshot
    policy: Policy
    #: The mark of the reason that each pending job shows, in the snapshot's order (`reason_marks`).
    reported_reasons: Ints


def load_snapshot(
    *,
    cluster_id: int,
    project_ids: Sequence[int] = (),
    max_pending: int | None = None,
    named_projects: Sequence[int] = (),
) -> Loaded:
    """Everything that planning this cluster needs, as it was at one moment.

    `project_ids` come along with their quota lines even when they have no job; of more than `max_pending`
    pending jobs only the first by number are loaded. Names and labels of jobs come along where jobs have terms about
    them, and for `named_projects`. Raises LookupError for an unknown cluster.
    """
    with one_picture():
        tables = _load_cluster(cluster_id, max_pending)
        cluster, classes = tables.cluster, ClassTable()
        pending, running = named(
            pending_columns(
                tables.pending, classes, now_ms=cluster.now_ms, ageing=json.loads(cluster.ageing)
            ),
            running_columns(tables.running, classes),
            classes,
            named_projects,
        )
        owners = _load_owners(pending, running, project_ids)
        policy, quotas = policy_of(cluster), owners.lines.columns()
        projects = project_columns(
            owners.projects, owners.lines, quotas, pairs_of(pending, running), owners.away
        )
        projects, shares = with_shares(
            projects, pending, policy, at_ms=cluster.now_ms, shape=owners.share_shape
        )
    snapshot = Snapshot.build(
        now_ms=cluster.now_ms,
        nodes=node_rows.node_columns(tables.nodes, node_rows.bound_by(tables.held)),
        devices=node_rows.device_columns(tables.devices),
        classes=classes.classes,
        pending=pending,
        running=running,
        allocations=node_rows.allocation_columns(tables.held),
        reservations=node_rows.reservation_columns(tables.reservations),
        queues=queue_rows.queue_columns(tables.queues, cluster_paused=cluster.paused_text),
        projects=projects,
        quotas=quotas,
        pools=node_rows.pool_columns(tables.nodes, tables.held),
        shares=shares,
        budgets=budget_columns(owners.periods, owners.prices, now_ms=cluster.now_ms),
    )
    return Loaded(cluster_id, cluster.backend, snapshot, policy, reported_reasons(tables.pending))


@dataclass(frozen=True, slots=True)
class _ClusterTables:
    """The cluster with its jobs, machines and queues."""

    cluster: ClusterRow
    pending: Table
    running: Table
    held: Table
    nodes: Table
    devices: Table
    queues: Table
    reservations: list[node_rows.ReservationRow]


def _load_cluster(cluster_id: int, max_pending: int | None) -> _ClusterTables:
    """Planned anew each time: a plan that was kept from when the tables were small reads them from end to end,
    until the server next looks at how they have grown.
    """
    own = [cluster_id]
    batch = Batch()
    cluster = batch.add(CLUSTER, own)
    pending = batch.add(
        PENDING,
        own if max_pending is None else [cluster_id, max_pending],
        which=OF_CLUSTER,
        limit="" if max_pending is None else "LIMIT %s",
        lock="",
    )
    running = batch.add(RUNNING, own)
    held = batch.add(node_rows.ALLOCATIONS, [cluster_id, cluster_id])
    nodes = batch.add(node_rows.NODES, own, which=node_rows.NODES_OF_CLUSTER, lock="")
    devices = batch.add(node_rows.DEVICES, own, which=node_rows.DEVICES_OF_CLUSTER, lock="")
    queues = batch.add(queue_rows.QUEUES, own, which=queue_rows.QUEUES_OF_CLUSTER, counted="true", lock="")
    reservations = batch.add(node_rows.RESERVATIONS, own)
    gangs = batch.add(node_rows.GANG_RESERVATIONS, own)
    batch.send()
    return _ClusterTables(
        cluster=the_cluster(cluster.read(), cluster_id),
        pending=pending.read(),
        running=running.read(),
        held=held.read(),
        nodes=nodes.read(),
        devices=devices.read(),
        queues=queues.read(),
        reservations=[*gangs.read(), *reservations.read()],
    )


@dataclass(frozen=True, slots=True)
class _Owners:
    """The projects and people of the jobs, with all that limits them."""

    projects: list[ProjectRow]
    away: list[AwayRow]
    lines: Lines
    periods: list[PeriodRow]
    prices: list[Price]
    share_shape: ShareShape


def _load_owners(
    pending: PendingColumns, running: RunningColumns, more_project_ids: Sequence[int]
) -> _Owners:
    project_ids = {
        *np.unique(pending.project_id).tolist(), *np.unique(running.project_id).tolist(), *more_project_ids,
    }  # fmt: skip
    people = {*np.unique(pending.user_id).tolist(), *np.unique(running.user_id).tolist()}
    batch = Batch()
    projects = batch.add(PROJECTS, [int_array(project_ids)], lost=LOST)
    away = batch.add(AWAY, away_parameters(project_ids))
    lines = ask_lines(batch, project_ids, people, bounded=BOUNDED)
    periods = batch.add(PERIODS, [int_array(project_ids)], lock="")
    prices = batch.add(PRICES)
    share_shape = batch.add(SHARE_SHAPE)
    batch.send()
    found = projects.read()
    return _Owners(
        projects=found,
        away=away.read(),
        lines=lines.read(organizations_of(found)),
        periods=periods.read(),
        prices=[row.price() for row in prices.read()],
        share_shape=share_shape.read()[0],
    )


@contextmanager
def one_picture() -> Iterator[None]:
    """Every query inside sees the same moment, and none can write.

    Inside a transaction that has begun already, the picture is that transaction's (tests are run so).
    """
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield
