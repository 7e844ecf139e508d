"""Orders for a node: the tasks that it is to start, stop, suspend or resume; asked again, the answer is the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.db import transaction

from infra.db.prepared import ask
from scheduler.agent.protocol import Assignment, Stop
from scheduler.core.lifecycle import StopReason, TaskState
from scheduler.models import Node
from scheduler.services.execution.assignments import take_tasks
from scheduler.services.execution.older_agents import put_back
from scheduler.state.db.sql import int_array, run
from scheduler.state.lifecycle.verdicts import NEVER_STARTED
from scheduler.state.settle.settle import settle_many

#: Tasks of one answer; more come with the next.
MAX_ASSIGNMENTS: Final = 1000


@dataclass(slots=True)
class Orders:
    """One answer to one node."""

    assignments: list[Assignment] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    verify: list[list[int]] = field(default_factory=list)
    #: Tasks whose processes are to be suspended (1) or resumed (0): [task, epoch, 0 or 1].
    pauses: list[list[int]] = field(default_factory=list)
    #: Tasks that somebody wants a checkpoint of: [task, epoch, number of the request].
    checkpoints: list[list[int]] = field(default_factory=list)
    #: Tasks whose job has become smaller: [task, epoch, size, ranks that are left].
    worlds: list[list[Any]] = field(default_factory=list)
    #: Tasks with another time limit than they were given: [task, epoch, seconds], 0 = none.
    limits: list[list[int]] = field(default_factory=list)
    #: Tasks that the database does not know: the agent is to say whose they are.
    describe: list[list[int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.assignments
            or self.stops
            or self.verify
            or self.pauses
            or self.checkpoints
            or self.describe
            or self.worlds
            or self.limits
        )


class _LiveTask(NamedTuple):
    """A task that should be on a node, with its attempt: a row of `_LIVE`."""

    node: int
    task: int
    state: str
    epoch: int
    attempt: int
    stop_asked: bool
    stop_reason: str
    grace_seconds: int | None
    suspend_asked: bool
    suspended: bool
    #: When somebody asked for a checkpoint that its node has not heard of, in milliseconds since 1970; an agent that
    #: does not answer to that is not asked for ever.
    checkpoint_asked: int | None
    #: Of an attempt that was made smaller: the ranks that are to go on, in order.
    ranks_left: list[int] | None
    #: The time limit that the job was given while it ran, 0 = none; null where that was not changed.
    changed_limit: int | None

    @property
    def is_to_stop(self) -> bool:
        """Its attempt is to stop, or this task alone because its job becomes smaller."""
        return self.stop_asked or self.state == TaskState.STOPPING

    @property
    def is_to_start(self) -> bool:
        return self.state in (TaskState.ASSIGNED, TaskState.STARTING)

    @property
    def is_to_suspend_or_resume(self) -> bool:
        return self.state == TaskState.RUNNING and self.suspended != self.suspend_asked

    @property
    def stop(self) -> Stop:
        default = StopReason.CANCELLED if self.stop_asked else StopReason.PREEMPTED
        return Stop(
            task=self.task,
            epoch=self.epoch,
            reason=(self.stop_asked and self.stop_reason) or default.value,
            grace_seconds=settings.MUSTER_GRACE_SECONDS if self.grace_seconds is None else self.grace_seconds,
            stale=False,
        )


def orders_for(node: Node, known: Mapping[int, int], *, give: bool = True) -> Orders:
    """Compare what should be on the node with what its agent knows (task id -> epoch).

    - Assigned here and unknown there: to be started, perhaps for the second time; put back in the queue where the
      agent is too old for it.
    - Asked to stop: to be stopped, until it is reported ended. Where no agent has fetched it, it ends here.
    - To be suspended or resumed: ordered until it is reported so.
    - Known there and not live here: stale, to be stopped.
    - With another time limit than it was given: ordered until the agent says that it has it.
    - Running here and unknown there: the agent is asked to verify; only its answer makes the task lost.

    With `give` False nothing new is handed out.
    """
    return orders_together([(node, known)], give=give)[0]


def orders_together(asked: Sequence[tuple[Node, Mapping[int, int]]], *, give: bool = True) -> list[Orders]:
    """The same for several nodes at once, in their order: one look at the rows, one transaction that hands out."""
    by_node: dict[int, list[_LiveTask]] = {node.pk: [] for node, _ in asked}
    for row in _live_tasks(by_node):
        by_node[row.node].append(row)
    compared = [_compare(by_node[node.pk], known) for node, known in asked]
    if unstarted := {attempt for one in compared for attempt in one.unstarted}:
        end_unstarted(unstarted)
    to_start = {task for one in compared for task in one.to_start[:MAX_ASSIGNMENTS]} if give else set()
    nodes = {node.pk: node for node, _ in asked}
    if to_start and (to_start := put_back(nodes, to_start)):
        given = take_tasks(nodes, sorted(to_start))
        for (node, _), one in zip(asked, compared, strict=True):
            one.orders.assignments = given.get(node.pk, [])
    return [one.orders for one in compared]


@dataclass(slots=True)
class _Compared:
    """The orders for a node, but for what it is to start; and attempts that are to stop and never began."""

    orders: Orders = field(default_factory=Orders)
    to_start: list[int] = field(default_factory=list)
    unstarted: set[int] = field(default_factory=set)


def _compare(live: Sequence[_LiveTask], known: Mapping[int, int]) -> _Compared:
    found = _Compared()
    for row in live:
        is_known = known.get(row.task) == row.epoch
        if row.stop_asked and row.state == TaskState.ASSIGNED:
            found.unstarted.add(row.attempt)
            continue
        if row.is_to_stop:
            found.orders.stops.append(row.stop)
        elif not is_known and row.is_to_start:
            found.to_start.append(row.task)
            continue
        elif row.is_to_suspend_or_resume and is_known:
            found.orders.pauses.append([row.task, row.epoch, int(row.suspend_asked)])
        elif row.checkpoint_asked is not None and is_known:
            found.orders.checkpoints.append([row.task, row.epoch, row.checkpoint_asked])
        if not is_known:
            found.orders.verify.append([row.task, row.epoch])
    found.orders.worlds = _worlds(live, known)
    found.orders.limits = _limits(live, known)
    epochs = {row.task: row.epoch for row in live}
    found.orders.stops += stale_stops(pair for pair in known.items() if epochs.get(pair[0]) != pair[1])
    return found


def _worlds(live: Sequence[_LiveTask], known: Mapping[int, int]) -> list[list[Any]]:
    """The tasks that go on in a job which has become smaller, with how many they are and their ranks."""
    return [
        [row.task, row.epoch, len(row.ranks_left), ranges_of(row.ranks_left)]
        for row in live
        if row.ranks_left and known.get(row.task) == row.epoch and not row.is_to_stop
    ]


def _limits(live: Sequence[_LiveTask], known: Mapping[int, int]) -> list[list[int]]:
    """The tasks that go on with another time limit than they were given."""
    return [
        [row.task, row.epoch, row.changed_limit]
        for row in live
        if row.changed_limit is not None and known.get(row.task) == row.epoch and not row.is_to_stop
    ]


def ranges_of(numbers: Sequence[int]) -> str:
    """Rising numbers as text: `0-2,5`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def stale_stops(stale: Iterable[tuple[int, int]]) -> list[Stop]:
    """Orders for tasks (task, epoch) that an agent knows and that are not live here."""
    grace = settings.MUSTER_GRACE_SECONDS
    return [
        Stop(task=task, epoch=epoch, reason=StopReason.STALE_EPOCH.value, grace_seconds=grace, stale=True)
        for task, epoch in stale
    ]


