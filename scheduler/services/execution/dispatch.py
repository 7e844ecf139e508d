"""What a node is told: the tasks it is to start, and those it is to stop; asked again, the answer is the same."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from infra.db.prepared import ask, ask_together
from scheduler import outbox
from scheduler.agent.protocol import Assignment, Stop
from scheduler.core.lifecycle import AttemptState, StopReason, TaskState
from scheduler.models import Device, Node
from scheduler.state.db.sql import Rows, Statement, int_array, run
from scheduler.state.lifecycle.verdicts import NEVER_STARTED
from scheduler.state.settle.settle import settle_many

#: Tasks of one answer; more come with the next.
MAX_ASSIGNMENTS: Final = 1000
#: Rendezvous ports of jobs with several tasks: one of these, by job number.
FIRST_PORT: Final = 20_000
PORTS: Final = 20_000


@dataclass(slots=True)
class Orders:
    """One answer to one node."""

    assignments: list[Assignment] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    verify: list[list[int]] = field(default_factory=list)
    #: Tasks whose processes are to stand still (1) or to go on (0): [task, epoch, 0 or 1].
    pauses: list[list[int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.assignments or self.stops or self.verify or self.pauses)


@dataclass(frozen=True, slots=True)
class _Live:
    task: int
    state: str
    epoch: int
    attempt: int
    stop_asked: bool
    stop_reason: str
    grace_seconds: int | None
    suspend_asked: bool
    suspended: bool


def orders_for(node: Node, known: Mapping[int, int], *, give: bool = True) -> Orders:
    """Compare what should be on the node with what its agent knows (task id -> epoch).

    - Assigned here and not known there: to be started; it may be the second time we say so.
    - Asked to stop: to be stopped, until it is reported ended.
    - To stand still, or to go on: told until it is reported so.
    - Known there and not live here: nobody waits for it, it is stale.
    - Running here and not known there: the agent is asked to verify; only its own word makes it lost.
    """
    orders = Orders()
    live = _live_tasks(node.pk)
    fresh: list[int] = []
    unstarted: set[int] = set()
    grace = settings.MUSTER_GRACE_SECONDS
    for row in live:
        is_known = known.get(row.task) == row.epoch
        if row.stop_asked and row.state == TaskState.ASSIGNED:
            unstarted.add(row.attempt)
        elif row.stop_asked:
            orders.stops.append(
                Stop(
                    task=row.task,
                    epoch=row.epoch,
                    reason=row.stop_reason or StopReason.CANCELLED.value,
                    grace_seconds=grace if row.grace_seconds is None else row.grace_seconds,
                    stale=False,
                )
            )
            if not is_known:
                orders.verify.append([row.task, row.epoch])
        elif row.state == TaskState.STOPPING:  # this one alone: its job is made smaller
            orders.stops.append(
                Stop(
                    task=row.task,
                    epoch=row.epoch,
                    reason=StopReason.PREEMPTED.value,
                    grace_seconds=grace if row.grace_seconds is None else row.grace_seconds,
                    stale=False,
                )
            )
            if not is_known:
                orders.verify.append([row.task, row.epoch])
        elif is_known:
            if row.state == TaskState.RUNNING and row.suspended != row.suspend_asked:
                orders.pauses.append([row.task, row.epoch, int(row.suspend_asked)])
        elif row.state in (TaskState.ASSIGNED, TaskState.STARTING):
            fresh.append(row.task)
        else:
            orders.verify.append([row.task, row.epoch])
    alive = {row.task: row.epoch for row in live}
    orders.stops += [
        Stop(task=task, epoch=epoch, reason=StopReason.STALE_EPOCH.value, grace_seconds=grace, stale=True)
        for task, epoch in known.items()
        if alive.get(task) != epoch
    ]
    if unstarted:
        end_unstarted(unstarted)
    if fresh and give:
        orders.assignments = _take(node, fresh[:MAX_ASSIGNMENTS])
    return orders


def stale_stops(stale: Iterable[tuple[int, int]]) -> list[Stop]:
    """Orders for tasks that an agent has reported and nobody waits for."""
    grace = settings.MUSTER_GRACE_SECONDS
    return [
        Stop(task=task, epoch=epoch, reason=StopReason.STALE_EPOCH.value, grace_seconds=grace, stale=True)
        for task, epoch in stale
    ]


_LIVE: Final = """
SELECT t.id, t.state, a.epoch, a.id, a.stop_asked_at IS NOT NULL, a.stop_reason, a.grace_seconds,
    a.suspend_asked_at IS NOT NULL, t.suspended
