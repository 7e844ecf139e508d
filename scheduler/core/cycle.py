"""The cycle: plan_cycle, a snapshot in and a plan out, as numbered steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scheduler.core.backfill.availability import FutureUse
from scheduler.core.backfill.backfill import FOREVER_MS, ReservedStart, limits_of, run_backfill
from scheduler.core.backfill.cluster_backfill import ClusterBackfill, lengths_ms
from scheduler.core.backfill.gang_reservation import GangReservations, gathering_rows
from scheduler.core.cluster.budgets import demoted
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints, rows_of
from scheduler.core.context.cycle_context import CycleContext, array_blockers, own_blockers, split
from scheduler.core.ordering.ordering import order_jobs
from scheduler.core.placement.candidates import bind_tasks, choose_largest, choose_nodes
from scheduler.core.placement.equivalence import JobClass
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins, resolve
from scheduler.core.plan import Decision, ExpectedStart, Plan, Resume, Start, WaitingColumns, decide
from scheduler.core.policy import Policy
from scheduler.core.preemption.elastic import grow
from scheduler.core.preemption.preemption import awaited_rows, awaiting_decisions, choose_victims, hold_places
from scheduler.core.preemption.suspension import before_them, resume, suspended_rows
from scheduler.core.preemption.taint_eviction import evictions
from scheduler.core.reason_codes import CATEGORY, PRECEDENCE, ReasonCategory, ReasonCode
from scheduler.core.snapshot.snapshot import Snapshot

#: Jobs of a settled group are dropped from the order this many at a time.
_CHUNK = 2048


def plan_cycle(snapshot: Snapshot, policy: Policy, plugins: Plugins = NO_PLUGINS) -> Plan:
    """Decide who starts where, and why everybody else waits.

    Idea: take the jobs in order, try each, write down why it waits if it does not start. The code differs
    in that jobs of one group (equal request, shape, queue, project) are tried until the first that does
    not fit: inside a cycle capacity and quota only shrink, so the others of its group would not fit either.
    """
    # 1. Ids to rows, equal questions to groups, the policy's names to gates and scorers; scratch capacity.
    rules = resolve(policy, plugins)
    cluster = ClusterIndex(snapshot)
    context = CycleContext(cluster, rules)

    # 2. Jobs that their own rows or queues stop: they are not looked at.
    decided = DecisionTable(len(snapshot.pending))
    for rows, decision in own_blockers(cluster):
        decided.add(rows, decision)

    # 3. Who goes first.
    order = order_jobs(cluster, policy, rules)
    strict = strict_queues(cluster, policy)
    considered = order[decided.is_clear[order]]

    # 3b. Those for whom others were stopped go before everybody, and what is freed for them is theirs.
    awaited = awaited_rows(cluster, considered)
    first, held = start_awaited(context, awaited)
    considered_next = considered[~np.isin(considered, awaited)] if len(awaited) else considered

    # 3c. Then those that gather nodes: what came free on these is theirs.
    assembly = GangReservations(context, policy.assemblies)
    if assembly.is_open:
        gathering = gathering_rows(cluster, considered_next)
        first += start_in_order(context, gathering)
        considered_next = considered_next[~np.isin(considered_next, gathering)]
        assembly.go_on(first, considered)

    # 3d. Those that stand still go on where their CPUs are free again, after whoever may have them stand still.
    resumes: list[Resume] = []
    still = suspended_rows(context)
    above = considered_next[:0]
    if len(still):
        in_line = strict if policy.backfill == "none" else None
        above = before_them(context, policy.preemption, still, considered_next, strict=in_line)

    def go_on() -> list[FutureUse]:
        resumed, holds = resume(context, still) if len(still) else ([], [])
        resumes.extend(resumed)
        assembly.resumed = holds
        return holds

    # 4. In that order, start whatever fits, whole; with backfill, only what keeps the promises to those ahead.
    expected: tuple[ExpectedStart, ...] = ()
    filled: _Filled | None = None
    if policy.backfill == "none":
        if len(still):
            first += start_in_order(context, above, strict=strict)
            begun = rows_of(snapshot.pending.id, _ids(first), what="pending job")
            considered_next = considered_next[~np.isin(considered_next, begun)]
            go_on()
        starts = first + start_in_order(context, considered_next, strict=strict, assembly=assembly)
    else:
        behind = considered_next[~np.isin(considered_next, above)] if len(above) else considered_next
        filled = start_and_promise(context, above, go_on, behind, policy)
        starts, expected, assembly.promised = first + filled.starts, filled.expected, filled.kept

    # 4b. Large gangs that wait for room may gather nodes as these come free.
    if assembly.is_open:
        for row in considered_next.tolist():
            assembly.offer(row, starts)

    # 5. The headline of everybody else, from what is left.
    waiting = np.ones(len(snapshot.pending), dtype=np.bool_)
    started = np.array([start.job_id for start in starts], dtype=np.int64)
    waiting[rows_of(snapshot.pending.id, started, what="pending job")] = False
    explain_waiting(context, waiting, decided, strict=strict, filled=filled)

    for row, decision in assembly.told:
        decided.set_unless_barred(row, decision)

    # 6. Last, because it disturbs: who has to leave a tainted node, and whom to stop for those that nothing but
    # room keeps waiting.
    evicted = evictions(cluster, policy.preemption.grace_seconds)
    begun = rows_of(
        snapshot.pending.id,
        np.array(sorted(one.job_id for one in assembly.reserves), dtype=np.int64),
        what="pending job",
    )
    # Nobody is stopped for those who go last, or who have just begun to gather.
    resting = np.isin(considered, [*held, *begun.tolist()]) | demoted(snapshot)[considered]
    blocked = considered[waiting[considered] & ~resting]
    disturbed = choose_victims(
        context,
        blocked,
        policy.preemption,
        strict=strict,
        leaving=evicted,
        resize_seconds=policy.resize_seconds,
    )
    grace_seconds = policy.preemption.grace_seconds
    for row, decision in [*awaiting_decisions(cluster, held, grace_seconds), *disturbed.told]:
        decided.add(np.array([row], dtype=np.int64), decision)
    resizes = disturbed.resizes

    # 6b. Where nothing else happens and nobody waits for room, an elastic job may have more of it.
    moves = starts or evicted or disturbed.preempts or resizes or assembly.reserves or assembly.given_back
    if (
        policy.resize_seconds
        and not moves
        and not (waiting[considered] & ~decided.wait_for_people(considered)).any()
    ):
        resizes = grow(context, policy, lambda cluster, plain: plan_cycle(cluster, plain, plugins))

    # 7. The plan, with who is ahead of whom.
    columns = _waiting_columns(cluster, order, waiting, considered, decided)
    decisions, numbers = decided.used(columns.decision)
    return Plan(
        starts=tuple(starts),
        waiting=replace(columns, decision=numbers),
        decisions=decisions,
        expected=_together(expected, tuple(assembly.expected)),
        preempts=(*evicted, *disturbed.preempts),
        resizes=tuple(resizes),
        reserves=tuple(assembly.reserves),
        given_back=tuple(assembly.given_back),
        resumes=tuple(resumes),
    )


def _ids(starts: list[Start]) -> Ints:
    return np.array(sorted(start.job_id for start in starts), dtype=np.int64)


def _together(
    promised: tuple[ExpectedStart, ...], gathered: tuple[ExpectedStart, ...]
) -> tuple[ExpectedStart, ...]:
    """One expected start a job: of a gang that gathers, on the nodes it gathers."""
    own = {one.job_id for one in gathered}
    return tuple(one for one in promised if one.job_id not in own) + gathered


def strict_queues(cluster: ClusterIndex, policy: Policy) -> Bools:
    """By queue, whether a job that waits stops all behind it; not under backfill, which keeps the line itself."""
    if policy.backfill != "none":
        return np.zeros(len(cluster.snapshot.queues), dtype=np.bool_)
    queues = cluster.snapshot.queues.id.tolist()
    return np.array([policy.of_queue(queue_id).strict_order for queue_id in queues], dtype=np.bool_)


def may_pass(cluster: ClusterIndex, policy: Policy) -> Bools:
    """The pending jobs that backfill may start ahead of others (B10), by the policy of their queue."""
    own = [policy.of_queue(queue_id) for queue_id in cluster.snapshot.queues.id.tolist()]
    most = np.array([-1 if one.strict_order else one.backfill_max_priority for one in own], dtype=np.int64)
    may: Bools = cluster.snapshot.pending.priority <= most[cluster.pending_queue]
    return may


def start_awaited(context: CycleContext, awaited: Ints) -> tuple[list[Start], list[int]]:
    """Start those for whom others were stopped, or keep what is free of their place already from others."""
    starts: list[Start] = []
    left: list[int] = []
    for row in awaited.tolist():
        start = try_start(context, row, context.groups.of(row))
        if start is None:
            left.append(row)
        else:
            starts.append(start)
    return starts, hold_places(context, np.array(left, dtype=np.int64)) if left else []


def start_in_order(
    context: CycleContext,
    considered: Ints,
    *,
    strict: Bools | None = None,
    assembly: GangReservations | None = None,
) -> list[Start]:
    """Give nodes, devices and quota to jobs in order; what does not fit waits (strict: and all of its queue).

    Of those that wait a gang may begin to gather nodes, before others after it get them.
    """
    groups, workspace = context.groups, context.workspace
    pending = context.cluster.snapshot.pending
    array_bound = pending.array_max_running
    settled = bytearray(len(groups))
    is_settled = np.frombuffer(settled, dtype=np.uint8)  # the same bytes, for many groups at once
    starts: list[Start] = []
    for begin in range(0, len(considered), _CHUNK):
        rows = considered[begin : begin + _CHUNK]
        rows = rows[is_settled[groups.of_row[rows]] == 0]
        for row, number in zip(rows.tolist(), groups.of_row[rows].tolist(), strict=True):
            if settled[number]:
                continue
            bound = array_bound.item(row)
            if bound and workspace.array_running.get(pending.array_id.item(row), 0) >= bound:
                continue  # others of its group may be in no array, or in one with room
            if workspace.budgets.refuse and workspace.budgets.short(row):
                continue  # others of its group may ask for less time
            group = groups[number]
            start = try_start(context, row, group)
            if start is not None:
                starts.append(start)
                continue
            if context.candidates(group).may_open:
                continue  # it may be one behind it whom it waits for: it is asked again, and stops nobody
            settled[number] = 1
            if assembly is not None and assembly.is_open:
                assembly.offer(row, starts)
            if context.asks_whole(group) and group.shape in context.candidates(group).failed:
                is_settled[groups.of_pair(group.pair)] = 1  # no nodes for it, whoever asks
            in_line = strict is not None and strict.item(group.queue_row)
            if in_line and context.never(group) is None and not context.never_by_quota(group):
                is_settled[groups.queue_row == group.queue_row] = 1
    return starts


class _Filled(NamedTuple):
    """What a pass with backfill came to, and what it knows of those that it left waiting."""

    starts: list[Start]
    expected: tuple[ExpectedStart, ...]
    kept: dict[int, list[FutureUse]]  # by row, what is kept for those that were promised a start
    promised: list[int]  # their rows, the first first; also of those of which nobody knows when
    may_pass: Bools  # of every pending row, whether it may pass others
    untried: Ints  # rows behind the last that was looked at

    def why(self, context: CycleContext, rows: Ints) -> Iterator[tuple[Ints, dict[str, int | str]]]:
        """What jobs are told that would fit, and have to leave the room to those ahead of them."""
        pending, budgets, told = context.cluster.snapshot.pending, context.workspace.budgets, self.promised[0]
        first = min(self.expected, key=lambda one: (one.at_ms, one.job_id), default=None)
        job = first.job_id if first else pending.id.item(told)
        own = ~self.may_pass[rows]
        poor = np.zeros(len(rows), dtype=np.bool_)
        if budgets.refuse:
            poor[:] = [budgets.short(row, beside=told) for row in rows.tolist()]
        untried = np.isin(rows, self.untried) & ~poor & ~own
        yield rows[own], {"job": job, "barred": "priority"}
        yield rows[poor & ~own], {"job": pending.id.item(told), "barred": "budget"}
        yield rows[untried], {"job": job, "barred": "scan"}
        facts: dict[str, int | str] = {"job": job}
        if first:
            # Counted from what it was told first, it may have slipped.
            facts["start_ms"] = max(first.at_ms, context.cluster.snapshot.now_ms)
        yield rows[~own & ~poor & ~untried], facts


def start_and_promise(
    context: CycleContext, above: Ints, go_on: Callable[[], list[FutureUse]], behind: Ints, policy: Policy
) -> _Filled:
    """Start jobs in order, promise a start to the first that do not fit, and fill the gaps with later ones.

    Between those above and those behind `go_on` says what jobs take that stood still, and now go on.
    """
    snapshot = context.cluster.snapshot
    pending = snapshot.pending
    lengths = lengths_ms(
        pending.time_limit_seconds, snapshot.queues.max_wall_seconds[context.cluster.pending_queue]
    )
    ends = np.where(lengths == FOREVER_MS, FOREVER_MS, snapshot.now_ms + lengths)
    may = may_pass(context.cluster, policy)
    room, turns = ClusterBackfill(context, lengths, may), limits_of(policy)
    promises: list[ReservedStart] = []
    for rows in (above, behind):
        if rows is behind:
            for hold in go_on():
                room.runs_on(hold)
        promises = run_backfill(
            rows,
            ends[rows],
            room,
            turns,
            promised_ms=pending.promised_ms[rows],
            wanted=pending.deadline_ms[rows] > 0 if policy.backfill == "deadline" else None,
            given=promises,
        )
    slips = policy.backfill == "aggressive"  # what it was told first is what its delay is counted from
    told = [pending.promised_ms.item(promise.row) if slips else 0 for promise in promises]
    expected = tuple(
        ExpectedStart(
            pending.id.item(promise.row),
            min(promise.at_ms, before or promise.at_ms),
            room.promised_nodes[promise.row],
        )
        for promise, before in zip(promises, told, strict=True)
        if promise.at_ms != FOREVER_MS
    )
    untried = behind[:0]
    if turns.scan and len(promises) == turns.promises:
        last = int(np.flatnonzero(behind == promises[-1].row).max(initial=-1))
        untried = behind[last + 1 + turns.scan :]
    return _Filled(room.starts, expected, room.promised, [promise.row for promise in promises], may, untried)


def try_start(context: CycleContext, row: int, group: JobClass) -> Start | None:
    """Start the pending job in this row with everything it asks for, or change nothing."""
    workspace, pending = context.workspace, context.cluster.snapshot.pending
    request, shape, queue_row = group.question.request, group.shape, group.queue_row
    tasks = shape.tasks
    charges = workspace.charges(group.payer, group.class_index, tasks)
    if workspace.queue_is_full(queue_row) or workspace.limits.short(charges):
        return None
    if workspace.budgets.refuse and workspace.budgets.short(row):
        return None
    if request.per_task.extras and workspace.short_pool(request, tasks) is not None:
        return None
    candidates = context.candidates(group)
    if shape.most > tasks:
        chosen = choose_largest(candidates, shape, context.most_within_limits(group))
    else:
        chosen = choose_nodes(candidates, shape)
    if chosen is None:
        return None
    parts = candidates.parts(chosen[0][0])
    placements, _ = bind_tasks(candidates, chosen)
    if workspace.has_model_lines or len(placements) != tasks:
        tasks = len(placements)
        charges = context.charges_placed(group, placements)
    workspace.take_limits(
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


def explain_waiting(
    context: CycleContext,
    waiting: Bools,
    decided: DecisionTable,
    *,
    strict: Bools,
    filled: _Filled | None = None,
) -> None:
    """Note for every waiting job the strongest of its blockers.

    The same as the first of `context.blockers(group)` for each group, but for all groups at once.
    """
    cluster, groups = context.cluster, context.groups
    rows = np.flatnonzero(waiting)
    met = np.zeros(len(groups), dtype=np.bool_)
    met[groups.of_row[rows]] = True
    of_group = DecisionTable(len(groups), decided)
    of_pair = np.full(int(groups.pair.max(initial=-1)) + 1, -1, dtype=np.int64)
    pairs = groups.pair[met]
    for number in np.flatnonzero(met)[np.unique(pairs, return_index=True)[1]].tolist():
        blockers = context.pair_blockers(groups[number])
        if blockers:
            of_pair[groups.pair[number]] = decided.number(blockers[0])
    of_group.add_numbers(np.arange(len(groups)), of_pair[groups.pair])
    for queue_row in range(len(cluster.snapshot.queues)):
        full = context.queue(queue_row)
        if full is not None:
            of_group.add(np.flatnonzero(groups.queue_row == queue_row), full)
    for numbers, (line, need) in split(*context.short_groups()):
        for row in np.unique(groups.payer[numbers]).tolist():
            decision = context.quota_line(line, need, row)
            if decision is not None:
                of_group.add(numbers[groups.payer[numbers] == row], decision)
    for number, decision in context.other_models():
        of_group.add(np.array([number], dtype=np.int64), decision)

    decided.add_numbers(rows, of_group.of_row[groups.of_row[rows]])
    for array_rows, decision in array_blockers(cluster, context.workspace):
        decided.add(array_rows, decision)
    for poor, decision in context.workspace.budgets.blockers():
        decided.add(poor[waiting[poor]], decision)
    # Only a strict order and backfill leave a job that would fit; an outside filter may also have changed its mind.
    clear = rows[decided.is_clear[rows]]
    for queue_row in np.unique(cluster.pending_queue[clear]).tolist():
        here = clear[cluster.pending_queue[clear] == queue_row]
        queue = cluster.snapshot.queues.name[queue_row]
        if strict[queue_row]:
            decided.add(here, decide(ReasonCode.PRIORITY, queue=queue))
        elif filled is not None and filled.promised:
            for rows, facts in filled.why(context, here):
                decided.add(rows, decide(ReasonCode.PRIORITY, queue=queue, **facts))
        else:
            decided.add(here, decide(ReasonCode.NOT_EVALUATED_YET, queue=queue))


class DecisionTable:
    """The strongest decision noted for each row, equal decisions kept once."""

    def __init__(self, count: int, shared: DecisionTable | None = None) -> None:
        self.of_row: Ints = np.full(count, -1, dtype=np.int64)
        self._decisions: list[Decision] = shared._decisions if shared else []
        self._numbers: dict[Decision, int] = shared._numbers if shared else {}
        self._rank: list[int] = shared._rank if shared else []

    def set_unless_barred(self, row: int, decision: Decision) -> None:
        """Note a decision whatever is noted already, unless that is about a limit or a person, and the stronger."""
        noted = self.of_row.item(row)
        barred = noted >= 0 and self._rank[noted] < PRECEDENCE[ReasonCode.WAITING_FOR_PREEMPTION]
        if not barred or PRECEDENCE[decision.reason] < self._rank[noted]:
            self.of_row[row] = self.number(decision)

    @property
    def is_clear(self) -> Bools:
        """Rows without any decision."""
        return self.of_row < 0

    def number(self, decision: Decision) -> int:
        number = self._numbers.setdefault(decision, len(self._decisions))
        if number == len(self._decisions):
            self._decisions.append(decision)
            self._rank.append(PRECEDENCE[decision.reason])
        return number

    def add(self, rows: Ints, decision: Decision) -> None:
        if len(rows):
            self.add_numbers(rows, np.full(len(rows), self.number(decision), dtype=np.int64))

    def add_numbers(self, rows: Ints, numbers: Ints) -> None:
        """Note a decision (or -1) for each row where it is stronger than what is there."""
        rank = np.array([*self._rank, len(ReasonCode)], dtype=np.int64)  # -1 reads the last: weaker than all
        stronger = rank[numbers] < rank[self.of_row[rows]]
        self.of_row[rows[stronger]] = numbers[stronger]

    def wait_for_people(self, rows: Ints) -> Bools:
        """Of these rows, those that wait for somebody to change something, and not for room or a turn."""
        persons = {ReasonCategory.FIX, ReasonCategory.ASK}
        flags = [CATEGORY[decision.reason] in persons for decision in self._decisions]
        return np.array([*flags, False], dtype=np.bool_)[self.of_row[rows]]

    def waits_in_turn(self) -> Bools:
        """Of each decision, and of -1: whether its jobs wait for nothing but their turn."""
        flags = [CATEGORY[decision.reason] is ReasonCategory.WAIT for decision in self._decisions]
        return np.array([*flags, False], dtype=np.bool_)

    def used(self, numbers: Ints) -> tuple[tuple[Decision, ...], Ints]:
        """The decisions that occur, numbered anew in the order they were first noted."""
        occurs = np.zeros(len(self._decisions), dtype=np.bool_)
        occurs[numbers] = True
        kept = tuple(self._decisions[number] for number in np.flatnonzero(occurs).tolist())
        return kept, (np.cumsum(occurs) - 1)[numbers]


def _waiting_columns(
    cluster: ClusterIndex, order: Ints, waiting: Bools, considered: Ints, decided: DecisionTable
) -> WaitingColumns:
    """Each waiting job with its decision and how many jobs and GPUs that wait their turn are before it."""
    pending = cluster.snapshot.pending
    counts = np.zeros(len(pending), dtype=np.int64)
    counts[considered] = 1
    counts = np.where(waiting & decided.waits_in_turn()[decided.of_row], counts, 0)
    per_task = np.array(
        [request.per_task.gpus for request in cluster.snapshot.classes] or [0], dtype=np.int64
    )
    gpus = counts * per_task[pending.class_index] * pending.tasks
    ahead_jobs, ahead_gpus = np.zeros_like(counts), np.zeros_like(counts)
    ahead_jobs[order] = np.cumsum(counts[order]) - counts[order]
    ahead_gpus[order] = np.cumsum(gpus[order]) - gpus[order]
    rows = np.flatnonzero(waiting)
    return WaitingColumns(
        job_id=pending.id[rows],
        decision=decided.of_row[rows],
        ahead_jobs=ahead_jobs[rows],
        ahead_gpus=ahead_gpus[rows],
    )
