"""The cycle: plan_cycle, a snapshot in and a plan out, as numbered steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduler.core.blockers import Answers, array_blockers, decide, own_blockers
from scheduler.core.columns import Bools, Ints, rows_of
from scheduler.core.groups import Groups, group_jobs
from scheduler.core.ordering import job_order
from scheduler.core.placement import choose_nodes, take_tasks
from scheduler.core.plan import Decision, Plan, Start, WaitingColumns
from scheduler.core.plugins import NO_PLUGINS, Plugins, resolve
from scheduler.core.policy import Policy
from scheduler.core.reasons import CATEGORY, PRECEDENCE, ReasonCategory, ReasonCode
from scheduler.core.snapshot import Snapshot
from scheduler.core.workspace import Workspace
from scheduler.core.world import World

#: Jobs of a settled group are dropped from the order this many at a time.
_CHUNK = 2048


def plan_cycle(snapshot: Snapshot, policy: Policy, plugins: Plugins = NO_PLUGINS) -> Plan:
    """Decide who starts where, and why everybody else waits.

    Idea: take the jobs in order, try each, write down why it waits if it does not start. The code differs
    in that jobs of one group (equal request, shape, queue, project) are tried until the first that does
    not fit: inside a cycle capacity and quota only shrink, so the others of its group would not fit either.
    """
    # 1. Ids to rows; scratch capacity, devices and limits; the policy's names to gates and scorers.
    rules = resolve(policy, plugins)
    world = World(snapshot)
    workspace = Workspace(world)
    answers = Answers(world, workspace, rules)

    # 2. Jobs that are the same question.
    groups = group_jobs(world)

    # 3. Jobs that their own rows or queues stop: they are not looked at.
    notes = _Notes(len(snapshot.pending))
    for rows, decision in own_blockers(world):
        notes.add(rows, decision)

    # 4. Who goes first.
    order = job_order(world, policy, rules.orders)

    # 5. In that order, start whatever fits, whole.
    considered = order[notes.is_clear[order]]
    starts = start_in_order(answers, groups, considered, strict=policy.strict_order)

    # 6. The headline of everybody else, from what is left.
    waiting = np.ones(len(snapshot.pending), dtype=np.bool_)
    started = np.array([start.job_id for start in starts], dtype=np.int64)
    waiting[rows_of(snapshot.pending.id, started, what="pending job")] = False
    explain_waiting(answers, groups, waiting, notes, strict=policy.strict_order)

    # 7. The plan, with who is ahead of whom.
    columns = _waiting_columns(world, order, waiting, considered, notes)
    kept, numbers = np.unique(columns.decision, return_inverse=True)
    return Plan(
        starts=tuple(starts),
        waiting=replace(columns, decision=numbers),
        decisions=tuple(notes.decisions[number] for number in kept.tolist()),
    )


def start_in_order(answers: Answers, groups: Groups, considered: Ints, *, strict: bool) -> list[Start]:
    """Give nodes, devices and quota to jobs in order; what does not fit waits (strict: and all after it)."""
    world = answers.world
    pending = world.snapshot.pending
    array_ids, array_bounds = pending.array_id, pending.array_max_running
    settled = bytearray(len(groups))
    is_settled = np.frombuffer(settled, dtype=np.uint8)  # the same bytes, for whole chunks at once
    starts: list[Start] = []
    stopped_queues: set[int] = set()
    for begin in range(0, len(considered), _CHUNK):
        rows = considered[begin : begin + _CHUNK]
        rows = rows[is_settled[groups.of_row[rows]] == 0]
        for row, number in zip(rows.tolist(), groups.of_row[rows].tolist(), strict=True):
            if settled[number]:
                continue
            bound = int(array_bounds[row])
            if bound and answers.workspace.array_running.get(int(array_ids[row]), 0) >= bound:
                continue  # another job of this group may be in no array, or in one with room
            group = answers.group(groups.first_row[number])
            start = (
                None
                if group.queue_row in stopped_queues
                else try_start(answers, row, groups.first_row[number])
            )
            if start is not None:
                starts.append(start)
                continue
            settled[number] = 1
            if strict and answers.never(group) is None and not _never_by_quota(answers.quota(group)):
                stopped_queues.add(group.queue_row)
    return starts


def try_start(answers: Answers, row: int, group_row: int) -> Start | None:
    """Start the pending job in this row with everything it asks for, or change nothing."""
    world, workspace = answers.world, answers.workspace
    pending = world.snapshot.pending
    group = answers.group(group_row)
    request, tasks = group.question.request, group.shape.tasks
    charges = workspace.charges(group.project_row, group.class_index, tasks)
    if workspace.queue_is_full(group.queue_row) or workspace.short_quota(charges) is not None:
        return None
    if request.per_task.extras and workspace.short_pool(request, tasks) is not None:
        return None
    candidates = answers.candidates(group)
    chosen = choose_nodes(candidates, group.shape)
    if chosen is None:
        return None
    parts = candidates.parts(chosen[0][0])
    placements = take_tasks(candidates, chosen)
    workspace.take_limits(
        queue_row=group.queue_row,
        array_id=int(pending.array_id[row]),
        charges=charges,
        request=request,
        tasks=tasks,
    )
    return Start(
        job_id=int(pending.id[row]),
        generation=int(pending.generation[row]),
        queue_id=int(pending.queue_id[row]),
        project_id=int(pending.project_id[row]),
        per_task=request.per_task,
        placements=placements,
        scores=parts,
    )


def explain_waiting(answers: Answers, groups: Groups, waiting: Bools, notes: _Notes, *, strict: bool) -> None:
    """Note for every waiting job the strongest of its blockers."""
    world = answers.world
    for rows, decision in array_blockers(world, answers.workspace):
        notes.add(rows, decision)
    rows = np.flatnonzero(waiting)
    headline = np.full(len(groups), -1, dtype=np.int64)
    for number in np.unique(groups.of_row[rows]).tolist():
        blockers = answers.blockers(answers.group(groups.first_row[number]))
        if blockers:
            headline[number] = notes.number(blockers[0])
    notes.add_numbers(rows, headline[groups.of_row[rows]])
    clear = rows[notes.is_clear[rows]]
    # Only a strict order leaves a job that would fit; an outside filter may also have changed its mind.
    for queue_row in np.unique(world.pending_queue[clear]).tolist():
        here = clear[world.pending_queue[clear] == queue_row]
        reason = ReasonCode.PRIORITY if strict else ReasonCode.NOT_EVALUATED_YET
        notes.add(here, decide(reason, queue=world.snapshot.queues.name[queue_row]))


class _Notes:
    """The strongest decision noted for each pending row, equal decisions kept once."""

    def __init__(self, count: int) -> None:
        self.decisions: list[Decision] = []
        self.of_row: Ints = np.full(count, -1, dtype=np.int64)
        self._numbers: dict[Decision, int] = {}
        self._rank: list[int] = []

    @property
    def is_clear(self) -> Bools:
        """Rows without any decision."""
        return self.of_row < 0

    def number(self, decision: Decision) -> int:
        if decision not in self._numbers:
            self._numbers[decision] = len(self.decisions)
            self.decisions.append(decision)
            self._rank.append(PRECEDENCE[decision.reason])
        return self._numbers[decision]

    def add(self, rows: Ints, decision: Decision) -> None:
        if len(rows):
            self.add_numbers(rows, np.full(len(rows), self.number(decision), dtype=np.int64))

    def add_numbers(self, rows: Ints, numbers: Ints) -> None:
        """Note a decision (or -1) for each row where it is stronger than what is there."""
        rank = np.array([*self._rank, len(ReasonCode)], dtype=np.int64)  # -1 reads the last: weaker than all
        stronger = rank[numbers] < rank[self.of_row[rows]]
        self.of_row[rows[stronger]] = numbers[stronger]


def _waiting_columns(
    world: World, order: Ints, waiting: Bools, considered: Ints, notes: _Notes
) -> WaitingColumns:
    """Each waiting job with its decision and how many jobs and GPUs that wait their turn are before it."""
    pending = world.snapshot.pending
    in_turn = np.array(
        [CATEGORY[decision.reason] is ReasonCategory.WAIT for decision in notes.decisions] or [False],
        dtype=np.bool_,
    )
    counts = np.zeros(len(pending), dtype=np.int64)
    counts[considered] = 1
    counts = np.where(waiting & in_turn[notes.of_row], counts, 0)
    per_task = np.array([request.per_task.gpus for request in world.snapshot.classes] or [0], dtype=np.int64)
    gpus = counts * per_task[pending.class_index] * pending.tasks
    ahead_jobs, ahead_gpus = np.zeros_like(counts), np.zeros_like(counts)
    ahead_jobs[order] = np.cumsum(counts[order]) - counts[order]
    ahead_gpus[order] = np.cumsum(gpus[order]) - gpus[order]
    rows = np.flatnonzero(waiting)
    return WaitingColumns(
        job_id=pending.id[rows],
        decision=notes.of_row[rows],
        ahead_jobs=ahead_jobs[rows],
        ahead_gpus=ahead_gpus[rows],
    )


def _never_by_quota(decisions: list[Decision]) -> bool:
    """A job larger than a bound waits for a person, not for a turn: it must not stop its queue."""
    return any(d.reason in {ReasonCode.EXCEEDS_MAX_QUOTA, ReasonCode.QUOTA_ZERO} for d in decisions)
