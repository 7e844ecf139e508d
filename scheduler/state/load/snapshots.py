"""Rows to Snapshot: what a cycle plans from, in a fixed number of queries and as one consistent picture."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction

from quotas.core.pricing import Price
from quotas.models import named_providers
from scheduler.core.columns import Ints, distinct
from scheduler.core.ordering.choice import choose
from scheduler.core.policy import Policy
from scheduler.core.snapshot.request_classes import ClassTable
from scheduler.core.snapshot.snapshot import ChoiceColumns, RefusedStartColumns, RunningColumns, Snapshot
from scheduler.models import PolicyFault
from scheduler.state.db.fragments import ANY_OF, UNFINISHED_OF_CLUSTER, UNFINISHED_OF_OPEN_QUEUES
from scheduler.state.db.query import Answer, Batch, Table, Together
from scheduler.state.db.sql import int_array, select_together
from scheduler.state.ledger.ledger_sql import PERIODS, PRICES, PeriodRow
from scheduler.state.load import node_rows, queue_rows
from scheduler.state.load.cluster_rows import CLUSTER, ClusterRow, the_cluster, usable_policy_of
from scheduler.state.load.fair_share import SHARE_SHAPE, ShareShape, turn_columns, with_shares
from scheduler.state.load.job_rows import (
    AWAITED,
    CLOSED,
    PENDING,
    RUNNING,
    AwaitedRow,
    ClosedRow,
    Moment,
    OwnColumns,
    moment_of,
    named,
    own_columns,
    pending_columns,
    running_columns,
)
from scheduler.state.load.project_rows import (
    AWAY,
    LOST,
    PROJECTS,
    REFUSED,
    AwayRow,
    ProjectRow,
    RefusedRow,
    away_parameters,
    budget_columns,
    organizations_of,
    pairs_of,
    project_columns,
)
from scheduler.state.load.quota_rows import BOUNDED, Lines, ask_lines


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a cycle starts from: snapshot, policy as its rules have it now, and reasons that pending jobs show now."""

    cluster_id: int
    #: Where its attempts run (Cluster.backend).
    backend: str
    snapshot: Snapshot
    policy: Policy
    #: The mark of the reason that each pending job of the snapshot shows, in its order (`reason_marks`).
    reported_reasons: Ints
    #: Why the profiles cannot be followed, so that the policy is the default one; "" = they can.
    profile_problem: str = ""
    #: The last cycle could not follow them.
    profile_was_out: bool = False
    #: By label, why a rule is left out, where no alarm says so yet; and alarms of rules that are gone.
    rule_problems: Mapping[str, str] = field(default_factory=dict)
    rules_gone: Collection[str] = ()
    #: The profiles that the policy is made of, with their versions, as `Cycle.profiles` keeps them.
    profiles: Sequence[Mapping[str, Any]] = ()


def load_snapshot(
    *,
    cluster_id: int,
    project_ids: Sequence[int] = (),
    max_pending: int | None = None,
    named_projects: Sequence[int] = (),
    paused_queues: bool = True,
) -> Loaded:
    """Everything that planning this cluster needs, as it was at one moment.

    `project_ids` come along with their quota lines even when they have no job; of more than `max_pending`
    pending jobs only the first by number are loaded, and without `paused_queues` none of queues that are paused.
    Names and labels of jobs come along where jobs have terms about them, and for `named_projects`. Raises LookupError
    for an unknown cluster.
    """
    classes = ClassTable()
    with one_picture():
        batch = Batch()
        answer = ask_cluster(batch, cluster_id)
        pending = ask_pending(batch, cluster_id, max_pending, paused_queues=paused_queues)
        batch.send()
        own = own_columns(pending.read(), classes)
        return loaded(answer.read(), own, classes, project_ids=project_ids, named_projects=named_projects)


