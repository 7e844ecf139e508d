"""Rows to Snapshot, in a fixed number of queries and as one consistent picture."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np
from django.conf import settings
from django.db import connection, transaction

from infra.db.prepared import ask_together
from quotas.providers.waiting import away_sentence
from scheduler.core.columns import Bools, Ints
from scheduler.core.policy import Policy, options_of
from scheduler.core.preemption_policy import MODES, PreemptionPolicy
from scheduler.core.snapshot.request_classes import ClassTable
from scheduler.core.snapshot.snapshot import (
    BudgetColumns,
    PendingColumns,
    ProjectColumns,
    QueueColumns,
    QuotaColumns,
    RunningColumns,
    Snapshot,
    SpentRule,
)
from scheduler.state.db.sql import Rows, Statement, int_array, run, select_together
from scheduler.state.ledger import ledger
from scheduler.state.ledger.ledger import Books
from scheduler.state.load import fair_share, load_sql
from scheduler.state.load.job_rows import named, pending_columns, running_columns
from scheduler.state.load.node_rows import (
    allocation_columns,
    bound_by,
    device_columns,
    node_columns,
    pool_columns,
    reservation_columns,
)
from scheduler.state.load.quota_rows import Lines

#: Tie-breakers as profiles name them, and the columns they are.
TIE_BREAKERS: Final = {
    "submitted": "submitted_ms",
    "eligible": "eligible_ms",
    "priority": "-priority",
    "smallest": "tasks",
    "shortest": "time_limit_seconds",
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a cycle starts from: the snapshot, the policy, and what the pending jobs were last told."""

    cluster_id: int
    #: Where its attempts run (Cluster.backend).
    backend: str
    snapshot: Snapshot
    policy: Policy
    #: One number for the reason that each pending job shows now, in the snapshot's order (`reason_marks`).
    told: Ints


@dataclass(frozen=True, slots=True)
class Locked:
    """The fresh picture of what a plan touches, and all quota lines that its starts count on."""

    snapshot: Snapshot
    lines: Lines
    books: Books


def load_snapshot(
    *,
    cluster_id: int,
    project_ids: Sequence[int] = (),
    max_pending: int | None = None,
    named_projects: Sequence[int] = (),
) -> Loaded:
    """Everything that planning this cluster needs, as it was at one moment.

    `project_ids` come along with their quota lines even when they have no job; `max_pending` takes only
    the first so many pending jobs, by number. Names and labels of jobs come along where jobs have terms about
    them, and for `named_projects`. Raises LookupError for an unknown cluster.
    """
    with one_picture():
        # Planned anew each time: a plan that was kept from when the tables were small reads them from end to end,
        # until the server next looks at how they have grown.
        clusters, jobs, live, held, nodes, devices, queues, reservations, gatherings = select_together(
            (load_sql.CLUSTER, [cluster_id]),
            pending_statement(cluster_id, max_pending),
            (load_sql.RUNNING, [cluster_id]),
            (load_sql.ALLOCATIONS, [cluster_id, cluster_id]),
            (load_sql.NODES.format(which="node.cluster_id = %s", lock=""), [cluster_id]),
            (load_sql.DEVICES.format(which=load_sql.DEVICES_OF_CLUSTER, lock=""), [cluster_id]),
            (
                load_sql.QUEUES.format(which="queue.cluster_id = %s", lock="", counted="true"),
                [cluster_id],
            ),
            (load_sql.RESERVATIONS, [cluster_id]),
            (load_sql.GATHERINGS, [cluster_id]),
        )
        cluster = _only(clusters, cluster_id)
        table = ClassTable()
        pending, told = pending_columns(jobs, table, now_ms=cluster.now_ms, ageing=json.loads(cluster.ageing))
        running = running_columns(live, table)
        pending, running = named(pending, running, table, named_projects)
        met = {*np.unique(pending.project_id).tolist(), *np.unique(running.project_id).tolist(), *project_ids}
        people = {*np.unique(pending.user_id).tolist(), *np.unique(running.user_id).tolist()}
        projects, away, *rows, shape = select_together(
            (load_sql.PROJECTS, [int_array(met)]),
            away_statement(met),
            *lines_statements(met, people, bounded=load_sql.BOUNDED),
            (load_sql.PERIODS.format(lock=""), [int_array(met)]),
            (load_sql.PRICES, []),
            (load_sql.SHARE_SHAPE, []),
        )
        *rows, periods, prices = rows
        lines = lines_of(rows, projects)
        policy = policy_of(cluster)
        quotas = lines.columns()
        charged, shares = fair_share.with_shares(
            project_columns(projects, lines, quotas, pairs(pending, running), away),
            pending,
            policy,
            at_ms=cluster.now_ms,
            flat=shape[0][0],
            limited=shape[0][1],
        )
    snapshot = Snapshot.build(
        now_ms=cluster.now_ms,
        nodes=node_columns(nodes, bound_by(held)),
        devices=device_columns(devices),
        classes=table.classes,
        pending=pending,
        running=running,
        allocations=allocation_columns(held),
        reservations=reservation_columns([*gatherings, *reservations]),
        queues=queue_columns(queues, cluster),
        projects=charged,
        quotas=quotas,
        pools=pool_columns(nodes, held),
        shares=shares,
        budgets=budget_columns(periods, prices, now_ms=cluster.now_ms),
    )
    return Loaded(cluster_id, cluster.backend, snapshot, policy, told)