_LIVE: Final = """
SELECT t.node_id, t.id, t.state, a.epoch, a.id, a.stop_asked_at IS NOT NULL, a.stop_reason, a.grace_seconds,
    a.suspend_asked_at IS NOT NULL, t.suspended,
    CASE WHEN t.checkpoint_asked_at > now() - interval '1 minute'
        THEN (extract(epoch FROM t.checkpoint_asked_at) * 1000)::bigint END,
    CASE WHEN a.resized_at IS NOT NULL THEN ARRAY(SELECT other.rank FROM scheduler_task other
        WHERE other.attempt_id = a.id AND other.is_live AND other.state <> 'stopping' ORDER BY other.rank) END,
    CASE WHEN a.limit_changed_at IS NOT NULL THEN (SELECT coalesce(r.time_limit_seconds, 0)
        FROM scheduler_jobrequest r WHERE r.number = a.job_id) END
FROM scheduler_task t JOIN scheduler_attempt a ON a.id = t.attempt_id
WHERE t.node_id = ANY(%s::bigint[]) AND t.is_live AND t.released_at IS NULL ORDER BY t.id
"""


def _live_tasks(node_ids: Iterable[int]) -> list[_LiveTask]:
    return [_LiveTask(*row) for row in ask(_LIVE, [int_array(node_ids)])]


def end_unstarted(attempt_ids: Iterable[int], *, text: str = NEVER_STARTED) -> None:
    """End tasks that were never sent to an agent: they need no confirmation from it. `text` says why."""
    ids = sorted(attempt_ids)
    with transaction.atomic():
        _lock_jobs_of(ids)
        run(
            "UPDATE scheduler_task t SET state = %s, ended_at = now(), end_text = %s"
            " FROM scheduler_attempt a WHERE a.id = t.attempt_id AND a.id = ANY(%s)"
            " AND a.stop_asked_at IS NOT NULL AND t.state = %s",
            [TaskState.STOPPED.value, text, ids, TaskState.ASSIGNED.value],
        )
    settle_many(ids)


def _lock_jobs_of(attempt_ids: Sequence[int]) -> None:
    run(
        "SELECT number FROM scheduler_job WHERE number IN"
        " (SELECT job_id FROM scheduler_attempt WHERE id = ANY(%s)) ORDER BY number FOR NO KEY UPDATE",
        [list(attempt_ids)],
    )
