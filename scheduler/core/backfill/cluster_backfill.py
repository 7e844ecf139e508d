"""Backfill on nodes: what `run_backfill` asks about jobs, nodes and devices, beside the reserved starts."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import numpy as np

from scheduler.core.backfill.availability import (
    Availability,
    FutureUse,
    SpareWorkspace,
    after_ms,
    barring_of,
    open_now,
)
from scheduler.core.backfill.backfill import FOREVER_MS, StartResult
from scheduler.core.backfill.reserved_capacity import ReservedCapacity
from scheduler.core.columns import Bools, Ints
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.running_jobs import RunningJobs
from scheduler.core.placement.binding import BoundTask, bind_tasks, choose_largest, choose_nodes, largest
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.equivalence import JobClass
from scheduler.core.plan import Start

#: No level has failed yet.
_NONE = 1 << 14


class ClusterBackfill:
    """Room for the pending jobs of one cycle.

    Level 0 is the workspace itself: what is free now. A job of level k must fit into what is free now *and*
    at the beginning of each of the first k promises, on the same nodes and devices; a workspace of that
    (`_spare`) is asked by the same filters and scores. A class that fails at a level fails at all above it.
    """

    def __init__(self, context: CycleContext, lengths_ms: Ints, may_pass: Bools) -> None:
        self.starts: list[Start] = []
        self.promised_nodes: dict[int, tuple[int, ...]] = {}
        #: What is kept for each pending row that was promised a start.
        self.promised: dict[int, list[FutureUse]] = {}
        self._context = context
        self._lengths = lengths_ms
        self._may_pass = may_pass
        self._all_pass = bool(may_pass.all())
        self._horizon: Availability | None = None
        self._holds: list[FutureUse] = []
        self._promises = ReservedCapacity()
        self._spare: dict[int, tuple[SpareWorkspace, dict[int, Candidates]]] = {}
        self._synced: dict[int, int] = {}
        self._later_limits = context.workspace.limits
        self._first = -1  # the row of the first promise
        self._short: set[int] = set()  # rows that a limit keeps now, and that were promised a start before
        self._jobs: RunningJobs | None = None
        job_classes = len(context.job_classes)
        self._fails_from = np.full(job_classes, _NONE, dtype=np.int16)
        self._barred = np.zeros(job_classes, dtype=np.bool_)

    # `backfill.Room`.

    def closed(self, rows: Ints, levels: Ints, *, asking: bool) -> Bools:
        numbers = self._context.job_classes.of_row[rows]
        if asking:
            return self._barred[numbers]
        closed = levels >= self._fails_from[numbers]
        return closed if self._all_pass else closed | ~self._may_pass[rows]

    def start(self, row: int, level: int) -> StartResult:
        context, workspace = self._context, self._context.workspace
        pending = context.cluster.snapshot.pending
        number = context.job_classes.of_row.item(row)
        if self._barred.item(number):
            return StartResult.BARRED
        if level >= self._fails_from.item(number) or (self._promises and not self._may_pass.item(row)):
            return StartResult.NO_ROOM
        bound = pending.array_max_running.item(row)
        if bound and workspace.limits.array_running.get(pending.array_id.item(row), 0) >= bound:
            # Others of its class may be in no array, or in one with room.
            return StartResult.NO_ROOM if self._was_promised(row) else StartResult.BARRED
        if workspace.budgets.refuse and workspace.budgets.short(row):
            return StartResult.BARRED  # others of its class may ask for less time
        if self._promises and workspace.budgets.refuse and workspace.budgets.short(row, beside=self._first):
            return StartResult.BARRED  # what is spent is not freed when it ends
        job_class = context.job_classes[number]
        charges = self._context.charges(job_class)
        if not self._within_limits(job_class, charges):
            if self._was_promised(row):
                return StartResult.NO_ROOM
            self._barred[number] = True
            self._fails_from[number] = 0
            return StartResult.BARRED
        if level and bound and not self._leaves_array(row, bound):
            return StartResult.NO_ROOM
        if level and not self._leaves_limits(job_class, charges, job_class.shape.tasks):
            self._fails_from[number] = min(self._fails_from.item(number), level)
            return StartResult.NO_ROOM
        candidates = self._candidates(job_class, level)
        if candidates is None:
            chosen = None
        elif job_class.shape.most > job_class.shape.tasks:
            chosen = choose_largest(candidates, job_class.shape, self._most_allowed(job_class, level))
        else:
            chosen = choose_nodes(candidates, job_class.shape)
        if candidates is None or chosen is None:
            if context.candidates(job_class).may_open:
                return StartResult.NO_ROOM
            if not context.asks_whole(job_class):  # what is closed to it alone
                self._fails_from[number] = min(self._fails_from.item(number), level)
                return StartResult.NO_ROOM
            same = context.job_classes.of_placement_class(job_class.placement_class)
            self._fails_from[same] = np.minimum(
                self._fails_from[same], level if candidates is not None else 0
            )
            return StartResult.NO_ROOM
        parts = candidates.parts(chosen[0][0])
        placements, seats = bind_tasks(candidates, chosen)
        self._take(row, job_class, seats, level, context.charges_placed(job_class, placements))
        self.starts.append(
            Start(
                pending.id.item(row),
                pending.generation.item(row),
                pending.queue_id.item(row),
                pending.project_id.item(row),
                job_class.query.request.per_task,
                placements,
                parts,
            )
        )
        return StartResult.STARTED

    def earliest_ms(self, row: int) -> int | None:
        context = self._context
        job_class = open_now(context, context.job_classes.of(row))
        at_ms = self._planned().earliest_ms(context, job_class, row, self._lengths.item(row))
        if at_ms is not None and row in self._short and not self._within_limits_by(at_ms, row, job_class):
            return None
        if at_ms is None:
            whole = context.asks_whole(job_class)
            self._barred[
                context.job_classes.of_placement_class(job_class.placement_class)
                if whole
                else context.job_classes.of_row[row]
            ] = True
        return at_ms

    def promise(self, row: int, at_ms: int, place: int) -> None:
        """Choose its nodes and devices as of then, and keep them from everybody who would still be there."""
        context, horizon = self._context, self._planned()
        cluster, job_class = context.cluster, open_now(context, context.job_classes.of(row))
        length = self._lengths.item(row)
        query = replace(
            job_class.query,
            reservation_rows=tuple(
                number for begin, until, number in barring_of(cluster, row, length) if begin <= at_ms < until
            ),
        )
        until_ms = after_ms(at_ms, length)
        space = horizon.space(horizon.free_through(at_ms, until_ms))
        space.follow(context.workspace)
        candidates = Candidates(query, space, context.rules_of(query))
        chosen = choose_nodes(candidates, job_class.shape)
        free = horizon.free_at(at_ms)
        placements, seats = bind_tasks(candidates, chosen) if chosen is not None else ((), [])
        if not self._promises:
            self._keep_limits(row, job_class)
        self._promises.insert(place, at_ms, free)
        beside = [
            other
            for other, then in enumerate(self._promises.at_ms)
            if other == place or at_ms <= then < until_ms
        ]
        self.promised[row] = _holds(seats, job_class, at_ms, until_ms)
        for hold in self.promised[row]:
            horizon.promised(hold)
            self._promises.take(hold, beside)
        self.promised_nodes[row] = tuple(dict.fromkeys(placement.node_id for placement in placements))
        self._spare.clear()
        # What failed above this place failed beside fewer promises, so it still does, one level further up.
        higher = (self._fails_from > place) & (self._fails_from < _NONE)
        self._fails_from[higher] = np.minimum(self._fails_from[higher] + 1, len(self._promises))

    def runs_on(self, hold: FutureUse) -> None:
        """Something that the workspace has handed out to a job which goes on, and is there until its end."""
        if self._horizon is None:
            self._holds.append(hold)
        else:
            self._horizon.started(hold)
        if met := bisect_left(self._promises.at_ms, hold.until_ms):
            self._promises.take(hold, slice(met))

    # Parts of those.

    def _within_limits(self, job_class: JobClass, charges: tuple[tuple[int, int], ...]) -> bool:
        limits, request = self._context.workspace.limits, job_class.query.request
        return limits.admits(job_class.queue_row, charges, request, job_class.shape.tasks)

    def _was_promised(self, row: int) -> bool:
        """Whether a job that a limit keeps now was promised a start before, and may be again.

        Those that passed it may use up what it needs of a limit for as long as they run, and are over by then.
        """
        promised = self._context.cluster.snapshot.pending.promised_ms.item(row) > 0
        if promised:
            self._short.add(row)
        return promised

    def _within_limits_by(self, at_ms: int, row: int, job_class: JobClass) -> bool:
        """Whether quotas, queue, array and pools have room for it once all has ended that should have by then."""
        context, workspace = self._context, self._context.workspace
        pending, running = context.cluster.snapshot.pending, context.cluster.snapshot.running
        if self._jobs is None:
            self._jobs = RunningJobs(context)
        ends = running.expected_end_ms
        with workspace.trial():
            for ended in np.flatnonzero((ends > 0) & (ends <= at_ms)).tolist():
                workspace.limits.take(
                    queue_row=self._jobs.queue_row.item(ended),
                    array_id=running.array_id.item(ended),
                    charges=self._jobs.charges(ended),
                    request=context.cluster.snapshot.classes[running.class_index.item(ended)],
                    tasks=self._jobs.tasks.item(ended),
                    sign=-1,
                )
            bound, array = pending.array_max_running.item(row), pending.array_id.item(row)
            charges = self._context.charges(job_class)
            return self._within_limits(job_class, charges) and not (
                bound and workspace.limits.array_running.get(array, 0) >= bound
            )

    def _keep_limits(self, row: int, job_class: JobClass) -> None:
        """The first promise also keeps its share of quotas, queue, pools and budgets; those of others may be freed."""
        workspace, tasks = self._context.workspace, job_class.shape.tasks
        self._first = row
        self._later_limits = workspace.limits.copy()
        self._count_later(job_class, self._context.charges(job_class, tasks), tasks)

    def _count_later(self, job_class: JobClass, charges: tuple[tuple[int, int], ...], tasks: int) -> None:
        self._later_limits.take(
            queue_row=job_class.queue_row,
            array_id=0,
            charges=charges,
            request=job_class.query.request,
            tasks=tasks,
        )

    def _most_allowed(self, job_class: JobClass, level: int) -> int:
        """How many tasks the limits allow a job that is enough with fewer, beside the promises."""
        most = self._context.most_within_limits(job_class)
        if not level:
            return most
        return largest(
            job_class.shape.tasks,
            most,
            lambda tasks: self._leaves_limits(job_class, self._context.charges(job_class, tasks), tasks),
        )

    def _leaves_array(self, row: int, bound: int) -> bool:
        """Whether the first promise still may run beside this one, where both are of an array that runs so many."""
        arrays = self._context.cluster.snapshot.pending.array_id
        array = arrays.item(row)
        same = bool(array) and array == arrays.item(self._first)
        return not same or self._context.workspace.limits.array_running.get(array, 0) + 1 < bound

    def _leaves_limits(self, job_class: JobClass, charges: tuple[tuple[int, int], ...], tasks: int) -> bool:
        return self._later_limits.admits(job_class.queue_row, charges, job_class.query.request, tasks)

    def _take(
        self,
        row: int,
        job_class: JobClass,
        seats: list[BoundTask],
        level: int,
        charges: tuple[tuple[int, int], ...],
    ) -> None:
        """Count a start everywhere but in the workspace it was chosen from."""
        context, workspace = self._context, self._context.workspace
        cluster = context.cluster
        now_ms = cluster.snapshot.now_ms
        holds = _holds(seats, job_class, now_ms, after_ms(now_ms, self._lengths.item(row)))
        if self._horizon is None:
            self._holds.extend(holds)
        else:
            for hold in holds:
                self._horizon.started(hold)
        if level:
            known = self._synced.get(level) == workspace.log_length
            for hold in holds:
                workspace.take(
                    hold.row, hold.per_task, hold.devices, hold.gpu_millis, job_class.query.who, hold.domain
                )
                self._promises.take(hold, slice(level))
            if known:  # the workspace of this level has them already
                self._synced[level] = workspace.log_length
            self._count_later(job_class, charges, len(seats))
        workspace.limits.take(
            queue_row=job_class.queue_row,
            array_id=cluster.snapshot.pending.array_id.item(row),
            charges=charges,
            request=job_class.query.request,
            tasks=len(seats),
        )
        workspace.budgets.take(row)

    def _planned(self) -> Availability:
        """Made when the first job needs it: in a cluster with room nobody does."""
        if self._horizon is None:
            self._horizon = Availability(self._context.cluster, self._context.workspace)
            for hold in self._holds:
                self._horizon.started(hold)
        return self._horizon

    def _candidates(self, job_class: JobClass, level: int) -> Candidates | None:
        """The nodes for the query of a class of jobs in what is free now and beside so many promises.

        None when not even what is free now has room for it.
        """
        context, workspace = self._context, self._context.workspace
        now = context.candidates(job_class)
        if not level:
            return now
        whole = context.asks_whole(job_class)
        asked = level in self._spare and job_class.query_number in self._spare[level][1]
        if whole and not asked and choose_nodes(now, job_class.shape) is None:
            return None
        if level not in self._spare:
            free = self._planned().free_now().least(self._promises.least(level))
            self._spare[level] = SpareWorkspace(context.cluster, free), {}
            self._spare[level][0].follow(workspace)
            self._synced[level] = workspace.log_length
        spare, known = self._spare[level]
        cursor = self._synced[level]
        if cursor < workspace.log_length:
            least = self._promises.least(level)
            for touched in dict.fromkeys(workspace.log[cursor : workspace.log_length].tolist()):
                spare.match(touched, workspace, least)
            spare.follow(workspace)
            self._synced[level] = workspace.log_length
        if not whole:
            return Candidates(context.query(job_class), spare, context.rules_of(job_class.query))
        if job_class.query_number not in known:
            known[job_class.query_number] = Candidates(job_class.query, spare, now.rules, like=now)
        return known[job_class.query_number]


def _holds(seats: list[BoundTask], job_class: JobClass, from_ms: int, until_ms: int) -> list[FutureUse]:
    request = job_class.query.request
    millis = request.device_millis
    return [
        FutureUse(from_ms, until_ms, row, request.per_task, devices, millis, domain)
        for row, devices, domain in seats
    ]


def lengths_ms(limit_seconds: Ints, bound_seconds: Ints) -> Ints:
    """How long each job may run: its own limit, else its queue's, else for ever."""
    limit = np.where(limit_seconds > 0, limit_seconds, bound_seconds)
    return np.where(limit > 0, limit * 1000, FOREVER_MS)