FROM scheduler_task t JOIN scheduler_attempt a ON a.id = t.attempt_id
WHERE t.node_id = %s AND t.state IN ('assigned', 'starting', 'running', 'stopping') ORDER BY t.id
"""


def _live_tasks(node_id: int) -> list[_Live]:
    return [_Live(*row) for row in ask(_LIVE, [node_id])]


def end_unstarted(attempt_ids: Iterable[int]) -> None:
    """Tasks that no agent was given need nobody's word to be over."""
    ids = sorted(attempt_ids)
    with transaction.atomic():
        _lock_jobs_of(ids)
        run(
            "UPDATE scheduler_task t SET state = %s, ended_at = now(), end_text = %s"
            " FROM scheduler_attempt a WHERE a.id = t.attempt_id AND a.id = ANY(%s)"
            " AND a.stop_asked_at IS NOT NULL AND t.state = %s",
            [TaskState.STOPPED.value, NEVER_STARTED, ids, TaskState.ASSIGNED.value],
        )
    settle_many(ids)


def _lock_jobs_of(attempt_ids: Sequence[int]) -> None:
    run(
        "SELECT number FROM scheduler_job WHERE number IN"
        " (SELECT job_id FROM scheduler_attempt WHERE id = ANY(%s)) ORDER BY number FOR NO KEY UPDATE",
        [list(attempt_ids)],
    )


# ---------------------------------------------------------------- give tasks to a node


@transaction.atomic
def _take(node: Node, task_ids: list[int]) -> list[Assignment]:
    """Mark these as starting and describe them; those that were asked to stop meanwhile stay out."""
    ids = int_array(task_ids)
    _, rows = ask_together((_LOCK_JOBS, [ids]), (_STARTABLE, [ids]))
    new_tasks = [row[0] for row in rows if row[3] == TaskState.ASSIGNED]
    new_attempts = sorted({row[2] for row in rows if row[4] == AttemptState.ASSIGNED})
    moves: list[Statement] = []
    if new_tasks:
        moves.append((_START_TASKS, [int_array(new_tasks)]))
    if new_attempts:
        attempts = int_array(new_attempts)
        because = [timezone.now(), f"taken by {node.name}"]
        moves += [(_START_ATTEMPTS, [attempts]), (_START_JOBS, [attempts, *because])]
    attempts = int_array(sorted({row[2] for row in rows}))
    *_, described, held = ask_together(*moves, (_DESCRIBED, [attempts]), (_HELD_DEVICES, [attempts, node.pk]))
    told = [_Told(*row) for row in described]
    known = set(new_attempts)
    outbox.announce_many(outbox.job_topic(one.job) for one in told if one.attempt in known)
    return _describe(node, [(row[0], row[1], row[2]) for row in rows], told, held)


