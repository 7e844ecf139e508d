"""Preemption: whom to stop so that a job of higher standing can start: fewest and cheapest, or nobody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from quotas.core.resources import GPU_MILLIS, Resources
from scheduler.core.blockers import Answers, decide
from scheduler.core.columns import Bools, Ints, rows_of
from scheduler.core.feasibility import RoomGate
from scheduler.core.groups import Group
from scheduler.core.placement import Candidates, fit_on, near_tasks, take_tasks
from scheduler.core.plan import Decision, Preempt
from scheduler.core.reasons import ReasonCode
from scheduler.core.reclaim import Claim, Lenders, latest_first, lines_to_converge
from scheduler.core.standing import Preemption
from scheduler.core.world import World

#: Among jobs of one priority a GPU counts as so many cores, to say whose work is worth more.
CORES_OF_A_GPU: Final = 16
#: Nodes that are each looked at as the one that is cleared, the most promising first.
_NODES_TRIED: Final = 6
#: Victims of one trial at most, before those that turn out needless are spared again.
_LONGEST_TRIAL: Final = 512
#: Jobs of a hopeless group are dropped from the order this many at a time.
_CHUNK: Final = 2048
#: Numbers that a sentence names.
_NAMED: Final = 5

#: A pending row, and (node row, tasks on it) for all of its tasks.
Chosen = list[tuple[int, int]]


class Wanted(NamedTuple):
    """A pending job that may have others stopped."""

    row: int
    group: Group


# ------------------------------------------------------------------ those for whom others are being stopped


def awaited_rows(world: World, considered: Ints) -> Ints:
    """Pending jobs for which others were told to end, of those considered, in order of standing.

    They go before everybody else: what was freed for a job is that job's, and in a plain order of arrival
    its victims, which arrived earlier, would take it back at once.
    """
    running, pending = world.snapshot.running, world.snapshot.pending
    if not running.stopped_for.any() and not pending.awaited.any():
        return np.zeros(0, dtype=np.int64)
    ids = np.unique(running.stopped_for[(running.stopped_for > 0) & (running.stop_by_ms > 0)])
    rows = considered[np.isin(pending.id[considered], ids) | pending.awaited[considered]]
    return rows[np.argsort(-pending.priority[rows], kind="stable")]


def hold_places(answers: Answers, rows: Ints) -> list[int]:
    """Set places aside for jobs whose victims still end, in order; answers the rows that have one.

    A place is found in the world without those that are being stopped, and taken out of the real one, so
    that nobody starts on the part that is free already. A job that no longer finds one holds nothing.
    """
    workspace, world = answers.workspace, answers.world
    found: list[tuple[int, Group, list[tuple[int, list[int], int]]]] = []
    with workspace.trial():
        jobs = _Running(answers)
        running = world.snapshot.running
        for victim in np.flatnonzero((running.stop_by_ms > 0) & (running.stopped_for == 0)).tolist():
            jobs.release(victim)
        for row in rows.tolist():
            group = answers.groups.of(row)
            for victim in np.flatnonzero(
                (running.stop_by_ms > 0) & (running.stopped_for == world.snapshot.pending.id[row])
            ).tolist():
                jobs.release(victim)
            chosen = _place(answers, Wanted(row, group))
            if chosen is not None:
                found.append((row, group, _take_place(answers, Wanted(row, group), chosen)))
    for row, group, places in found:
        for node_row, devices, millis in places:
            workspace.take(node_row, group.question.request.per_task, devices, millis, group.question.who)
        _count(answers, Wanted(row, group), places)
    return [row for row, _, _ in found]


def awaiting_decisions(world: World, rows: Iterable[int]) -> Iterator[tuple[int, Decision]]:
    """What jobs are told for which others have been told to end, as long as those have not ended."""
    running = world.snapshot.running
    for row in rows:
        mine = (running.stopped_for == world.snapshot.pending.id[row]) & (running.stop_by_ms > 0)
        if mine.any():
            yield row, _told(running.id[mine].tolist(), int(running.stop_by_ms[mine].max()))


def _told(victims: list[int], stop_by_ms: int) -> Decision:
    names = ", ".join(map(str, sorted(victims)[:_NAMED]))
    return decide(ReasonCode.WAITING_FOR_PREEMPTION, jobs=len(victims), numbers=names, stop_by_ms=stop_by_ms)


# ------------------------------------------------------------------ whom to stop


def choose_victims(
    answers: Answers,
    waiting: Ints,
    rules: Preemption,
    *,
    strict: Bools | None = None,
    leaving: Sequence[Preempt] = (),
) -> tuple[list[Preempt], list[tuple[int, Decision]]]:
    """Jobs to stop so that waiting ones can start, in order of standing, and what those are told.

    Idea: for each waiting job, highest priority first, think jobs it may stop away, cheapest first, until it
    fits; then spare each that was not needed. Nothing happens unless it then fits whole. The code differs in
    that it looks at the nodes that are cheapest to clear first, and that a group that found no victims is
    not tried again at the same or a lower priority: fewer would be left for it.

    `waiting` are rows that nothing but room keeps from starting, in the order of the cycle. `strict`: only
    the first of each queue, those behind it wait their turn. `leaving` end anyway: their room counts as free.
    """
    world, workspace = answers.world, answers.workspace
    pending, running = world.snapshot.pending, world.snapshot.running
    left = min(rules.per_cycle, rules.per_hour - int(world.snapshot.queues.preempted_last_hour.sum()))
    if left <= 0 or not len(running):
        return [], []
    if not (rules.enabled or rules.reclaim) or not len(waiting):
        return _to_converge(answers, rules, left, leaving), []
    if strict is not None and strict.any():
        first = np.unique(world.pending_queue[waiting], return_index=True)[1]
        heads = np.isin(np.arange(len(waiting)), first)
        waiting = waiting[heads | ~strict[world.pending_queue[waiting]]]
    preempts: list[Preempt] = []
    told: list[tuple[int, Decision]] = []
    with workspace.trial():
        jobs = _Running(answers)
        going = np.isin(running.id, [preempt.job_id for preempt in leaving])
        for victim in np.flatnonzero((running.stop_by_ms > 0) | going).tolist():
            jobs.release(victim)
        search = _Search(answers, jobs, rules, going)
        preempts.extend(_to_converge(answers, rules, left, leaving, jobs, search))
        left -= len(preempts)
        reclaim = _Reclaim(search) if rules.reclaim else None
        if reclaim is None:
            asked = np.unique(pending.priority[waiting]).tolist()
            able = [number for number in asked if search.may_stop(number).any()]
            waiting = waiting[np.isin(pending.priority[waiting], able)]
        order = waiting[np.argsort(-pending.priority[waiting], kind="stable")]
        hopeless = np.full(len(answers.groups), -1, dtype=np.int64)  # highest priority that found nobody
        for begin in range(0, len(order), _CHUNK):
            rows = order[begin : begin + _CHUNK]
            rows = rows[pending.priority[rows] > hopeless[answers.groups.of_row[rows]]]
            for row, number in zip(rows.tolist(), answers.groups.of_row[rows].tolist(), strict=True):
                priority = int(pending.priority[row])
                if left <= 0 or priority <= hopeless[number]:
                    continue
                wanted = Wanted(row, answers.groups[number])
                victims: list[int] = []
                lines: list[str] = []
                chosen = None
                if answers.never(wanted.group) is None:
                    chosen = _place(answers, wanted)
                    if chosen is None:
                        # The milder first: what is taken back was never the other's own.
                        victims = reclaim.victims_of(wanted, priority, left) if reclaim else []
                        lines = [reclaim.line_of(victim) for victim in victims] if reclaim else []
                        if not victims and rules.enabled:
                            lines, victims = [], search.victims_of(wanted, priority, left)
                        for victim in victims:
                            jobs.release(victim)
                        chosen = _place(answers, wanted) if victims else None
                if chosen is None:
                    hopeless[number] = priority
                    continue
                # With or without victims of its own it will take this: nobody after it may count on it.
                _count(answers, wanted, _take_place(answers, wanted, chosen))
                if victims:
                    search.spend(victims)
                    left -= len(victims)
                    preempts.extend(_orders(world, jobs, row, victims, rules, lines))
                    until = world.snapshot.now_ms + rules.grace_seconds * 1000
                    told.append((row, _told([int(running.id[victim]) for victim in victims], until)))
    return preempts, told


def _orders(
    world: World,
    jobs: _Running,
    row: int,
    victims: Sequence[int],
    rules: Preemption,
    lines: Sequence[str] = (),
) -> Iterator[Preempt]:
    """`lines` are those that each victim has borrowed on, for what is reclaimed."""
    running, pending = world.snapshot.running, world.snapshot.pending
    of = dict(zip(victims, lines, strict=True)) if lines else {}
    for victim in sorted(victims):
        yield Preempt(
            job_id=int(running.id[victim]),
            attempt_id=int(running.attempt_id[victim]),
            for_job_id=int(pending.id[row]),
            for_generation=int(pending.generation[row]),
            priority=int(running.priority[victim]),
            for_priority=int(pending.priority[row]),
            lost_seconds=int(jobs.lost_seconds[victim]),
            grace_seconds=rules.grace_seconds,
            kind="reclaim" if victim in of else "preempt",
            line=of.get(victim, ""),
        )


def _to_converge(
    answers: Answers,
    rules: Preemption,
    most: int,
    leaving: Sequence[Preempt],
    jobs: _Running | None = None,
    search: _Search | None = None,
) -> list[Preempt]:
    """Jobs to stop so that limits which were cut are kept again, the last to start first.

    With `jobs` they are thought away, as those that have been told already are.
    """
    due = lines_to_converge(answers)
    if not due:
        return []
    world, running = answers.world, answers.world.snapshot.running
    stopped: list[Preempt] = []
    going = (running.stop_by_ms > 0) | np.isin(running.id, [preempt.job_id for preempt in leaving])
    with answers.workspace.trial() as trial:
        if jobs is None:
            jobs = _Running(answers)
            for victim in np.flatnonzero(going).tolist():
                jobs.release(victim)
        else:
            trial.keep()
        limits = answers.workspace.limits
        for line in due:
            for victim in latest_first(answers, running.preemptible & ~going).tolist():
                if limits.used[line] <= limits.bound[line] or len(stopped) >= most:
                    break
                told = any(int(running.id[victim]) == one.job_id for one in stopped)
                if told or not dict(jobs.charges(victim)).get(line):
                    continue
                jobs.release(victim)
                if search is not None:
                    search.spend([victim])
                stopped.append(
                    Preempt(
                        job_id=int(running.id[victim]),
                        attempt_id=int(running.attempt_id[victim]),
                        for_job_id=0,
                        for_generation=0,
                        priority=int(running.priority[victim]),
                        for_priority=0,
                        lost_seconds=int(jobs.lost_seconds[victim]),
                        grace_seconds=rules.grace_seconds,
                        kind="converge",
                        line=world.snapshot.quotas.owner[line],
                    )
                )
    return stopped


class _Search:
    """Finds the victims of one job after the other, and keeps count of what may still be lost."""

    def __init__(
        self, answers: Answers, jobs: _Running, rules: Preemption, going: Bools | None = None
    ) -> None:
        world = answers.world
        running = world.snapshot.running
        self.answers, self.jobs, self.rules = answers, jobs, rules
        weight = jobs.gpu_millis + jobs.cpu_millis // CORES_OF_A_GPU
        #: What stopping each costs: the work lost and the start again, by what it holds.
        self.cost: Ints = (jobs.lost_seconds + rules.restart_seconds) * np.maximum(weight, 1)
        self.loss: Ints = jobs.lost_seconds * jobs.gpu_millis // GPU_MILLIS
        #: Cheapest first: by priority, cost, latest start.
        order = np.lexsort((-running.id, -running.started_ms, self.cost, running.priority))
        self.rank: Ints = np.empty(len(order), dtype=np.int64)
        self.rank[order] = np.arange(len(order))
        ran = (world.snapshot.now_ms - running.started_ms) // 1000
        self._open: Bools = (
            running.preemptible
            & (running.stop_by_ms == 0)
            & (~going if going is not None else True)
            & (ran >= rules.protected_seconds)
            & (running.times_preempted < rules.most_times)
        )
        budget = rules.loss_budget_gpu_hours * 3600
        left = np.maximum(budget - world.snapshot.projects.lost_gpu_seconds, 0)
        self._budget: list[int] | None = left.tolist() if budget else None
        self._may_stop: dict[int, Bools] = {}

    def may_stop(self, priority: int) -> Bools:
        """Running jobs that a job of this priority may have stopped."""
        if priority not in self._may_stop:
            allowed = np.array([self.rules.may_stop(priority, victim) for victim in range(101)], np.bool_)
            self._may_stop[priority] = allowed[self.answers.world.snapshot.running.priority]
        return self._may_stop[priority] & self._open

    def allowed(self, wanted: Wanted, priority: int) -> Bools:
        """Running jobs that this waiting one may have stopped."""
        return self.may_stop(priority)

    def spares(self, victim: int) -> bool:
        """Whether a job that may be stopped is left alone all the same, after those already thought away."""
        return False

    def spend(self, victims: Iterable[int]) -> None:
        for victim in victims:
            self._open[victim] = False
            if self._budget is not None:
                self._budget[int(self.jobs.project_row[victim])] -= int(self.loss[victim])

    def victims_of(self, wanted: Wanted, priority: int, most: int) -> list[int]:
        """The cheapest set of victims found that lets this job start, at most so many; [] when there is none."""
        allowed = self.allowed(wanted, priority)
        if not allowed.any():
            return []
        tried: set[tuple[int, ...]] = set()
        best: tuple[tuple[int, ...], list[int]] | None = None
        for sequence, is_last_resort in self._sequences(wanted, allowed):
            if not sequence or tuple(sequence) in tried or (is_last_resort and best is not None):
                continue
            tried.add(tuple(sequence))
            found = self._fewest(wanted, sequence)
            if found and len(found) <= most:
                worth = self._worth(found)
                if best is None or worth < best[0]:
                    best = worth, found
        return best[1] if best else []

    def _worth(self, victims: Sequence[int]) -> tuple[int, ...]:
        """Less is better: the highest priority stopped, the cost of all, how many, the latest started."""
        running = self.answers.world.snapshot.running
        return (
            int(running.priority[victims].max()),
            int(self.cost[victims].sum()),
            len(victims),
            *sorted((-running.started_ms[victims]).tolist()),
            *sorted((-running.id[victims]).tolist()),
        )

    def _fewest(self, wanted: Wanted, sequence: Sequence[int]) -> list[int]:
        """Of a sequence as few as let the job start: from its front until it fits, then each spared that can be."""
        stopped: list[int] = []
        with self.answers.workspace.trial():
            budget = list(self._budget) if self._budget is not None else None
            fits = False
            for victim in sequence:
                if self.spares(victim):
                    continue
                if budget is not None:
                    project = int(self.jobs.project_row[victim])
                    if int(self.loss[victim]) > budget[project]:
                        continue
                    budget[project] -= int(self.loss[victim])
                self.jobs.release(victim)
                stopped.append(victim)
                fits = _place(self.answers, wanted) is not None
                if fits:
                    break
            if not fits:
                return []
            for victim in sorted(stopped, key=lambda one: -int(self.rank[one])):  # the dearest first
                self.jobs.release(victim, back=True)
                if _place(self.answers, wanted) is None:
                    self.jobs.release(victim)
                else:
                    stopped.remove(victim)
        return stopped

    def _sequences(self, wanted: Wanted, allowed: Bools) -> Iterator[tuple[list[int], bool]]:
        """Orders in which victims may be thought away, the most promising first; True = only if none helped."""
        answers, jobs, shape = self.answers, self.jobs, wanted.group.shape
        candidates = answers.candidates(wanted.group)
        candidates.refresh()
        if not _limits_left(answers, wanted):
            # Room alone does not help: first those who hold of the same limits have to end.
            same = self._same_limits(wanted, allowed)
            if same.any():
                others = self._ranked(np.flatnonzero(allowed & ~same))
                yield (self._ranked(np.flatnonzero(same)) + others)[:_LONGEST_TRIAL], False
            return
        opened = candidates.passing()
        held = np.flatnonzero(allowed[jobs.of_allocation] & opened[answers.world.allocation_node])
        if not len(held):
            return
        node, victim = answers.world.allocation_node[held], jobs.of_allocation[held]
        needs = list(_needs(candidates, held))
        if not fit_on(_most_slots(opened, node, needs), shape, answers.world):
            return
        order = np.lexsort((self.rank[victim], node))
        held, node, victim = held[order], node[order], victim[order]
        first = np.flatnonzero(np.concatenate([[True], node[1:] != node[:-1]]))
        count = np.diff(np.append(first, len(node)))
        enough, alone = np.ones(len(node), np.bool_), np.ones(len(node), np.bool_)
        for free, need, amounts in needs:
            own = amounts[order]
            total = np.cumsum(own)
            before = np.repeat(total[first] - own[first], count)
            enough &= free[node] + total - before >= need
            alone &= free[node] + own >= need
        if shape.tasks == 1 and alone.any():
            yield [int(victim[alone][self.rank[victim[alone]].argmin()])], False
        # Each node's price: its victims up to the first with which a task fits.
        cost = np.cumsum(self.cost[victim])
        cost = cost - np.repeat(cost[first] - self.cost[victim[first]], count)
        rows = np.flatnonzero(enough)
        rows = rows[np.unique(node[rows], return_index=True)[1]]
        priority = answers.world.snapshot.running.priority[victim[rows]]
        rows = rows[np.lexsort((node[rows], cost[rows], priority))]
        on_node = {int(node[start]): (start, int(length)) for start, length in zip(first, count, strict=True)}

        def there(node_row: int) -> list[int]:
            start, length = on_node[node_row]
            return list(dict.fromkeys(victim[start : start + length].tolist()))

        if shape.tasks == 1:
            for row in rows[:_NODES_TRIED].tolist():
                yield there(int(node[row])), False
        else:
            chained = [one for row in rows.tolist() for one in there(int(node[row]))]
            yield list(dict.fromkeys(chained))[:_LONGEST_TRIAL], False
        yield self._ranked(np.unique(victim))[:_LONGEST_TRIAL], shape.tasks == 1

    def _same_limits(self, wanted: Wanted, allowed: Bools) -> Bools:
        """Victims that hold of the first limit that keeps the job waiting, if together they hold enough of it."""
        workspace, jobs, group = self.answers.workspace, self.jobs, wanted.group
        if workspace.queue_is_full(group.queue_row):
            here: Bools = allowed & (jobs.queue_row == group.queue_row)
            return here
        none = np.zeros(len(allowed), dtype=np.bool_)
        charges = workspace.charges(group.payer, group.class_index, group.shape.tasks)
        short = workspace.short_quota(charges)
        if short is None:
            return allowed  # an array or a pool: few jobs hold of them, and the trial finds them
        line, need = short
        lacking = workspace.quota_used[line] + need - workspace.quota_hard[line]
        sharing = [payer for payer, lines in enumerate(workspace.payer_lines) if line in lines]
        mask: Bools = allowed & np.isin(self.answers.world.paths.running, sharing)
        for victim in np.flatnonzero(mask).tolist():
            lacking -= dict(jobs.charges(victim)).get(line, 0)
        return mask if lacking <= 0 else none

    def _ranked(self, victims: Ints) -> list[int]:
        ordered: list[int] = victims[np.argsort(self.rank[victims])].tolist()
        return ordered


class _Reclaim(_Search):
    """Finds jobs that run on borrowed quota, for one that its own share covers: the last to start first."""

    def __init__(self, search: _Search) -> None:
        # The same jobs are left and the same may be lost, by whatever right they are stopped.
        self.answers, self.jobs, self.rules = search.answers, search.jobs, search.rules
        self.cost, self.loss = search.cost, search.loss
        self._open, self._budget = search._open, search._budget
        order = latest_first(self.answers, np.ones(len(self._open), dtype=np.bool_))
        self.rank = np.empty(len(order), dtype=np.int64)
        self.rank[order] = np.arange(len(order))
        self._lenders = Lenders(self.answers)
        self._claims: list[Claim] = []

    def allowed(self, wanted: Wanted, priority: int) -> Bools:
        self._claims = self._lenders.claims(wanted.group)
        payers = self.answers.world.paths.running
        if not self._claims:
            return np.zeros(len(payers), dtype=np.bool_)
        borrow = [
            payer for payer in np.unique(payers).tolist()
            if self._lenders.borrowing(self._claims, payer) is not None
        ]  # fmt: skip
        held = self.jobs.gpu_millis if wanted.group.question.request.per_task.gpus else self.jobs.cpu_millis
        found: Bools = np.isin(payers, borrow) & self._open & (held > 0)
        return found

    def spares(self, victim: int) -> bool:
        payer = self.answers.world.paths.running.item(victim)
        return self._lenders.borrowing(self._claims, payer) is None

    def line_of(self, victim: int) -> str:
        """Whose line has borrowed, of a victim that was just found."""
        payer = self.answers.world.paths.running.item(victim)
        line = self._lenders.borrowing(self._claims, payer)
        return "" if line is None else self.answers.world.snapshot.quotas.owner[line]

    def _worth(self, victims: Sequence[int]) -> tuple[int, ...]:
        """Less is better: few, then the latest started."""
        running = self.answers.world.snapshot.running
        return (
            len(victims),
            *sorted((-running.started_ms[victims]).tolist()),
            *sorted((-running.id[victims]).tolist()),
        )


Need = tuple[Ints, int, Ints]  # free on each node, needed by one task, given back by each allocation


def _needs(candidates: Candidates, held: Ints) -> Iterator[Need]:
    """Every measured resource of a request; GPUs in thousandths, as if each came back whole or not at all."""
    question, workspace = candidates.question, candidates.workspace
    world, request = workspace.world, question.request
    for gate in candidates.rules.gates:
        if not isinstance(gate, RoomGate) or (headroom := gate.free(question, workspace)) is None:
            continue
        if gate.name != "gpus":
            yield headroom[0], headroom[1], getattr(world.snapshot.allocations, gate.name)[held]
            continue
        usable = world.gpu_matches(request.gpu_model, request.gpu_memory_mib) & world.device_healthy
        free = np.zeros(world.node_count, dtype=np.int64)
        np.add.at(free, world.device_node[usable], np.maximum(GPU_MILLIS - workspace.device_used[usable], 0))
        devices = world.gpus_held(request.gpu_model, request.gpu_memory_mib)[held]
        need = request.per_task.gpu_millis if request.shares_gpu else request.per_task.gpus * GPU_MILLIS
        yield free, need, devices * world.snapshot.allocations.gpu_millis[held]


def _most_slots(opened: Bools, node: Ints, needs: Sequence[Need]) -> Ints:
    """Never fewer tasks than each node could take without all of these allocations."""
    slots = np.where(opened, np.iinfo(np.int64).max, 0)
    for free, need, amounts in needs:
        whole = free.copy()
        np.add.at(whole, node, amounts)
        np.minimum(slots, whole // need, out=slots)
    return np.maximum(slots, 0)


# ------------------------------------------------------------------ jobs thought away, and places taken


class _Seat(NamedTuple):
    """What one task of a running job holds."""

    row: int
    held: Resources
    devices: list[int]
    gpu_millis: int


class _Running:
    """Running jobs as they can be thought away from a workspace, and what each holds."""

    def __init__(self, answers: Answers) -> None:
        world = answers.world
        running, allocations = world.snapshot.running, world.snapshot.allocations
        self._answers = answers
        #: The running row of each allocation.
        self.of_allocation: Ints = rows_of(running.id, allocations.job_id, what="running job")
        self.project_row: Ints = rows_of(world.snapshot.projects.id, running.project_id, what="project")
        self.queue_row: Ints = rows_of(world.snapshot.queues.id, running.queue_id, what="queue")
        self._order = np.argsort(self.of_allocation, kind="stable")
        self._charges: dict[int, tuple[tuple[int, int], ...]] = {}
        self._known_seats: dict[int, list[_Seat]] = {}
        self._first = np.searchsorted(self.of_allocation[self._order], np.arange(len(running) + 1))
        since = np.maximum(running.started_ms, running.saved_ms)
        self.lost_seconds: Ints = np.maximum(world.snapshot.now_ms - since, 0) // 1000
        devices = np.fromiter(map(len, allocations.device_ids), np.int64, count=len(allocations))
        self.gpu_millis = self._sum(devices * allocations.gpu_millis)
        self.cpu_millis = self._sum(allocations.cpu_millis)

    def _sum(self, amounts: Ints) -> Ints:
        total = np.zeros(len(self._first) - 1, dtype=np.int64)
        np.add.at(total, self.of_allocation, amounts)
        return total

    def charges(self, victim: int) -> tuple[tuple[int, int], ...]:
        """(quota row, amount) of every enforced line that it counts on."""
        known = self._charges.get(victim)
        if known is None:
            world, seats = self._answers.world, self._seats(victim)
            known = self._charges[victim] = self._answers.workspace.charges_given(
                world.paths.running.item(victim),
                world.snapshot.running.class_index.item(victim),
                len(seats),
                (device for seat in seats for device in seat.devices),
                seats[0].gpu_millis if seats else 0,
            )
        return known

    def _seats(self, victim: int) -> list[_Seat]:
        """What it holds where; found once, as many trials think it away."""
        known = self._known_seats.get(victim)
        if known is None:
            world = self._answers.world
            allocations, device_row = world.snapshot.allocations, world.device_row
            known = self._known_seats[victim] = [
                _Seat(
                    world.allocation_node.item(row),
                    Resources(
                        cpu_millis=allocations.cpu_millis.item(row),
                        memory_mib=allocations.memory_mib.item(row),
                        storage_mib=allocations.storage_mib.item(row),
                    ),
                    [device_row[one] for one in allocations.device_ids[row] if one in device_row],
                    allocations.gpu_millis.item(row),
                )
                for row in self._order[self._first[victim] : self._first[victim + 1]].tolist()
            ]
        return known

    def release(self, victim: int, *, back: bool = False) -> None:
        """Give back all that a running job holds, on every node and of every limit; `back` takes it again."""
        world, workspace = self._answers.world, self._answers.workspace
        running = world.snapshot.running
        move = workspace.take if back else workspace.give_back
        who, seats = int(world.company.running[victim]), self._seats(victim)
        for seat in seats:
            move(seat.row, seat.held, seat.devices, seat.gpu_millis, who)
        class_index = int(running.class_index[victim])
        workspace.give_back_limits(
            queue_row=int(self.queue_row[victim]),
            array_id=int(running.array_id[victim]),
            charges=self.charges(victim),
            request=world.snapshot.classes[class_index],
            tasks=len(seats),
            sign=-1 if back else 1,
        )


def _limits_left(answers: Answers, wanted: Wanted) -> bool:
    """Whether quota, queue, array and pools have room for the job."""
    workspace, group, pending = answers.workspace, wanted.group, answers.world.snapshot.pending
    request, tasks = group.question.request, group.shape.tasks
    bound, array = int(pending.array_max_running[wanted.row]), int(pending.array_id[wanted.row])
    charges = workspace.charges(group.payer, group.class_index, tasks)
    return (
        not workspace.queue_is_full(group.queue_row)
        and workspace.short_quota(charges) is None
        and (not request.per_task.extras or workspace.short_pool(request, tasks) is None)
        and not (bound and workspace.array_running.get(array, 0) >= bound)
        and not workspace.budgets.short(wanted.row)
    )


def _place(answers: Answers, wanted: Wanted) -> Chosen | None:
    """Where all tasks of a job would go now; unlike `choose_nodes` it forgets what failed before."""
    if not _limits_left(answers, wanted) or not wanted.group.shape.is_possible:
        return None
    candidates, shape = answers.candidates(wanted.group), wanted.group.shape
    if shape.tasks == 1:
        row = candidates.best()
        return [(row, 1)] if row >= 0 else None
    world, wish = answers.world, shape.pack or candidates.rules.packing
    chosen = near_tasks(candidates.slots(), candidates.scores, shape, world, wish)
    return sorted(chosen) if chosen is not None else None


def _take_place(answers: Answers, wanted: Wanted, chosen: Chosen) -> list[tuple[int, list[int], int]]:
    """Hand the place out in the workspace; answers (node row, device rows, thousandths) of each task."""
    world = answers.world
    return [
        (
            world.node_row[placement.node_id],
            [world.device_row[device] for device in placement.device_ids],
            placement.gpu_millis,
        )
        for placement in take_tasks(answers.candidates(wanted.group), chosen)
    ]


def _count(answers: Answers, wanted: Wanted, places: Sequence[tuple[int, list[int], int]]) -> None:
    workspace, group = answers.workspace, wanted.group
    workspace.budgets.take(wanted.row)
    workspace.take_limits(
        queue_row=group.queue_row,
        array_id=int(answers.world.snapshot.pending.array_id[wanted.row]),
        charges=workspace.charges_given(
            group.payer,
            group.class_index,
            group.shape.tasks,
            (device for _, devices, _ in places for device in devices),
            places[0][2] if places else 0,
        ),
        request=group.question.request,
        tasks=group.shape.tasks,
    )
