"""Preemption: which jobs to stop so that a job of higher rank can start: the fewest and cheapest, or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.running_jobs import (
    ChosenNodes,
    Preemptor,
    RunningJobs,
    TaskPlacement,
    bind_preemptor,
    blocks_queue,
    charge_preemptor,
    fits_limits,
    leaving_rows,
    place_preemptor,
)
from scheduler.core.placement.equivalence import JobClass
from scheduler.core.plan import Decision, Preempt, Resize, decide, sorted_facts
from scheduler.core.preemption.elastic import Shrinking
from scheduler.core.preemption.reclaim import ReclaimSearch, to_converge
from scheduler.core.preemption.suspension import SuspendSearch, why_requeued
from scheduler.core.preemption.victim_search import VictimSearch
from scheduler.core.preemption_policy import PreemptionPolicy
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.snapshot.snapshot import Pause

#: Jobs of a hopeless group are dropped from the order this many at a time.
_CHUNK: Final = 2048
#: Numbers that a sentence names.
_NAMED: Final = 5


# ------------------------------------------------------------------ those for whom others are being stopped


def awaited_rows(cluster: ClusterIndex, considered: Ints) -> Ints:
    """Pending jobs for which others were asked to end, of those considered, in order of standing.

    They go before everybody else: what was freed for a job is that job's, and in a plain order of arrival
    its victims, which arrived earlier, would take it back at once.
    """
    running, pending = cluster.snapshot.running, cluster.snapshot.pending
    smaller = leaving_rows(cluster)
    if not running.stopped_for.any() and not pending.awaited.any() and not len(smaller):
        return np.zeros(0, dtype=np.int64)
    ids = np.unique(running.stopped_for[(running.stopped_for > 0) & (running.stop_by_ms > 0)])
    ids = np.union1d(ids, running.resized_for[smaller])
    rows = considered[np.isin(pending.id[considered], ids) | pending.awaited[considered]]
    return rows[np.argsort(-pending.priority[rows], kind="stable")]


def hold_places(context: CycleContext, rows: Ints) -> list[int]:
    """Set places aside for jobs whose victims still end, in order; answers the rows that have one.

    A place is found as if the jobs that are being stopped had ended, and is taken from the workspace, so that no
    other job starts on the part that is free already. A job that no longer finds a place holds nothing.
    """
    workspace, cluster = context.workspace, context.cluster
    found: list[tuple[int, JobClass, list[TaskPlacement]]] = []
    with workspace.trial():
        jobs = RunningJobs(context)
        running = cluster.snapshot.running
        for victim in np.flatnonzero((running.stop_by_ms > 0) & (running.stopped_for == 0)).tolist():
            jobs.release(victim)
        smaller = leaving_rows(cluster)
        for victim in smaller[running.resized_for[smaller] == 0].tolist():
            jobs.release_leaving(victim)
        for row in rows.tolist():
            job_class = context.on_whole_nodes(context.job_classes.of(row))
            for victim in smaller[running.resized_for[smaller] == cluster.snapshot.pending.id[row]].tolist():
                jobs.release_leaving(victim)
            for victim in np.flatnonzero(
                (running.stop_by_ms > 0) & (running.stopped_for == cluster.snapshot.pending.id[row])
            ).tolist():
                jobs.release(victim)
            chosen = place_preemptor(context, Preemptor(row, job_class))
            if chosen is not None:
                found.append((row, job_class, bind_preemptor(context, Preemptor(row, job_class), chosen)))
    for row, job_class, places in found:
        per_task, who = job_class.query.request.per_task, job_class.query.who
        for node_row, devices, millis, domain in places:
            workspace.take(node_row, per_task, devices, millis, who, domain)
        charge_preemptor(context, Preemptor(row, job_class), places)
    return [row for row, _, _ in found]


def awaiting_decisions(
    cluster: ClusterIndex, rows: Iterable[int], grace_seconds: int
) -> Iterator[tuple[int, Decision]]:
    """The decisions for jobs whose victims have not ended yet."""
    running, smaller = cluster.snapshot.running, leaving_rows(cluster)
    for row in rows:
        mine = (running.stopped_for == cluster.snapshot.pending.id[row]) & (running.stop_by_ms > 0)
        giving = smaller[running.resized_for[smaller] == cluster.snapshot.pending.id[row]]
        if mine.any() or len(giving):
            still = bool(mine.any() and (running.pause[mine] == Pause.ASKED).all())
            until_ms = int(running.stop_by_ms[mine].max(initial=0))
            if len(giving):
                until_ms = max(until_ms, int(running.resized_ms[giving].max()) + grace_seconds * 1000)
            ids = running.id[mine].tolist(), running.id[giving].tolist()
            yield row, _awaiting_decision(*ids, until_ms, suspended=still)


def _awaiting_decision(
    victims: Sequence[int], smaller: Sequence[int], until_ms: int, *, suspended: bool = False
) -> Decision:
    """Who ends or is suspended for it, and who gives up tasks, alone or beside them."""
    named = sorted(victims or smaller)
    facts: dict[str, int | str] = {
        "jobs": len(named), "numbers": ", ".join(map(str, named[:_NAMED])), "stop_by_ms": until_ms,
    }  # fmt: skip
    if not victims:
        facts["smaller"] = 1
    elif smaller:
        facts["givers"] = len(smaller)
        facts["giver_numbers"] = ", ".join(map(str, sorted(smaller)[:_NAMED]))
    if suspended and victims:
        facts["suspended"] = 1
    return decide(ReasonCode.WAITING_FOR_PREEMPTION, **facts)


# ------------------------------------------------------------------ whom to stop


class PreemptionResult(NamedTuple):
    """Which jobs are stopped, which give up tasks, and of the pending rows these are for, the reason to wait."""

    preempts: list[Preempt]
    resizes: list[Resize]
    decisions: list[tuple[int, Decision]]
    #: Pending rows for which not every victim was tried: the search of this cycle had reached its bound.
    unsearched: list[int]
    #: Pending rows for which nobody is stopped since too little is allocated, with how much has to be and how much is.
    unpressed: list[tuple[list[int], Pressure]]


class Pressure(NamedTuple):
    """How much of its nodes has to be allocated before others are stopped for a job, and how much is, in percent."""

    least_percent: int
    percent: int

    @property
    def is_there(self) -> bool:
        return self.percent >= self.least_percent

    @property
    def facts(self) -> dict[str, int]:
        return {"pressure_percent": self.least_percent, "allocated_percent": self.percent}


def choose_victims(
    context: CycleContext,
    waiting: Ints,
    rules: PreemptionPolicy,
    *,
    strict: Bools | None = None,
    leaving: Sequence[Preempt] = (),
    resize_seconds: int = 0,
) -> PreemptionResult:
    """Choose jobs to stop, suspend or shrink so that waiting jobs can start, and note what those wait for.

    Idea: for each waiting job, highest priority first, simulate the removal of jobs it may stop, cheapest first,
    until it fits; then spare each victim that was not needed. No job is stopped unless the waiting job then fits
    whole. The code differs in that it looks first at the nodes that are cheapest to clear, that a class of jobs
    that found no victims is not tried again at the same or a lower priority: fewer would be left for it, and that
    what is simulated in a cycle is bounded (`SearchBound`): jobs behind the bound are named, and wait.

    `waiting` are rows that their own fields and queues let in, in the order of the cycle. In a `strict` queue no
    job behind the one that blocks the queue is tried. Jobs in `leaving` end anyway: what they hold counts as free.
    With `resize_seconds`, elastic jobs give up tasks where that is enough, before any job is stopped, and beside
    victims where these are then fewer or cheaper.
    """
    cluster = context.cluster
    left = min(rules.per_cycle, rules.per_hour - int(cluster.snapshot.queues.preempted_last_hour.sum()))
    if left <= 0 or not len(cluster.snapshot.running):
        return PreemptionResult([], [], [], [], [])
    if not (rules.enabled or rules.reclaim) or not len(waiting):
        return PreemptionResult(to_converge(context, rules, left, leaving), [], [], [], [])
    if strict is not None and strict.any():
        waiting = _in_turn(context, waiting, strict)
    with context.workspace.trial():
        selection = _Selection(context, rules, left, leaving, resize_seconds)
        selection.select_for(waiting)
    return selection.result


class _Selection:
    """Victims for waiting jobs, selected inside one trial of the workspace; each selection counts for the next."""

    def __init__(
        self,
        context: CycleContext,
        rules: PreemptionPolicy,
        left: int,
        leaving: Sequence[Preempt],
        resize_seconds: int,
    ) -> None:
        cluster = context.cluster
        running = cluster.snapshot.running
        self.result = PreemptionResult([], [], [], [], [])
        self._context, self._rules = context, rules
        self._until_ms = cluster.snapshot.now_ms + rules.grace_seconds * 1000
        self._jobs = jobs = RunningJobs(context)
        for shrinking in leaving_rows(cluster).tolist():
            jobs.release_leaving(shrinking)
        ending = np.isin(running.id, [preempt.job_id for preempt in leaving])
        for victim in np.flatnonzero((running.stop_by_ms > 0) | ending).tolist():
            jobs.release(victim)
        self._search = VictimSearch(context, jobs, rules, ending)
        self.result.preempts.extend(to_converge(context, rules, left, leaving, jobs, self._search))
        #: How many more jobs may be stopped or shrunk.
        self._left = left - len(self.result.preempts)
        self._shrinking = Shrinking(context, jobs, resize_seconds) if resize_seconds else None
        self._strategies = self._strategies_of(rules)
        #: What found no victims and waits for nothing but nodes, as `question_of` says it: forgotten with each choice.
        self._useless: set[tuple[int, ...]] = set()
        #: Of each class of jobs the highest priority that found no victims; of arrays with a bound, each pair.
        self._hopeless: Ints = np.full(len(context.job_classes), -1, dtype=np.int64)
        self._hopeless_arrays: set[tuple[int, int]] = set()
        #: Of each class of jobs for which too little is allocated: the highest such priority, and the pressure.
        self._unpressed: dict[int, tuple[int, Pressure]] = {}
        #: And of each class for which enough is allocated: the pressure when it was asked for last.
        self._pressed: dict[int, Pressure] = {}

    def _strategies_of(self, rules: PreemptionPolicy) -> list[VictimSearch]:
        """The mildest first: reclaim takes only what a victim's project borrowed."""
        strategies: list[VictimSearch] = [ReclaimSearch(self._search)] if rules.reclaim else []
        if rules.enabled and rules.suspends:
            strategies.append(SuspendSearch(self._search))
        if rules.enabled:
            strategies.append(self._search)
        return strategies

    def select_for(self, waiting: Ints) -> None:
        """Select for these pending rows, highest priority first."""
        pending, of_row = self._context.cluster.snapshot.pending, self._context.job_classes.of_row
        if not self._rules.reclaim:
            asked = np.unique(pending.priority[waiting]).tolist()
            able = [priority for priority in asked if self._search.may_stop(priority).any()]
            waiting = waiting[np.isin(pending.priority[waiting], able)]
        order = waiting[np.argsort(-pending.priority[waiting], kind="stable")]
        self._select_in(order)
        for number, (priority, pressure) in self._unpressed.items():
            rows = order[(of_row[order] == number) & (pending.priority[order] <= priority)]
            self.result.unpressed.append((rows.tolist(), pressure))

    def _select_in(self, order: Ints) -> None:
        pending, of_row = self._context.cluster.snapshot.pending, self._context.job_classes.of_row
        for begin in range(0, len(order), _CHUNK):
            rows = order[begin : begin + _CHUNK]
            rows = rows[pending.priority[rows] > self._hopeless[of_row[rows]]]
            for row, number in zip(rows.tolist(), of_row[rows].tolist(), strict=True):
                if self._left <= 0:
                    return
                self._select_for(row, number)
                if self._search.bound.reached:
                    self._leave_unsearched(order[np.flatnonzero(order == row).item() :])
                    return

    def _leave_unsearched(self, rows: Ints) -> None:
        """Name the jobs among these rows for which victims might still be found."""
        priority, of_row = self._context.cluster.snapshot.pending.priority, self._context.job_classes.of_row
        decided = [row for row, _ in self.result.decisions]
        open_rows = rows[(priority[rows] > self._hopeless[of_row[rows]]) & ~np.isin(rows, decided)]
        self.result.unsearched.extend(open_rows.tolist())

    def _select_for(self, row: int, number: int) -> None:
        context = self._context
        pending, budgets = context.cluster.snapshot.pending, context.workspace.budgets
        priority = pending.priority.item(row)
        array = pending.array_id.item(row) if pending.array_max_running.item(row) else 0
        if priority <= self._hopeless[number] or (number, array) in self._hopeless_arrays:
            return
        if budgets.refuse and budgets.short(row):
            return  # no victim gives a budget back
        wanted = Preemptor(row, context.on_whole_nodes(context.job_classes[number]))
        chosen, plan, resizes = self._make_place(wanted, priority)
        if chosen is None:
            if self._search.bound.reached:
                return  # more victims could have helped
            if array:  # other jobs of its class may be in no array, or in one with room
                self._hopeless_arrays.add((number, array))
            else:
                self._hopeless[number] = priority
            return
        self._useless.clear()
        # With or without victims of its own the job will take this place: no job after it may count on the place.
        charge_preemptor(context, wanted, bind_preemptor(context, wanted, chosen))
        if plan is not None:
            self._record(row, plan, resizes)

    def _make_place(
        self, wanted: Preemptor, priority: int
    ) -> tuple[ChosenNodes | None, PreemptionPlan | None, list[Resize]]:
        """A place for the job, as it is or once the least disruptive plan has released what it needs."""
        context = self._context
        if context.never(wanted.job_class) is not None:
            return None, None, []
        chosen = place_preemptor(context, wanted)
        if chosen is not None:
            return chosen, None, []
        question = question_of(context, wanted, priority, self._rules)
        if question in self._useless:
            return None, None, []
        plan = self._least_disruptive(wanted, priority)
        if plan is None:
            if question is not None and self._number_of(wanted) not in self._unpressed:
                self._useless.add(question)
            return None, None, []
        resizes: list[Resize] = []
        if self._shrinking and plan.given:
            resizes = self._shrinking.orders(wanted, plan.given, plan.by, self._rules)
        for victim in plan.victims:
            plan.by.release(victim)
        return place_preemptor(context, wanted), plan, resizes

    def _least_disruptive(self, wanted: Preemptor, priority: int) -> PreemptionPlan | None:
        """Under too little pressure what was lent is reclaimed, and nothing else."""
        pressure = self._pressure(wanted.job_class, priority)
        if pressure is not None and pressure.is_there:
            self._pressed[self._number_of(wanted)] = pressure
        if pressure is None or pressure.is_there:
            return least_disruptive(wanted, priority, self._left, self._strategies, self._shrinking)
        reclaims = [by for by in self._strategies if isinstance(by, ReclaimSearch)]
        plan = least_disruptive(wanted, priority, self._left, reclaims, self._shrinking) if reclaims else None
        if plan is None:
            self._unpressed.setdefault(self._number_of(wanted), (priority, pressure))
        return plan

    def _pressure(self, job_class: JobClass, priority: int) -> Pressure | None:
        """How much of what the job needs has to be allocated, on the nodes that it may use, and is; None: no matter."""
        least = self._rules.pressure_of(priority)
        if not least:
            return None
        workspace, cluster = self._context.workspace, self._context.cluster
        nodes = self._context.whole_candidates(job_class).filters.passing()
        if job_class.query.request.per_task.gpus:
            free, capacity = workspace.free_gpu_millis, cluster.devices.gpu_capacity
        else:
            free, capacity = workspace.free_cpu_millis, cluster.snapshot.nodes.cpu_millis
        total = int(capacity[nodes].sum())
        used = total - int(np.asarray(free)[nodes].sum())
        return Pressure(least, used * 100 // total if total else 100)

    def _number_of(self, wanted: Preemptor) -> int:
        return self._context.job_classes.of_row.item(wanted.row)

    def _record(self, row: int, plan: PreemptionPlan, resizes: list[Resize]) -> None:
        cluster, result = self._context.cluster, self.result
        plan.by.spend(plan.victims)
        self._left -= len(resizes) + len(plan.victims)
        result.resizes.extend(resizes)
        pressure = None
        if not isinstance(plan.by, ReclaimSearch):
            wanted = Preemptor(row, self._context.job_classes.of(row))
            pressure = self._pressed.get(self._number_of(wanted))
        result.preempts.extend(_orders(cluster, self._jobs, row, plan, self._rules, pressure))
        victims = [cluster.snapshot.running.id.item(victim) for victim in plan.victims]
        shrunk = [one.job_id for one in resizes]
        decision = _awaiting_decision(victims, shrunk, self._until_ms, suspended=plan.by.only_cpus)
        if pressure is not None:
            decision = replace(decision, facts=sorted_facts({**decision.details, **pressure.facts}))
        result.decisions.append((row, decision))


def question_of(
    context: CycleContext, wanted: Preemptor, priority: int, rules: PreemptionPolicy
) -> tuple[int, ...] | None:
    """What alone decides which victims help: jobs with an equal question get an equal answer.

    None for a job that waits for a limit as well: that is its own.
    """
    if context.cluster.charges.has_model_lines or not fits_limits(context, wanted):
        return None
    return wanted.job_class.placement_class, priority, wanted.job_class.payer if rules.reclaim else -1


def _in_turn(context: CycleContext, waiting: Ints, strict: Bools) -> Ints:
    """Without those of strict queues that wait behind another for their turn."""
    queues = context.cluster.pending.queue[waiting]
    may = np.ones(len(waiting), dtype=np.bool_)
    held_up: set[int] = set()
    for place in np.flatnonzero(strict[queues]).tolist():
        queue = queues.item(place)
        may[place] = queue not in held_up
        if may[place] and blocks_queue(context, waiting.item(place)):
            held_up.add(queue)
    return waiting[may]


class PreemptionPlan(NamedTuple):
    """How a job can start: running rows that end, tasks that running rows give up, and by which right."""

    by: VictimSearch
    victims: list[int]
    given: dict[int, int]
    lines: list[str]  # of each victim, where it is reclaimed


def least_disruptive(
    wanted: Preemptor, priority: int, left: int, rights: Sequence[VictimSearch], shrinking: Shrinking | None
) -> PreemptionPlan | None:
    """By the first right that helps: smaller jobs if that is enough, else victims, fewer and cheaper ones where
    smaller jobs help; None = whatever anybody gave, it would not start.
    """
    for by in rights if shrinking else ():
        if not by.only_cpus and shrinking and (given := shrinking.alone(wanted, by, priority, left)):
            return PreemptionPlan(by, [], given, [])
    for by in rights:
        victims = by.victims_of(wanted, priority, left)
        given = {}
        if shrinking and not (victims and by.keeps_victims):
            fewer, others = shrinking.beside(wanted, by, priority, left)
            if others and (not victims or by.worth(others) < by.worth(victims)):
                victims, given = others, fewer
        if victims:
            lines = by.lines_of(wanted, priority, victims) if isinstance(by, ReclaimSearch) else []
            return PreemptionPlan(by, victims, given, lines)
    return None


def _orders(
    cluster: ClusterIndex,
    jobs: RunningJobs,
    row: int,
    way: PreemptionPlan,
    rules: PreemptionPolicy,
    pressure: Pressure | None,
) -> Iterator[Preempt]:
    running, pending = cluster.snapshot.running, cluster.snapshot.pending
    of = dict(zip(way.victims, way.lines, strict=True)) if way.lines else {}
    suspended = way.by.only_cpus
    for victim in sorted(way.victims):
        yield Preempt(
            job_id=int(running.id[victim]),
            attempt_id=int(running.attempt_id[victim]),
            for_job_id=int(pending.id[row]),
            for_generation=int(pending.generation[row]),
            priority=int(running.priority[victim]),
            for_priority=int(pending.priority[row]),
            lost_seconds=0 if suspended else int(jobs.lost_seconds[victim]),
            grace_seconds=rules.grace_seconds,
            kind="reclaim" if victim in of else "preempt",
            line=of.get(victim, ""),
            mode="suspend" if suspended else "requeue",
            instead="" if suspended or victim in of else why_requeued(rules, jobs, victim),
            strategy=(*way.by.strategy_of(victim), *(pressure.facts.items() if pressure else ())),
        )