_LOCK_JOBS: Final = """
SELECT number FROM scheduler_job WHERE number IN (SELECT a.job_id FROM scheduler_attempt a
    JOIN scheduler_task t ON t.attempt_id = a.id WHERE t.id = ANY(%s::bigint[]))
ORDER BY number FOR NO KEY UPDATE
"""
_STARTABLE: Final = """
SELECT t.id, t.rank, t.attempt_id, t.state, a.state FROM scheduler_task t
    JOIN scheduler_attempt a ON a.id = t.attempt_id
WHERE t.id = ANY(%s::bigint[]) AND t.state IN ('assigned', 'starting') AND a.stop_asked_at IS NULL ORDER BY t.id
"""
_START_TASKS: Final = "UPDATE scheduler_task SET state = 'starting' WHERE id = ANY(%s::bigint[])"
_START_ATTEMPTS: Final = """
UPDATE scheduler_attempt SET state = 'starting' WHERE id = ANY(%s::bigint[]) AND state = 'assigned'
"""
_START_JOBS: Final = """
WITH moved AS (
    UPDATE scheduler_job j SET state = 'starting', generation = j.generation + 1 FROM scheduler_attempt a
    WHERE a.job_id = j.number AND a.id = ANY(%s::bigint[]) AND j.state = 'scheduled'
    RETURNING j.number, a.epoch
)
INSERT INTO scheduler_jobevent (job_id, epoch, kind, because, details, at)
SELECT number, epoch, 'job.starting', because, '{}', at FROM moved, (SELECT %s::timestamptz, %s) told(at, because)
"""
_DESCRIBED: Final = """
SELECT a.id, a.epoch, j.number, j.uuid, j.name, person.username, project.slug, queue.slug, j.command, j.script,
    j.env, j.working_dir, j.cpu_millis, j.memory_mib, j.time_limit_seconds, j.tasks, j.min_tasks, j.gpu_slice,
    j.cpu_limit_millis, j.memory_limit_mib, j.numa, j.array_id, j.array_index
FROM scheduler_attempt a JOIN scheduler_job j ON j.number = a.job_id
    JOIN accounts_user person ON person.id = j.user_id JOIN accounts_project project ON project.id = j.project_id
    JOIN scheduler_queue queue ON queue.id = j.queue_id
WHERE a.id = ANY(%s::bigint[])
"""
_HELD_DEVICES: Final = """
SELECT attempt_id, rank, device_ids FROM scheduler_allocation
WHERE attempt_id = ANY(%s::bigint[]) AND node_id = %s AND device_ids <> '{}'
"""


class _Told(NamedTuple):
    """What the agent is told of an attempt and its job: a row of `_DESCRIBED`."""

    attempt: int
    epoch: int
    job: int
    uuid: UUID
    name: str
    user: str
    project: str
    queue: str
    command: str
    script: str
    env: str
    working_dir: str
    cpu_millis: int
    memory_mib: int
    time_limit_seconds: int | None
    tasks: int
    min_tasks: int | None
    gpu_slice: str
    cpu_limit_millis: int | None
    memory_limit_mib: int | None
    numa: str
    array_id: UUID | None
    array_index: int | None