def pending_statement(cluster_id: int, most: int | None) -> Statement:
    """The jobs in line of this cluster; with `most` the first so many, by number."""
    limit = "" if most is None else "LIMIT %s"
    sql = load_sql.PENDING.format(which=load_sql.OF_CLUSTER, limit=limit, lock="")
    return sql, [cluster_id] if most is None else [cluster_id, most]


def applied_to(cluster_id: int) -> Statement:
    """What `load_for_apply` has to know first."""
    return load_sql.APPLIED_TO, [cluster_id]


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
    *about, keeps_back, has_budgets = applied_to[0]
    cluster = ClusterRow.of_applied(about)
    lock = "FOR NO KEY UPDATE OF {}".format
    jobs_wanted, projects_wanted, queues_wanted = map(int_array, (job_ids, project_ids, queue_ids))
    people = "ANY(ARRAY(SELECT user_id FROM scheduler_job WHERE number = ANY(%s::bigint[])))"
    lines = lines_statements(project_ids, job_ids, users=people, lock=lock("quota"))
    books = [
        (load_sql.BUDGETS, [projects_wanted, datetime.now(UTC)]),
        (load_sql.PERIODS.format(lock=lock("period")), [projects_wanted]),
    ]
    # Planning a statement that finds nothing takes the database as long as one that does.
    lines, keepers = (lines, []) if keeps_back else (lines[:2], [[], []])
    books, empty = (books, []) if has_budgets else ([], [[], []])
    queues, nodes, devices, projects, away, prices, *rows, jobs, reservations = ask_together(
        (
            load_sql.QUEUES.format(
                which=load_sql.THESE_QUEUES, lock=lock("queue"), counted=load_sql.IF_BOUND
            ),
            [queues_wanted],
        ),
        (load_sql.NODES.format(which=load_sql.THESE_NODES, lock=lock("node")), [int_array(node_ids)]),
        (
            load_sql.DEVICES.format(which=load_sql.THESE_DEVICES, lock=lock("device")),
            [int_array(device_ids)],
        ),
        (load_sql.PROJECTS_APPLIED, [projects_wanted]),
        away_statement(project_ids),
        (load_sql.PRICES, []),
        *lines,
        *books,
        # A job that has moved to another queue or project meanwhile is not the one that was planned.
        (
            load_sql.PENDING.format(which=load_sql.THESE_JOBS, limit="", lock=lock("job")),
            [jobs_wanted, queues_wanted, projects_wanted],
        ),
        (load_sql.RESERVATIONS, [cluster_id]),
    )
    *line_rows, budgets, periods = [*rows[: len(lines)], *keepers, *rows[len(lines) :], *empty]
    table = ClassTable()
    pending, _ = pending_columns(jobs, table, now_ms=cluster.now_ms, ageing=json.loads(cluster.ageing))
    choosy = any(request.job_terms for request in table.classes)
    live: Rows = []
    if pending.array_max_running.any():
        live = run(load_sql.RUNNING_IN_ARRAYS_OF, [jobs_wanted, queues_wanted, projects_wanted])
    running = running_columns(live, table)
    everywhere: Rows = []
    held: Rows = []
    if choosy or any(request.per_task.extras for request in table.classes):
        # Countable things belong to the whole cluster: count them over every node.
        held, everywhere = select_together(
            (load_sql.ALLOCATIONS, [cluster_id, cluster_id]),
            (load_sql.NODES.format(which="node.cluster_id = %s", lock=""), [cluster_id]),
        )
    bound: Rows = []
    if any(request.one_domain for request in table.classes):
        bound = run(load_sql.BOUND, [int_array(node_ids)])
    found = lines_of(line_rows, projects)
    bounded = found.columns()
    if choosy:
        # What other jobs' places mean for a job is decided by all of them in its project, wherever they run.
        # That a start keeps away from nobody new needs no look: nobody starts jobs but who holds the lease.
        others, everyone = select_together(
            (load_sql.RUNNING, [cluster_id]),
            (
                load_sql.QUEUES.format(which="queue.cluster_id = %s", lock="", counted="true"),
                [cluster_id],
            ),
        )
        nodes, queues = _joined(nodes, everywhere), _joined(queues, everyone)
        ours = set(project_ids)
        running = running_columns([row for row in others if row[3] in ours], table)
        pending, running = named(pending, running, table, ())
    snapshot = Snapshot.build(
        now_ms=cluster.now_ms,
        nodes=node_columns(nodes, bound),
        devices=device_columns(devices),
        classes=table.classes,
        pending=pending,
        running=running,
        allocations=allocation_columns(_held_by(held, running)) if choosy else None,
        reservations=reservation_columns(reservations),
        queues=queue_columns(queues, cluster),
        projects=project_columns(projects, found, bounded, pairs(pending, running), away),
        quotas=bounded,
        pools=pool_columns(everywhere, held),
        budgets=budget_columns(periods, prices, now_ms=cluster.now_ms),
    )
    return Locked(snapshot, found, ledger.books(budgets, prices, periods))


