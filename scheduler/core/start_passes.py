"""Starting pending jobs: one job whole, many in order, or many with backfill."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from scheduler.core.backfill.backfill import FOREVER_MS, ReservedStart, limits_of, run_backfill
from scheduler.core.backfill.cluster_backfill import ClusterBackfill, lengths_ms
from scheduler.core.backfill.future_use import FutureUse
from scheduler.core.backfill.gang_reservation import GangReservations
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints, rows_of
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.placement.binding import bind_tasks, choose_largest, choose_nodes
from scheduler.core.placement.equivalence import JobClass
from scheduler.core.plan import ExpectedStart, Start
from scheduler.core.policy import Policy

#: Jobs of a settled class are dropped from the order this many at a time.
_CHUNK = 2048

#: (rows, facts for the sentence) of jobs that wait for their turn.
TurnReasons = Iterator[tuple[Ints, dict[str, int | str]]]


class OrderedPass:
    """Starts jobs in order, each as soon as it fits; there are no expected starts."""

    expected: tuple[ExpectedStart, ...] = ()
    reserved: Mapping[int, Sequence[FutureUse]] = {}
    backfilled: Collection[int] = ()

    def __init__(self, context: CycleContext, strict: Bools) -> None:
        self.starts: list[Start] = []
        self._context, self._strict = context, strict

    def run(self, rows: Ints, *, gangs: GangReservations | None = None) -> Ints:
        """Start what fits; answers the rows that started (the others may be tried again)."""
        starts = start_in_order(self._context, rows, strict=self._strict, gangs=gangs)
        self.starts += starts
        ids = np.array(sorted(start.job_id for start in starts), dtype=np.int64)
        return rows_of(self._context.cluster.snapshot.pending.id, ids, what="pending job")

    def occupy(self, uses: Sequence[FutureUse]) -> None:
        """Nothing to do: resumed jobs have taken their CPUs from the workspace, and no time ahead is planned."""

    def turn_reasons(self, rows: Ints) -> TurnReasons | None:
        """None: a job waits for its turn only in a strict queue, which the caller knows."""
        return None


class BackfillPass:
    """Starts jobs in order, gives the first that do not fit an expected start, and fills the gaps with later jobs."""

    def __init__(self, context: CycleContext, policy: Policy) -> None:
        self._context, self._policy = context, policy
        cluster, snapshot = context.cluster, context.cluster.snapshot
        bounds = snapshot.queues.max_wall_seconds[cluster.pending.queue]
        lengths = lengths_ms(snapshot.pending.time_limit_seconds, bounds)
        self._ends_ms = np.where(lengths == FOREVER_MS, FOREVER_MS, snapshot.now_ms + lengths)
        self._may_pass = may_pass(cluster, policy)
        self._capacity = ClusterBackfill(context, lengths, self._ends_ms, self._may_pass)
        self._limits = limits_of(policy)
        self._reserved: list[ReservedStart] = []
        self._last_run: Ints = np.zeros(0, dtype=np.int64)
        #: The jobs that started ahead of a job with an expected start.
        self.backfilled: set[int] = set()

    @property
    def starts(self) -> list[Start]:
        return self._capacity.starts

    @property
    def reserved(self) -> Mapping[int, Sequence[FutureUse]]:
        """By row, the capacity that is kept for each job with an expected start."""
        return self._capacity.reserved

    def run(self, rows: Ints, *, gangs: GangReservations | None = None) -> Ints:
        """Start what fits beside all expected starts; answers all rows: none has to be tried again."""
        pending = self._context.cluster.snapshot.pending
        self._capacity.turns.follow(rows)
        earlier, before = self._reserved, len(self.starts)
        self._reserved = run_backfill(
            rows,
            self._ends_ms[rows],
            self._capacity,
            self._limits,
            promised_ms=pending.promised_ms[rows],
            wanted=pending.deadline_ms[rows] > 0 if self._policy.backfill == "deadline" else None,
            given=earlier,
        )
        if self._reserved and len(self.starts) > before:
            heads = (
                rows[:0] if earlier else np.flatnonzero(np.isin(rows, [one.row for one in self._reserved]))
            )
            passed = pending.id[rows[heads[0] + 1 :] if len(heads) else rows]
            self.backfilled |= {start.job_id for start in self.starts[before:]} & set(passed.tolist())
        self._last_run = rows
        return rows

    def occupy(self, uses: Sequence[FutureUse]) -> None:
        """Count what resumed jobs use from now on."""
        for use in uses:
            self._capacity.occupy(use)

    @property
    def expected(self) -> tuple[ExpectedStart, ...]:
        """The expected starts that have a moment; under aggressive backfill, the first moment that was given."""
        pending = self._context.cluster.snapshot.pending
        slips = self._policy.backfill == "aggressive"
        return tuple(
            ExpectedStart(
                pending.id.item(one.row),
                min(one.at_ms, (pending.promised_ms.item(one.row) if slips else 0) or one.at_ms),
                self._capacity.reserved_nodes[one.row],
            )
            for one in self._reserved
            if one.at_ms != FOREVER_MS
        )

    def turn_reasons(self, rows: Ints) -> TurnReasons | None:
        """Why these jobs, which would fit, wait for jobs ahead; None when no job ahead has a reserved start."""
        return self._all_turns(rows) if self._reserved or self._capacity.turns else None

    def _all_turns(self, rows: Ints) -> TurnReasons:
        """Those behind a job that waits for the same limit, then those behind a job with a reserved start."""
        pending, now_ms = self._context.cluster.snapshot.pending, self._context.cluster.snapshot.now_ms
        left = np.ones(len(rows), dtype=np.bool_)
        for kept, limit, ahead, at_ms in self._capacity.turns.reasons(rows) if self._capacity.turns else ():
            facts: dict[str, int | str] = {
                "job": pending.id.item(ahead),
                "barred": limit,
                "start_ms": max(at_ms, now_ms),
            }
            yield rows[kept & left], facts
            left &= ~kept
        if self._reserved:
            yield from self._turn_reasons(rows[left])

    def _turn_reasons(self, rows: Ints) -> TurnReasons:
        context = self._context
        pending, budgets = context.cluster.snapshot.pending, context.workspace.budgets
        head = self._reserved[0].row
        first = min(self.expected, key=lambda one: (one.at_ms, one.job_id), default=None)
        job = first.job_id if first else pending.id.item(head)
        own = ~self._may_pass[rows]
        poor = np.zeros(len(rows), dtype=np.bool_)
        if budgets.refuse:
            poor[:] = [budgets.short(row, beside=head) for row in rows.tolist()]
        untried = np.isin(rows, self._untried()) & ~poor & ~own
        yield rows[own], {"job": job, "barred": "priority"}
        yield rows[poor & ~own], {"job": pending.id.item(head), "barred": "budget"}
        yield rows[untried], {"job": job, "barred": "scan"}
        facts: dict[str, int | str] = {"job": job}
        if first:
            # The first moment that was given may have passed.
            facts["start_ms"] = max(first.at_ms, context.cluster.snapshot.now_ms)
        yield rows[~own & ~poor & ~untried], facts

    def _untried(self) -> Ints:
        """The rows behind the last that `backfill_scan` allows to try."""
        rows, limits = self._last_run, self._limits
        if not limits.scan or len(self._reserved) != limits.promises:
            return rows[:0]
        last = int(np.flatnonzero(rows == self._reserved[-1].row).max(initial=-1))
        return rows[last + 1 + limits.scan :]


def may_pass(cluster: ClusterIndex, policy: Policy) -> Bools:
    """The pending jobs that backfill may start ahead of others, by the policy of their queue."""
    own = [policy.of_queue(queue_id) for queue_id in cluster.snapshot.queues.id.tolist()]
    most = np.array([-1 if one.strict_order else one.backfill_max_priority for one in own], dtype=np.int64)
    may: Bools = cluster.snapshot.pending.priority <= most[cluster.pending.queue]
    return may


def start_in_order(
    context: CycleContext,
    considered: Ints,
    *,
    strict: Bools | None = None,
    gangs: GangReservations | None = None,
) -> list[Start]:
    """Give nodes, devices and quota to jobs in order; a job that does not fit waits, in a strict queue with all behind.

    A gang that waits may begin to gather nodes before jobs behind it get these.
    """
    job_classes = context.job_classes
    settled = bytearray(len(job_classes))
    is_settled = np.frombuffer(settled, dtype=np.uint8)  # the same bytes, for many classes at once
    starts: list[Start] = []
    for begin in range(0, len(considered), _CHUNK):
        rows = considered[begin : begin + _CHUNK]
        rows = rows[is_settled[job_classes.of_row[rows]] == 0]
        for row, number in zip(rows.tolist(), job_classes.of_row[rows].tolist(), strict=True):
            if settled[number]:
                continue
            if _is_limited_itself(context, row):
                continue  # others of its class may not be
            job_class = job_classes[number]
            start = try_start(context, row, job_class)
            if start is not None:
                starts.append(start)
                continue
            if context.candidates(job_class).may_open:
                continue  # a job behind it may give it a place: it is tried again, and stops no other job
            settled[number] = 1
            if gangs is not None and gangs.is_active:
                gangs.offer(row, starts)
            if context.asks_whole(job_class) and job_class.shape in context.candidates(job_class).failed:
                # There are no nodes for this request, whichever class asks.
                is_settled[job_classes.of_placement_class(job_class.placement_class)] = 1
            in_line = strict is not None and strict.item(job_class.queue_row)
            if in_line and context.never(job_class) is None and not context.never_by_quota(job_class):
                is_settled[job_classes.queue_row == job_class.queue_row] = 1
    return starts


def _is_limited_itself(context: CycleContext, row: int) -> bool:
    """Whether the array of a job runs as many jobs as it may, or too little is left of a budget for its time limit."""
    pending, workspace = context.cluster.snapshot.pending, context.workspace
    bound = pending.array_max_running.item(row)
    if bound and workspace.limits.array_is_full(pending.array_id.item(row), bound):
        return True
    return workspace.budgets.refuse and workspace.budgets.short(row)


def try_start(context: CycleContext, row: int, job_class: JobClass) -> Start | None:
    """Start the pending job in this row with everything it asks for, or change nothing."""
    workspace, pending = context.workspace, context.cluster.snapshot.pending
    request, shape, queue_row = job_class.query.request, job_class.shape, job_class.queue_row
    tasks = shape.tasks
    counted = context.cluster.charges
    charges = counted.certain(job_class.payer, job_class.class_index, tasks)
    if not workspace.limits.admits(queue_row, charges, request, tasks):
        return None
    if workspace.budgets.refuse and workspace.budgets.short(row):
        return None
    candidates = context.candidates(job_class)
    if shape.most > tasks:
        chosen = choose_largest(candidates, shape, context.most_within_limits(job_class))
    else:
        chosen = choose_nodes(candidates, shape)
    if chosen is None:
        return None
    parts = candidates.parts(chosen[0][0])
    placements, bound = bind_tasks(candidates, chosen)
    context.count_start(job_class, [(node, context.end_ms(row)) for node, *_ in bound])
    if counted.has_model_lines or len(placements) != tasks:
        tasks = len(placements)
        charges = context.charges_placed(job_class, placements)
    workspace.limits.take(
        queue_row=queue_row,
        array_id=pending.array_id.item(row),
        charges=charges,
        request=request,
        tasks=tasks,
    )
    if workspace.budgets.refuse:
        workspace.budgets.take(row)
    return Start(
        pending.id.item(row),
        pending.generation.item(row),
        pending.queue_id.item(row),
        pending.project_id.item(row),
        request.per_task,
        placements,
        parts,
    )