def _describe(
    node: Node, tasks: Sequence[tuple[int, int, int]], told: Sequence[_Told], held: Rows
) -> list[Assignment]:
    attempts = {one.attempt: one for one in told}
    layouts = _layouts([pk for pk, job in attempts.items() if job.tasks > 1])
    devices = _devices(node.pk, held)
    names = _slice_names(node.pk, devices)
    domains = _domains(node.pk, [pk for pk, job in attempts.items() if job.numa == "one"])
    grace = settings.MUSTER_GRACE_SECONDS
    result: list[Assignment] = []
    for task_id, rank, attempt_id in tasks:
        job = attempts[attempt_id]
        layout = layouts.get(attempt_id) or [(rank, node.pk, node.name, node.address)]
        nodes = list(dict.fromkeys((node_id, name) for _, node_id, name, _ in layout))
        assignment = Assignment(
            task=task_id,
            epoch=job.epoch,
            job=job.job,
            job_id=str(job.uuid),
            name=job.name,
            user=job.user,
            project=job.project,
            queue=job.queue,
            rank=rank,
            tasks=len(layout),
            local_rank=sum(1 for r, node_id, _, _ in layout if node_id == node.pk and r < rank),
            node_rank=[node_id for node_id, _ in nodes].index(node.pk),
            nodes=len(nodes),
            node_names=[name for _, name in nodes],
            master_address=_master(layout, len(nodes)),
            master_port=FIRST_PORT + job.job % PORTS,
            command=job.command,
            script=job.script,
            env={str(key): str(value) for key, value in json.loads(job.env).items()},
            working_dir=job.working_dir,
            devices=devices.get((attempt_id, rank), []),
            cpu_millis=job.cpu_millis,
            memory_mib=job.memory_mib,
            limit_seconds=job.time_limit_seconds,
            grace_seconds=grace,
        )
        if job.gpu_slice and (name := names.get((attempt_id, rank))):
            assignment["device_names"] = [name]
        if job.cpu_limit_millis is not None:
            assignment["cpu_limit_millis"] = job.cpu_limit_millis
        if job.memory_limit_mib is not None:
            assignment["memory_limit_mib"] = job.memory_limit_mib
        if job.numa == "one" and (domain := domains.get((attempt_id, rank))) is not None:
            assignment["numa_domain"] = domain
        if job.min_tasks is not None:
            assignment["least_tasks"], assignment["most_tasks"] = job.min_tasks, job.tasks
        if job.array_id is not None and job.array_index is not None:
            assignment["array_id"] = str(job.array_id)
            assignment["array_index"] = job.array_index
        result.append(assignment)
    return result


def _master(layout: Sequence[tuple[int, int, str, str]], nodes: int) -> str:
    """Where rank 0 is; tasks that share a machine meet on its loopback address."""
    _, _, name, address = layout[0]
    return "127.0.0.1" if nodes == 1 else address or name


def _layouts(attempt_ids: list[int]) -> dict[int, list[tuple[int, int, str, str]]]:
    layouts: dict[int, list[tuple[int, int, str, str]]] = defaultdict(list)
    if attempt_ids:
        for attempt_id, *place in run(
            "SELECT t.attempt_id, t.rank, n.id, n.name, n.address FROM scheduler_task t"
            " JOIN scheduler_node n ON n.id = t.node_id WHERE t.attempt_id = ANY(%s)"
            " ORDER BY t.attempt_id, t.rank",
            [attempt_ids],
        ):
            layouts[attempt_id].append((place[0], place[1], place[2], place[3]))
    return layouts


def _devices(node_id: int, held: Rows) -> dict[tuple[int, int], list[int]]:
    """The devices of each (attempt, rank) on this node, numbered as the node numbers them."""
    if not held:
        return {}
    index = dict(Device.objects.filter(node_id=node_id).values_list("pk", "index"))
    return {(attempt, rank): sorted(index[pk] for pk in ids if pk in index) for attempt, rank, ids in held}


def _domains(node_id: int, attempt_ids: list[int]) -> dict[tuple[int, int], int]:
    """The NUMA domain on this node that each (attempt, rank) is bound to."""
    if not attempt_ids:
        return {}
    held = run(
        "SELECT attempt_id, rank, numa_domain FROM scheduler_allocation"
        " WHERE attempt_id = ANY(%s) AND node_id = %s AND numa_domain IS NOT NULL",
        [attempt_ids, node_id],
    )
    return {(attempt, rank): domain for attempt, rank, domain in held}


def _slice_names(node_id: int, devices: Mapping[tuple[int, int], list[int]]) -> dict[tuple[int, int], str]:
    """What the driver calls the slice that each task is given: a slice has no number of its own there."""
    if not devices:
        return {}
    slices = Device.objects.filter(node_id=node_id, model__contains="MIG ")
    uuids = dict(slices.values_list("index", "uuid"))
    return {
        task: uuids[indices[0]]
        for task, indices in devices.items()
        if len(indices) == 1 and uuids.get(indices[0])
    }