def _joined(locked: Rows, others: Rows) -> Rows:
    known = {row[0] for row in locked}
    return [*locked, *(row for row in others if row[0] not in known)]


def _held_by(held: Rows, running: RunningColumns) -> Rows:
    numbers = set(running.id.tolist())
    return [row for row in held if row[1] in numbers]


@contextmanager
def one_picture() -> Iterator[None]:
    """Every query inside sees the same moment, and none can write.

    Inside a transaction that has begun already it is that transaction's picture (tests are run so).
    """
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


def reason_marks(reasons: Sequence[tuple[str, str]]) -> Ints:
    """The number that `Loaded.told` has for a job that shows this code and text."""
    if not reasons:
        return np.zeros(0, dtype=np.int64)
    rows = run(load_sql.MARKS, [[code for code, _ in reasons], [text for _, text in reasons]])
    return np.array([row[0] for row in rows], dtype=np.int64)


def same_kind(marks: Ints, others: Ints) -> Bools:
    """Whether two reasons have one code, whatever their words."""
    return (marks >> 32) == (others >> 32)


# ------------------------------------------------------------------ the cluster and its policy


class ClusterRow(NamedTuple):
    """The row of a cluster with its profile, and the moment of the picture."""

    now_ms: int
    name: str
    backend: str
    paused_text: str | None  # None while it is not paused
    policy: str | None  # None without a profile, and so all that follow
    tie_breakers: str | None
    strict_order: bool | None
    placement: str | None
    weights: str | None
    plugins: str | None
    preemption_enabled: bool | None
    preemption: str | None
    priority_classes: str  # [[value, [values it may stop]], ...]
    backfill: str | None
    options: str | None
    queue_profiles: str = (
        "[]"  # [[queue id, policy, tie-breakers, strict order, ...], ...] of those with their own
    )
    #: [[value, thousandths of a point an hour], ...] of all priority classes, if any of them ages.
    ageing: str = "[]"
    #: Where the priority classes begin, by name.
    class_names: str = "{}"

    @classmethod
    def of_applied(cls, row: Sequence[Any]) -> ClusterRow:
        """Without the profile: how to choose was decided before."""
        return cls(*row, *[None] * 8, priority_classes="[]", backfill=None, options=None)


