"""Backfill on nodes: what `run_backfill` asks about jobs, nodes and devices, beside the reserved starts."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from scheduler.core.backfill.availability import Availability
from scheduler.core.backfill.backfill import FOREVER_MS, StartResult
from scheduler.core.backfill.earliest_start import EarliestStart, candidates_at, open_now
from scheduler.core.backfill.future_use import FutureUse, after_ms
from scheduler.core.backfill.limit_turns import LimitTurns
from scheduler.core.backfill.reserved_capacity import ReservedCapacity
from scheduler.core.backfill.reserved_limits import ReservedLimits
from scheduler.core.backfill.spare_levels import SpareLevels
from scheduler.core.cluster.job_charges import LineCharges
from scheduler.core.columns import Bools, Ints
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.running_jobs import ChosenNodes, RunningJobs
from scheduler.core.placement.binding import BoundTask, bind_tasks, choose_largest, choose_nodes
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.equivalence import JobClass
from scheduler.core.plan import Start

#: After as many jobs that a limit refused, all classes are held against queues and quota lines at once.
REFUSALS = 32
#: No level has failed yet.
_NONE = 1 << 14


class ClusterBackfill:
    """The `CapacityModel` of one cycle.

    Level 0 is the workspace itself: what is free now. A job of level k must leave the first k reserved starts what
    these need; `SpareLevels` finds its nodes. A class that fails at a level fails at all levels above.
    """

    def __init__(self, context: CycleContext, lengths_ms: Ints, ends_ms: Ints, may_pass: Bools) -> None:
        self.starts: list[Start] = []
        #: Of each pending row with a reserved start, the ids of its nodes and what is kept for its tasks.
        self.reserved_nodes: dict[int, tuple[int, ...]] = {}
        self.reserved: dict[int, list[FutureUse]] = {}
        self._context = context
        self._lengths = lengths_ms
        self._may_pass = may_pass
        self._all_pass = bool(may_pass.all())
        self._availability: Availability | None = None
        self._uses: list[FutureUse] = []  # what starts before the availability is first asked for
        self._capacity = ReservedCapacity()
        self._levels = SpareLevels(context, self._capacity, self._planned)
        #: Jobs that a limit keeps waiting, and their turns there.
        self.turns = LimitTurns(context, ends_ms)
        self._limits: ReservedLimits | None = None  # None while no start is reserved
        self._short: set[int] = set()  # rows that a limit keeps now, and that had a reserved start before
        self._jobs: RunningJobs | None = None
        job_classes = len(context.job_classes)
        self._fails_from = np.full(job_classes, _NONE, dtype=np.int16)
        self._barred = np.zeros(job_classes, dtype=np.bool_)
        #: By limits, since all classes were last held against these; and how many until they are again.
        self._refusals, self._refusals_until_all = 0, REFUSALS

    # `CapacityModel`.

    def closed(self, rows: Ints, levels: Ints, *, asking: bool) -> Bools:
        numbers = self._context.job_classes.of_row[rows]
        kept = self.turns.closed(rows, numbers) if self.turns else None
        if asking:
            return self._barred[numbers] if kept is None else self._barred[numbers] | kept
        closed: Bools = levels >= self._fails_from[numbers]
        if kept is not None:
            closed |= kept
        return closed if self._all_pass else closed | ~self._may_pass[rows]

    def start(self, row: int, level: int) -> StartResult:
        job_classes = self._context.job_classes
        number = job_classes.of_row.item(row)
        if self._barred.item(number):
            return StartResult.BARRED
        passes = self._limits is not None
        if level >= self._fails_from.item(number) or (passes and not self._may_pass.item(row)):
            return StartResult.NO_ROOM
        job_class = job_classes[number]
        refused = self._refused_now(row, job_class, number)
        if refused is None and self.turns and self.turns.keeps(row, job_class, number):
            refused = StartResult.BARRED
        if refused is None and level:
            refused = self._refused_beside_first(row, job_class, number, level)
        if refused is not None:
            return refused
        candidates = self._candidates(job_class, level)
        chosen = None if candidates is None else self._choose(candidates, row, job_class, level)
        if candidates is None or chosen is None:
            self._note_no_nodes(job_class, number, level if candidates is not None else 0)
            return StartResult.NO_ROOM
        self._start(row, job_class, candidates, chosen, level)
        return StartResult.STARTED

    def earliest_ms(self, row: int) -> int | None:
        context = self._context
        job_class = open_now(context, context.job_classes.of(row))
        length = self._lengths.item(row)
        at_ms = EarliestStart(context, self._planned(), job_class, row, length).find()
        if at_ms is not None and row in self._short and not self._admits_by(at_ms, row, job_class):
            return None
        if at_ms is None:
            whole = context.asks_whole(job_class)
            self._barred[
                context.job_classes.of_placement_class(job_class.placement_class)
                if whole
                else context.job_classes.of_row[row]
            ] = True
        return at_ms

    def reserve(self, row: int, at_ms: int, place: int) -> None:
        """Choose its nodes and devices as of then, and keep them from every job that would still be there."""
        context, availability = self._context, self._planned()
        job_class, length = open_now(context, context.job_classes.of(row)), self._lengths.item(row)
        candidates = candidates_at(context, availability, job_class, row, at_ms, length)
        candidates.workspace.follow(context.workspace)
        chosen = choose_nodes(candidates, job_class.shape)
        free, until_ms = availability.free_at(at_ms), after_ms(at_ms, length)
        placements, tasks = bind_tasks(candidates, chosen) if chosen is not None else ((), [])
        if self._limits is None:
            self._limits = ReservedLimits(context, row, job_class)
        self._capacity.insert(place, at_ms, free)
        beside = [
            other
            for other, then in enumerate(self._capacity.at_ms)
            if other == place or at_ms <= then < until_ms
        ]
        self.reserved[row] = _uses(tasks, job_class, at_ms, until_ms)
        context.count_start(job_class, [(node, until_ms) for node, *_ in tasks], reserved=True)
        for use in self.reserved[row]:
            availability.reserved.append(use)
            self._capacity.take(use, beside)
        self.reserved_nodes[row] = tuple(dict.fromkeys(placement.node_id for placement in placements))
        self._levels.clear()
        # What failed above this place failed beside fewer reserved starts, so it still does, one level further up.
        higher = (self._fails_from > place) & (self._fails_from < _NONE)
        self._fails_from[higher] = np.minimum(self._fails_from[higher] + 1, len(self._capacity))

    def occupy(self, use: FutureUse) -> None:
        """Count what the workspace has handed out to a job that goes on, until its end."""
        self._note_use(use)
        if met := bisect_left(self._capacity.at_ms, use.until_ms):
            self._capacity.take(use, slice(met))

    # Limits.

    def _refused_now(self, row: int, job_class: JobClass, number: int) -> StartResult | None:
        """What becomes of a job that the limits keep from starting now; None when they admit it."""
        context, pending = self._context, self._context.cluster.snapshot.pending
        limits, budgets = context.workspace.limits, context.workspace.budgets
        bound = pending.array_max_running.item(row)
        if bound and limits.array_is_full(pending.array_id.item(row), bound):
            # Others of its class may be in no array, or in one with room.
            return StartResult.NO_ROOM if self._had_reserved_start(row) else StartResult.BARRED
        if budgets.refuse and self._budget_is_short(row):
            self.turns.wait_for_budget(row, job_class)
            return StartResult.BARRED  # others of its class may ask for less time
        if limits.admits(
            job_class.queue_row,
            context.charges(job_class),
            job_class.query.request,
            job_class.shape.tasks,
        ):
            return None
        self.turns.wait(row, job_class)
        if self._had_reserved_start(row):
            return StartResult.NO_ROOM
        self._barred[number] = True
        self._fails_from[number] = 0
        self._refusals += 1
        if self._refusals >= self._refusals_until_all:
            self._bar_all_short()
        return StartResult.BARRED

    def _bar_all_short(self) -> None:
        """Bar all other classes that a queue or a quota line has no room for: none of their jobs is looked at any more.

        Nothing else would come of it: what is in use only grows in a cycle. Classes with a job that had a reserved
        start are left out.
        """
        context, limits, self._refusals = self._context, self._context.workspace.limits, 0
        job_classes = context.job_classes
        full = [row for row in range(len(context.cluster.snapshot.queues)) if limits.queue_is_full(row)]
        barred = np.isin(job_classes.queue_row, full)
        if not context.cluster.charges.has_model_lines and not limits.tree.keeps:
            short = context.line_needs.short(limits.tree)
            barred[short.job_class] = True
            self.turns.wait_all(short)
        barred[job_classes.of_row[context.cluster.snapshot.pending.promised_ms > 0]] = False
        if not (barred & ~self._barred).any():
            self._refusals_until_all *= 2  # something else refuses them
        self._barred |= barred
        self._fails_from[barred] = 0

    def _budget_is_short(self, row: int) -> bool:
        """Also beside the first reserved start: what is spent of a budget is not freed when a job ends."""
        budgets = self._context.workspace.budgets
        if budgets.short(row):
            return True
        return self._limits is not None and budgets.short(row, beside=self._limits.row)

    def _refused_beside_first(
        self, row: int, job_class: JobClass, number: int, level: int
    ) -> StartResult | None:
        """The same of a job that would still run when the first reserved start begins."""
        assert self._limits is not None
        if not self._limits.admits_in_array(row):
            return StartResult.NO_ROOM
        if not self._limits.admits(job_class, job_class.shape.tasks):
            self._fails_from[number] = min(self._fails_from.item(number), level)
            return StartResult.NO_ROOM
        return None

    def _had_reserved_start(self, row: int) -> bool:
        """Whether a job that a limit keeps now had a reserved start in an earlier cycle, and may have one again.

        The jobs that pass it may use what it needs of a limit for as long as they run, and are over by then.
        """
        had = self._context.cluster.snapshot.pending.promised_ms.item(row) > 0
        if had:
            self._short.add(row)
        return had

    def _admits_by(self, at_ms: int, row: int, job_class: JobClass) -> bool:
        """Whether the limits have room for the job once all jobs have ended that should have by then."""
        context, workspace = self._context, self._context.workspace
        snapshot, limits = context.cluster.snapshot, workspace.limits
        pending, running = snapshot.pending, snapshot.running
        ends = context.cluster.allocations.job_end_ms
        if self._jobs is None:
            self._jobs = RunningJobs(context)
        with workspace.trial():
            for ended in np.flatnonzero((ends > 0) & (ends <= at_ms)).tolist():
                limits.take(
                    queue_row=self._jobs.queue_row.item(ended),
                    array_id=running.array_id.item(ended),
                    charges=self._jobs.charges(ended),
                    request=snapshot.classes[running.class_index.item(ended)],
                    tasks=self._jobs.tasks.item(ended),
                    sign=-1,
                )
            array, bound = pending.array_id.item(row), pending.array_max_running.item(row)
            request, tasks = job_class.query.request, job_class.shape.tasks
            return limits.admits(
                job_class.queue_row, context.charges(job_class), request, tasks
            ) and not limits.array_is_full(array, bound)

    # Nodes.

    def _candidates(self, job_class: JobClass, level: int) -> Candidates | None:
        """The nodes for a class of jobs at a level; None when not even what is free now has room for it."""
        if not level:
            return self._context.candidates(job_class)
        return self._levels.candidates(job_class, level)

    def _choose(
        self, candidates: Candidates, row: int, job_class: JobClass, level: int
    ) -> ChosenNodes | None:
        shape = job_class.shape
        if shape.most <= shape.tasks:
            return choose_nodes(candidates, shape)
        most = self._context.most_within_limits(job_class)
        if level and self._limits is not None:
            most = self._limits.most_tasks(job_class, most)
        if self.turns:
            most = self.turns.most_tasks(row, job_class, most)
        return choose_largest(candidates, shape, most)

    def _note_no_nodes(self, job_class: JobClass, number: int, level: int) -> None:
        """Remember from which level on a class, and where it asks the same of nodes others too, finds no nodes."""
        context = self._context
        if context.candidates(job_class).may_open:
            return
        if not context.asks_whole(job_class):  # some models are closed to its payer alone
            self._fails_from[number] = min(self._fails_from.item(number), level)
            return
        same = context.job_classes.of_placement_class(job_class.placement_class)
        self._fails_from[same] = np.minimum(self._fails_from[same], level)

    # Starts.

    def _start(
        self,
        row: int,
        job_class: JobClass,
        candidates: Candidates,
        chosen: ChosenNodes,
        level: int,
    ) -> None:
        pending = self._context.cluster.snapshot.pending
        parts = candidates.parts(chosen[0][0])
        placements, tasks = bind_tasks(candidates, chosen)
        self._take(row, job_class, tasks, level, self._context.charges_placed(job_class, placements))
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

    def _take(
        self, row: int, job_class: JobClass, tasks: list[BoundTask], level: int, charges: LineCharges
    ) -> None:
        """Count a start everywhere but in the workspace that its nodes were chosen from."""
        cluster, workspace = self._context.cluster, self._context.workspace
        now_ms = cluster.snapshot.now_ms
        uses = _uses(tasks, job_class, now_ms, after_ms(now_ms, self._lengths.item(row)))
        for use in uses:
            self._note_use(use)
        if level and self._limits is not None:
            has_all = self._levels.is_up_to_date(level)
            who = job_class.query.who
            for use in uses:
                workspace.take(use.row, use.per_task, use.devices, use.gpu_millis, who, use.domain)
                self._capacity.take(use, slice(level))
            if has_all:
                self._levels.set_up_to_date(level)
            self._limits.take(job_class, charges, len(tasks))
        self._context.count_start(job_class, [(use.row, use.until_ms) for use in uses])
        workspace.limits.take(
            queue_row=job_class.queue_row,
            array_id=cluster.snapshot.pending.array_id.item(row),
            charges=charges,
            request=job_class.query.request,
            tasks=len(tasks),
        )
        workspace.budgets.take(row)
        self.turns.start(row, charges, job_class.query.request, len(tasks))

    def _note_use(self, use: FutureUse) -> None:
        uses = self._uses if self._availability is None else self._availability.started
        uses.append(use)

    def _planned(self) -> Availability:
        """Made when the first job needs it: in a cluster with room none does."""
        if self._availability is None:
            self._availability = Availability(self._context.cluster, self._context.workspace)
            self._availability.started.extend(self._uses)
        return self._availability


def _uses(tasks: list[BoundTask], job_class: JobClass, from_ms: int, until_ms: int) -> list[FutureUse]:
    """What the tasks of a job hold from one moment to another."""
    request = job_class.query.request
    millis = request.device_millis
    return [
        FutureUse(from_ms, until_ms, row, request.per_task, devices, millis, domain)
        for row, devices, domain in tasks
    ]


def lengths_ms(limit_seconds: Ints, bound_seconds: Ints) -> Ints:
    """How long each job may run: its own limit, else that of its queue, else FOREVER_MS.

    A prediction is no limit: a job that has only that may start ahead of a reserved start where it fits beside it,
    for however long it runs.
    """
    limit = np.where(limit_seconds > 0, limit_seconds, bound_seconds)
    return np.where(limit > 0, limit * 1000, FOREVER_MS)
