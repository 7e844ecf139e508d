"""Limit turns: a job that a quota line, a pool or a budget keeps waiting keeps its turn there.

A quota is one more resource of a reserved start: when it will have room for the first job that waits for it, and what
it has left beside that job then. Later jobs on the same line pass if they are over by then, or take what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from scheduler.core.backfill.backfill import FOREVER_MS
from scheduler.core.cluster.job_charges import LineCharges
from scheduler.core.columns import Bools, Ints
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.line_needs import LineNeed
from scheduler.core.context.running_jobs import RunningJobs, blocks_queue
from scheduler.core.placement.binding import largest
from scheduler.core.placement.equivalence import JobClass
from scheduler.core.snapshot.request_classes import RequestClass

#: Where no turn holds a class of jobs up: later than every end.
_FREE: Final = FOREVER_MS


class Turn:
    """The first job that waits on a line: when it can have what it needs, and what the line has left beside it then."""

    __slots__ = ("at_ms", "row", "spare")

    def __init__(self, row: int, at_ms: int, spare: int) -> None:
        self.row, self.at_ms, self.spare = row, at_ms, spare


class _BudgetTurn(NamedTuple):
    """The first job that waits for a budget: later ones that count on it are over when its period is."""

    row: int
    until_ms: int
    needs: Ints  # of each pending job


class LimitTurns:
    """The turns of one cycle. Lines are rows of quota lines; a pool is -1 minus its row.

    Nothing is worked out before a job that the limits admit is on a line for which another waits.
    """

    def __init__(self, context: CycleContext, ends_ms: Ints) -> None:
        self._context, self._ends_ms = context, ends_ms
        self._order: list[Ints] = []
        self._waiting: dict[int, int] = {}  # line -> the first row that waits for it
        self._turns: dict[int, Turn | None] = {}
        self._starts_ms: dict[
            int, int | None
        ] = {}  # of each row that waits, when all its lines have its part
        self._budgets: dict[int, _BudgetTurn] = {}
        #: Of each class, until when its jobs have to be over, and for whose sake.
        self._until: Ints | None = None
        self._for_row: Ints = np.zeros(0, dtype=np.int64)
        self._started: list[tuple[int, LineCharges, RequestClass, int]] = []  # row, charges, request, tasks
        pools = context.cluster.snapshot.pools
        self._pool_row = {name: row for row, name in enumerate(pools.name)}

    def __bool__(self) -> bool:
        return bool(self._waiting or self._budgets)

    def follow(self, rows: Ints) -> None:
        """Say in which order the next jobs are looked at, after all before."""
        self._order.append(rows)
        self.__dict__.pop("_rank", None)

    # What waits.

    def wait(self, row: int, job_class: JobClass) -> None:
        """Note a job that a line has no room for now: it has its turn on all lines that it counts on."""
        if self._is_short(job_class):
            for line, _ in self._charges(job_class):
                self._waiting.setdefault(line, row)

    def wait_all(self, short: LineNeed) -> None:
        """Note of each line the first of all jobs in these classes, where it is not known already."""
        bound = np.array(self._context.workspace.limits.tree.bound, dtype=np.int64)
        known = np.fromiter(self._waiting, dtype=np.int64, count=len(self._waiting))
        new = (short.need <= bound[short.line]) & ~np.isin(short.line, known)
        if not new.any():
            return
        rank, of_row = self._rank, self._context.job_classes.of_row
        first = np.full(len(self._context.job_classes), len(rank), dtype=np.int64)
        np.minimum.at(first, of_row, rank)
        line, job_class = short.line[new], short.job_class[new]
        order = np.lexsort((first[job_class], line))
        line, job_class = line[order], job_class[order]
        begins = np.flatnonzero(np.diff(line, prepend=-1))
        row_of_rank, classes = np.concatenate(self._order), self._context.job_classes
        for place in np.unique(first[job_class[begins]]).tolist():
            if place < len(row_of_rank):
                row = row_of_rank.item(place)
                for one, _ in self._charges(classes.of(row)):
                    self._waiting.setdefault(one, row)

    def wait_for_budget(self, row: int, job_class: JobClass) -> None:
        """Note a job that budgets have too little left for, and nothing else keeps from ever starting."""
        context = self._context
        periods = context.cluster.snapshot.budgets
        for budget, needs in context.workspace.budgets.short_of(row):
            if budget in self._budgets or needs.item(row) > periods.amount.item(budget):
                continue
            if context.never(job_class) is None and not context.never_by_quota(job_class):
                self._budgets[budget] = _BudgetTurn(row, periods.ends_ms.item(budget), needs)

    def start(self, row: int, charges: LineCharges, request: RequestClass, tasks: int) -> None:
        """Count a job that starts now: it has its part of the lines until its end."""
        self._started.append((row, charges, request, tasks))
        if not self._turns:
            return
        end_ms = self._ends_ms.item(row)
        for line, amount in (*charges, *self._pool_charges(request, tasks)):
            turn = self._turns.get(line)
            if turn is not None and end_ms > turn.at_ms:
                turn.spare -= amount

    # Who may pass.

    def keeps(self, row: int, job_class: JobClass, number: int) -> bool:
        """Whether a job that the limits admit has to wait for one ahead of it on a line, or a budget, of both."""
        end_ms, charges = self._ends_ms.item(row), self._charges(job_class)
        for line, amount in charges:
            turn = self._turn(line)
            if (
                turn is None
                or end_ms <= turn.at_ms
                or amount <= turn.spare
                or self._rank[row] <= self._rank[turn.row]
            ):
                continue
            self._close(number, turn)
            return True
        return any(
            one.needs.item(row) and end_ms > one.until_ms and self._rank[row] > self._rank[one.row]
            for one in self._budgets.values()
        )

    def most_tasks(self, row: int, job_class: JobClass, most: int) -> int:
        """How many tasks, at most `most`, a job may have without taking what is kept for one ahead of it."""
        end_ms = self._ends_ms.item(row)

        def fits(tasks: int) -> bool:
            return all(
                (turn := self._turns.get(line)) is None
                or end_ms <= turn.at_ms
                or amount <= turn.spare
                or self._rank[row] <= self._rank[turn.row]
                for line, amount in self._charges(job_class, tasks)
            )

        return largest(job_class.shape.tasks, most, fits)

    def closed(self, rows: Ints, numbers: Ints) -> Bools | None:
        """Which of these rows are known to be kept waiting; `numbers` are their classes. None = none of them."""
        closed = None
        if self._until is not None:
            closed = self._ends_ms[rows] > self._until[numbers]
            if closed.any():
                closed &= self._rank[rows] > self._rank[self._for_row[numbers]]
        for one in self._budgets.values():
            kept = (one.needs[rows] > 0) & (self._ends_ms[rows] > one.until_ms)
            if kept.any():
                kept &= self._rank[rows] > self._rank.item(one.row)
                closed = kept if closed is None else closed | kept
        return closed

    def reasons(self, rows: Ints) -> Iterator[tuple[Bools, str, int, int]]:
        """(which of these rows, "quota" or "budget", the row they wait behind, when it can start) of those kept."""
        if self._until is not None:
            numbers = self._context.job_classes.of_row[rows]
            kept = (self._ends_ms[rows] > self._until[numbers]) & (
                self._rank[rows] > self._rank[self._for_row[numbers]]
            )
            for ahead in np.unique(self._for_row[numbers][kept]).tolist():
                mine = kept & (self._for_row[numbers] == ahead)
                for at_ms in np.unique(self._until[numbers][mine]).tolist():
                    yield mine & (self._until[numbers] == at_ms), "quota", ahead, at_ms
        for one in self._budgets.values():
            kept = (one.needs[rows] > 0) & (self._ends_ms[rows] > one.until_ms)
            yield kept & (self._rank[rows] > self._rank.item(one.row)), "budget", one.row, one.until_ms

    # How it is worked out.

    @cached_property
    def _rank(self) -> Ints:
        """The place of each pending row in the order; those that are not in it come last."""
        order = np.concatenate(self._order) if self._order else np.zeros(0, dtype=np.int64)
        rank = np.full(len(self._ends_ms), len(self._ends_ms), dtype=np.int64)
        rank[order] = np.arange(len(order))
        return rank

    def _close(self, number: int, turn: Turn) -> None:
        if self._until is None:
            count = len(self._context.job_classes)
            self._until = np.full(count, _FREE, dtype=np.int64)
            self._for_row = np.zeros(count, dtype=np.int64)
        if turn.at_ms < self._until.item(number):
            self._until[number], self._for_row[number] = turn.at_ms, turn.row

    def _turn(self, line: int) -> Turn | None:
        row = self._waiting.get(line)
        if row is None:
            return None
        if line not in self._turns:
            self._turns[line] = self._work_out(line, row)
        return self._turns[line]

    def _work_out(self, line: int, row: int) -> Turn | None:
        """The turn of the job in this row on a line; None where it waits for no turn, or for one that nobody knows."""
        job_class = self._context.job_classes.of(row)
        if row not in self._starts_ms:
            self._starts_ms[row] = self._start_ms(row, job_class)
        at_ms = self._starts_ms[row]
        if at_ms is None:
            return None
        ends, freed = self._freed(line)
        last = int(np.searchsorted(ends, at_ms, side="right"))
        need = dict(self._charges(job_class))[line]
        return Turn(row, at_ms, self._free(line) + (int(freed[last - 1]) if last else 0) - need)

    def _start_ms(self, row: int, job_class: JobClass) -> int | None:
        """When all lines of a job have what it needs, if everything ends when it is expected to.

        None where it waits for more than that: for a person, or for what will never be there.
        """
        if not blocks_queue(self._context, row):
            return None
        at_ms = 0
        for line, need in self._charges(job_class):
            missing = need - self._free(line)
            if missing > 0:
                ends, freed = self._freed(line)
                place = int(np.searchsorted(freed, missing))
                if place == len(freed) or ends[place] == FOREVER_MS:
                    return None  # no known end gives it what it needs
                at_ms = max(at_ms, int(ends[place]))
        return at_ms or None

    def _freed(self, line: int) -> tuple[Ints, Ints]:
        """When running jobs and starts of this cycle end, ascending, and what of the line is given back by then."""
        ends, amounts = self._ending_on(line)
        order = np.argsort(ends, kind="stable")
        return ends[order], amounts[order].cumsum()

    def _free(self, line: int) -> int:
        limits = self._context.workspace.limits
        if line < 0:
            return limits.pool_left(-1 - line)
        tree = limits.tree
        return tree.bound[line] - tree.used[line] - tree.kept[line]

    def _ending_on(self, line: int) -> tuple[Ints, Ints]:
        """When running jobs and starts of this cycle end, and what of the line each then gives back."""
        cluster = self._context.cluster
        now_ms, ends = cluster.snapshot.now_ms, cluster.allocations.job_end_ms
        ends = np.where(ends > 0, np.maximum(ends, now_ms + 1), FOREVER_MS)
        amounts = self._held_on(line)
        rows = np.array([row for row, *_ in self._started], dtype=np.int64)
        more = [
            dict(charges if line >= 0 else self._pool_charges(request, tasks)).get(line, 0)
            for _, charges, request, tasks in self._started
        ]
        return (
            np.concatenate([ends, self._ends_ms[rows]]),
            np.concatenate([amounts, np.array(more, dtype=np.int64)]),
        )

    def _held_on(self, line: int) -> Ints:
        """What each running job counts on a line."""
        jobs, running = self._jobs, self._context.cluster.snapshot.running
        if line >= 0 and (self._context.cluster.charges.has_model_lines or running.pause.any()):
            return np.array(
                [dict(jobs.charges(row)).get(line, 0) for row in range(len(running))], dtype=np.int64
            )
        kinds, number = self._kinds
        return np.array([held.get(line, 0) for held in kinds], dtype=np.int64)[number]

    @cached_property
    def _jobs(self) -> RunningJobs:
        return RunningJobs(self._context)

    @cached_property
    def _kinds(self) -> tuple[list[Mapping[int, int]], Ints]:
        """What running jobs of each kind (payer, class, tasks) count by line; and the kind of each running job."""
        cluster, jobs = self._context.cluster, self._jobs
        alike = np.stack([cluster.paths.running, cluster.snapshot.running.class_index, jobs.tasks])
        kinds, number = np.unique(alike, axis=1, return_inverse=True)
        found: list[Mapping[int, int]] = [
            dict(
                (
                    *cluster.charges.certain(payer, class_index, tasks),
                    *self._pool_charges(cluster.snapshot.classes[class_index], tasks),
                )
            )
            for payer, class_index, tasks in kinds.T.tolist()
        ]
        return found, number.reshape(-1).astype(np.int64)

    def _charges(self, job_class: JobClass, tasks: int = 0) -> LineCharges:
        tasks = tasks or job_class.shape.tasks
        request = job_class.query.request
        return (*self._context.charges(job_class, tasks), *self._pool_charges(request, tasks))

    def _pool_charges(self, request: RequestClass, tasks: int) -> LineCharges:
        return tuple(
            (-1 - self._pool_row[name], amount * tasks)
            for name, amount in request.per_task.extras
            if name in self._pool_row
        )

    def _is_short(self, job_class: JobClass) -> bool:
        """Whether a quota line or a pool has no room for a class."""
        context, request = self._context, job_class.query.request
        limits = context.workspace.limits
        return (
            limits.short_quota(context.charges(job_class)) is not None
            or limits.short_pool(request, job_class.shape.tasks) is not None
        )