def policy_of(cluster: ClusterRow) -> Policy:
    """The cluster's profile as a policy; without one, SCHEDULING_POLICY and the built-in defaults (V1).

    Raises ValueError that names the word it does not know.
    """
    classes = json.loads(cluster.class_names)
    queues = tuple(
        (queue_id, Policy(**knobs_of(*words, classes=classes)))
        for queue_id, *words in json.loads(cluster.queue_profiles)
    )
    if cluster.policy is None:
        return Policy(name=settings.SCHEDULING_POLICY, queues=queues)
    texts = (cluster.weights or "{}", cluster.plugins or "[]", cluster.options or "{}")
    weights, plugins, options = map(json.loads, texts)
    knobs = knobs_of(
        cluster.policy, json.loads(cluster.tie_breakers or "[]"), bool(cluster.strict_order),
        cluster.placement or "best_fit", weights, plugins, cluster.backfill or "none", options,
        classes=classes,
    )  # fmt: skip
    return Policy(
        **knobs,
        queues=queues,
        preemption=preemption_of(
            bool(cluster.preemption_enabled),
            json.loads(cluster.preemption or "{}"),
            json.loads(cluster.priority_classes),
        ),
    )


def knobs_of(
    policy: str, tie_breakers: Sequence[str], strict_order: bool, placement: str, weights: Mapping[str, int],
    plugins: Sequence[str], backfill: str, options: Mapping[str, Any],
    *, classes: Mapping[str, int],
) -> dict[str, Any]:  # fmt: skip
    """What a profile says, as `Policy` takes it."""
    return {
        "name": policy,
        "tie_breakers": tuple(TIE_BREAKERS.get(name, name) for name in tie_breakers),
        "strict_order": strict_order,
        "placement": placement,
        "weights": tuple(sorted(weights.items())),
        "plugins": tuple(plugins),
        "backfill": backfill,
        **options_of(options, classes),
    }


#: What a profile may say about preemption.
OF_PREEMPTION: Final = tuple(
    sorted({f.name for f in fields(PreemptionPolicy)} - {"enabled", "classes", "cannot_suspend"})
)


def preemption_of(enabled: bool, words: Mapping[str, Any], classes: Iterable[Any] = ()) -> PreemptionPolicy:
    """A profile's rules of preemption; raises ValueError that names the word it does not know."""
    for name, value in words.items():
        if name not in OF_PREEMPTION:
            raise ValueError(f"{name!r} is not a setting of preemption; there are {', '.join(OF_PREEMPTION)}")
        if name == "mode":
            if value not in MODES:
                raise ValueError(f"{value!r} is not a mode of preemption; there are {', '.join(MODES)}")
        elif type(value) is not int:
            raise ValueError(f"{name} must be a whole number")
    if not enabled and not words.get("reclaim"):
        return PreemptionPolicy(grace_seconds=words.get("grace_seconds", PreemptionPolicy().grace_seconds))
    matrix = tuple((int(begin), tuple(int(victim) for victim in victims)) for begin, victims in classes)
    return PreemptionPolicy(enabled=enabled, classes=matrix, **words)


def _only(clusters: Rows, cluster_id: int) -> ClusterRow:
    if not clusters:
        raise LookupError(f"there is no cluster with id {cluster_id}")
    return ClusterRow(*clusters[0])


# ------------------------------------------------------------------ queues and quotas


_RULES: Final = {"refuse": SpentRule.REFUSE, "demote": SpentRule.DEMOTE}