def loaded(
    tables: ClusterTables,
    own: OwnColumns,
    classes: ClassTable,
    *,
    project_ids: Sequence[int] = (),
    named_projects: Sequence[int] = (),
    together: Together = select_together,
) -> Loaded:
    """The snapshot of these pending jobs, inside the picture that the tables are from.

    `own` are rows as `own_columns` makes them, wherever they are kept; `together` runs statements. Further arguments as
    of `load_snapshot`.
    """
    cluster = tables.cluster
    running = running_columns(tables.running, classes)
    owners = _load_owners(own, running, project_ids, together)
    pending, running = named(
        pending_columns(own, tables.moment(owners.closed)), running, classes, named_projects
    )
    found, quotas = usable_policy_of(cluster), owners.lines.columns()
    policy = found.policy
    choices = json.loads(cluster.choices)
    projects = project_columns(owners.projects, owners.lines, quotas, pairs_of(pending, running), owners.away)
    projects, shares = with_shares(projects, pending, policy, at_ms=cluster.now_ms, shape=owners.share_shape)
    snapshot = Snapshot.build(
        now_ms=cluster.now_ms,
        nodes=node_rows.node_columns(tables.nodes, node_rows.bound_by(tables.held)),
        devices=node_rows.device_columns(tables.devices),
        classes=classes.classes,
        pending=pending,
        running=running,
        allocations=node_rows.allocation_columns(tables.held),
        reservations=node_rows.reservation_columns(tables.reservations),
        queues=queue_rows.queue_columns(
            tables.queues, cluster_paused=cluster.paused_text, running=tables.running["queue_id"]
        ),
        projects=projects,
        quotas=quotas,
        pools=node_rows.pool_columns(tables.nodes, tables.held),
        shares=shares,
        budgets=budget_columns(owners.periods, owners.prices, now_ms=cluster.now_ms),
        turns=turn_columns(tables.cluster_id, policy),
        choices=ChoiceColumns.from_rows(choices),
        refused_starts=RefusedStartColumns.from_rows(owners.refused_starts),
    )
    return Loaded(
        tables.cluster_id, cluster.backend, snapshot, choose(snapshot, policy), own["reason_mark"], found.problem,
        PolicyFault.PROFILE in json.loads(cluster.faults), found.rule_problems, found.rules_gone,
        json.loads(cluster.profiles),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClusterTables:
    """The cluster with its machines, its queues and what runs: all but the jobs that wait."""

    cluster_id: int
    cluster: ClusterRow
    running: Table
    held: Table
    nodes: Table
    devices: Table
    queues: Table
    reservations: list[node_rows.ReservationRow]
    awaited: list[AwaitedRow]

    def moment(self, closed: Sequence[ClosedRow] = ()) -> Moment:
        """What decides about pending jobs beside their own rows; `closed` are accounts that are closed."""
        return moment_of(
            self.cluster.now_ms, ageing=json.loads(self.cluster.ageing), awaited=self.awaited, closed=closed
        )

    def paused_queues(self) -> list[int]:
        """The queues from which nothing starts: in a paused cluster all."""
        paused = self.queues["own_paused"]
        return [
            queue_id
            for queue_id, is_paused in zip(self.queues["id"], paused, strict=True)
            if is_paused or self.cluster.paused_text is not None
        ]


class ClusterAnswer:
    """What `ask_cluster` found, once its batch was sent."""

    def __init__(self, batch: Batch, cluster_id: int) -> None:
        """Plans of these may be kept for seconds (`prepared.keep_plans`) and no longer: one from when the tables were
        small reads them from end to end, until the server next looks at how they have grown.
        """
        own = [cluster_id]
        self._cluster_id = cluster_id
        self._cluster = batch.add(CLUSTER, own)
        self._running = batch.add(RUNNING, own)
        self._held = batch.add(node_rows.ALLOCATIONS, [cluster_id, cluster_id])
        self._nodes = batch.add(node_rows.NODES, own, which=node_rows.NODES_OF_CLUSTER, lock="")
        self._devices = batch.add(node_rows.DEVICES, own, which=node_rows.DEVICES_OF_CLUSTER, lock="")
        self._queues = batch.add(
            queue_rows.QUEUES, own, which=queue_rows.QUEUES_OF_CLUSTER, counted="false", lock=""
        )
        self._reservations = batch.add(node_rows.RESERVATIONS, own)
        self._gangs = batch.add(node_rows.GANG_RESERVATIONS, own)
        self._awaited = batch.add(AWAITED)

    def read(self) -> ClusterTables:
        """Raises LookupError for an unknown cluster."""
        return ClusterTables(
            cluster_id=self._cluster_id,
            cluster=the_cluster(self._cluster.read(), self._cluster_id),
            running=self._running.read(),
            held=self._held.read(),
            nodes=self._nodes.read(),
            devices=self._devices.read(),
            queues=self._queues.read(),
            reservations=[*self._gangs.read(), *self._reservations.read()],
            awaited=self._awaited.read(),
        )


def ask_cluster(batch: Batch, cluster_id: int) -> ClusterAnswer:
    """Add to a batch all that a snapshot has of a cluster but its pending jobs."""
    return ClusterAnswer(batch, cluster_id)


def ask_pending(
    batch: Batch, cluster_id: int, most: int | None = None, *, paused_queues: bool = True
) -> Answer[Table]:
    """Add to a batch the pending jobs of a cluster, of more than `most` the first by number."""
    return batch.add(
        PENDING,
        [cluster_id] if most is None else [cluster_id, most],
        which=UNFINISHED_OF_CLUSTER if paused_queues else UNFINISHED_OF_OPEN_QUEUES,
        limit="" if most is None else "LIMIT %s",
        lock="",
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
    closed: list[ClosedRow]
    refused_starts: list[RefusedRow]


def _load_owners(
    own: OwnColumns, running: RunningColumns, more_project_ids: Sequence[int], together: Together
) -> _Owners:
    project_ids = {
        *distinct(own["project_id"]).tolist(), *distinct(running.project_id).tolist(), *more_project_ids,
    }  # fmt: skip
    people = {*distinct(own["user_id"]).tolist(), *distinct(running.user_id).tolist()}
    batch = Batch()
    projects = batch.add(PROJECTS, [int_array(project_ids)], lost=LOST)
    away = batch.add(AWAY, away_parameters(project_ids))
    lines = ask_lines(batch, project_ids, people, bounded=BOUNDED)
    periods = batch.add(PERIODS, [int_array(project_ids)], lock="")
    prices = batch.add(PRICES)
    share_shape = batch.add(SHARE_SHAPE)
    closed = batch.add(CLOSED, [int_array(project_ids), int_array(people)], users=ANY_OF)
    refused = batch.add(REFUSED, when=bool(named_providers()))
    batch.send(together)
    found = projects.read()
    return _Owners(
        projects=found,
        away=away.read(),
        lines=lines.read(organizations_of(found)),
        periods=periods.read(),
        prices=[row.price() for row in prices.read()],
        share_shape=share_shape.read()[0],
        closed=closed.read(),
        refused_starts=refused.read(),
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