def budget_columns(periods: Rows, prices: Rows, *, now_ms: int) -> BudgetColumns:
    """The periods whose budgets refuse or demote; what only warns is not the planner's."""
    now_s = now_ms // 1000
    valid = tuple(
        (resource, model, micros)
        for resource, micros, from_s, until_s, model in prices
        if from_s <= now_s and (until_s is None or now_s < until_s)
    )
    return BudgetColumns.from_rows(
        (
            (
                id_, owner, resource, amount, used, starts_ms, ends_ms, int(_RULES[rule]), tuple(project_ids),
                settings.LEDGER_OPEN_HOLD_SECONDS, valid if resource == "money_micros" else (),
            )
            for id_, _, _, owner, resource, amount, used, starts_ms, ends_ms, rule, project_ids in periods
            if rule in _RULES
        )
    )  # fmt: skip


def queue_columns(rows: Rows, cluster: ClusterRow) -> QueueColumns:
    """A paused cluster is one in which every queue is paused, and says so."""
    return QueueColumns.from_rows(
        (
            (id_, name, priority, paused or cluster.paused_text is not None,
             text if cluster.paused_text is None else cluster.paused_text,
             most, running, tuple(partition_ids), *rest)
            for id_, name, priority, paused, text, most, running, partition_ids, *rest in rows
        )
    )  # fmt: skip


def lines_statements(
    project_ids: Iterable[int],
    people: Iterable[int],
    *,
    users: str = load_sql.ANY_OF,
    bounded: str = "",
    lock: str = "",
) -> list[Statement]:
    """What `lines_of` reads: the lines that jobs of these people in these projects count on, and the
    lines of others that keep something back. `users` finds people's ids from what `people` are.
    """
    projects, persons = int_array(project_ids), int_array(people)
    words = {"projects": load_sql.ANY_OF, "users": users, "bounded": bounded, "lock": lock}
    return [
        (load_sql.LINES.format(**words), [projects, projects, persons, persons]),
        (load_sql.ORGANIZATIONS.format(**words), [projects]),
        (load_sql.KEEPERS, []),
        (load_sql.KEEPERS_ORGANIZATIONS, []),
    ]


def lines_of(rows: Sequence[Rows], projects: Rows = ()) -> Lines:  # type: ignore[assignment]
    """The lines from the rows of `lines_statements` and of `queries.PROJECTS`."""
    own, organizations, keepers, above = rows
    met = {row[0] for row in own}  # these may be locked, so they are as they are now
    return Lines(
        [*own, *(row for row in keepers if row[0] not in met)],
        [*organizations, *above],
        [(row[0], row[-1]) for row in projects],
    )


def pairs(*jobs: PendingColumns | RunningColumns) -> list[tuple[int, int]]:
    """Who has jobs in which project: (project, user)."""
    both = np.stack(
        [
            np.concatenate([columns.project_id for columns in jobs]),
            np.concatenate([columns.user_id for columns in jobs]),
        ]
    )
    return [(project, user) for project, user in np.unique(both, axis=1).T.tolist()]


def away_statement(project_ids: Iterable[int]) -> tuple[str, list[Any]]:
    waits = settings.QUOTA_PROVIDER_WHEN_AWAY == "wait"
    return load_sql.AWAY, [waits, int_array(project_ids), settings.QUOTA_PROVIDER_GRACE_SECONDS]


def project_columns(
    rows: Rows, lines: Lines, quotas: QuotaColumns, pairs: Iterable[tuple[int, int]], away: Rows
) -> ProjectColumns:
    there = set(quotas.id.tolist())
    texts = {project: away_sentence(*words) for project, *words in away}
    personal: dict[int, list[int]] = {}
    for project, user in pairs if lines.has_people else ():
        personal.setdefault(project, []).extend(row.id for row in lines.of_person(user))

    def of(project: int) -> tuple[int, ...]:
        own = [row.id for row in lines.of_project(project)] + personal.get(project, [])
        return tuple(number for number in own if number in there)

    return ProjectColumns.from_rows(
        ((id_, name, of(id_), *rest, texts.get(id_, "")) for id_, name, *rest, _ in rows),
        ("id", "name", "quota_line_ids", "share_weight", "lost_gpu_seconds", "away_text"),
    )
