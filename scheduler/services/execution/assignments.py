"""Tasks handed to a node: marked as starting, and described as its agent needs them."""

from __future__ import annotations

import json
import signal
import socket
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import transaction

from infra.db.prepared import ask_together
from scheduler import outbox
from scheduler.agent.protocol import Assignment, CheckpointTerms, LimitSignal, OutputFiles
from scheduler.core.lifecycle import TaskState
from scheduler.models import Device, Node
from scheduler.models.results.checkpoint_policy import policy_of
from scheduler.services.execution.elements import add_elements, elements_to_run
from scheduler.services.execution.secrets import SecretsOfJob, give_secrets, secrets_of_job
from scheduler.state.db.sql import Rows, int_array, run

#: What a task with a shorter time limit than this has to end after it.
LEAST_GRACE_SECONDS: Final = 5
#: Rendezvous ports of jobs with several tasks: one of these, by job number.
FIRST_PORT: Final = 20_000
PORTS: Final = 20_000


# ---------------------------------------------------------------- take


def take_tasks(nodes: Mapping[int, Node], task_ids: Collection[int]) -> dict[int, list[Assignment]]:
    """Mark these tasks as starting and describe them; those that were asked to stop meanwhile stay out.

    The tasks are of these nodes (by id); so are the answers. All go in one transaction, and secrets are opened after
    that; a task that cannot have those of its job ends instead.

    Only tasks move: what an agent may have begun is theirs to say. Their attempts and jobs become starting where that
    takes longer (`slow_starts`), else they go from scheduled to running, or to their end, with one move.
    """
    given, wanted = _take(nodes, task_ids)
    if wanted:
        give_secrets(nodes, given, wanted)
    return given


@transaction.atomic
def _take(
    nodes: Mapping[int, Node], task_ids: Collection[int]
) -> tuple[dict[int, list[Assignment]], dict[int, SecretsOfJob]]:
    ids = int_array(task_ids)
    _, rows = ask_together((_LOCK_JOBS, [ids]), (_STARTABLE, [ids]))
    tasks = [_StartableTask(*row) for row in rows]
    attempts = int_array(sorted({task.attempt for task in tasks}))
    starting = [task for task in tasks if task.state == TaskState.ASSIGNED]
    *_, described, held = ask_together(
        *([(_START_TASKS, [int_array(task.task for task in starting)])] if starting else []),
        (_DESCRIBED, [attempts]),
        (_HELD_DEVICES, [attempts, int_array(nodes)]),
    )
    by_attempt = {row[0]: _AttemptRow(*row) for row in described}
    outbox.announce_many(outbox.job_topic(by_attempt[task.attempt].job) for task in starting)
    layouts = _layouts([pk for pk, job in by_attempt.items() if job.tasks > 1])
    by_node: dict[int, list[_StartableTask]] = defaultdict(list)
    for task in tasks:
        by_node[task.node].append(task)
    given = {
        node_id: _describe(
            nodes[node_id], its, by_attempt, layouts, [row[1:] for row in held if row[0] == node_id]
        )
        for node_id, its in by_node.items()
    }
    to_run = elements_to_run([job.job for job in by_attempt.values() if job.array_number is not None])
    for assignment in chain.from_iterable(given.values()):
        add_elements(assignment, to_run)
    wanted = {job.job: secrets_of_job(job) for job in by_attempt.values() if job.secrets != "[]"}
    return given, wanted


class _StartableTask(NamedTuple):
    """A row of `_STARTABLE`."""

    task: int
    node: int
    rank: int
    attempt: int
    state: str


_LOCK_JOBS: Final = """
SELECT number FROM scheduler_job WHERE number = ANY(ARRAY(SELECT a.job_id FROM scheduler_attempt a
    JOIN scheduler_task t ON t.attempt_id = a.id WHERE t.id = ANY(%s::bigint[])))
ORDER BY number FOR NO KEY UPDATE
"""
_STARTABLE: Final = """
SELECT t.id, t.node_id, t.rank, t.attempt_id, t.state FROM scheduler_task t
    JOIN scheduler_attempt a ON a.id = t.attempt_id
WHERE t.id = ANY(%s::bigint[]) AND t.state IN ('assigned', 'starting') AND a.stop_asked_at IS NULL ORDER BY t.id
"""
_START_TASKS: Final = "UPDATE scheduler_task SET state = 'starting' WHERE id = ANY(%s::bigint[])"
# Each job has a person, a project and a queue. Joined so, they are looked up by their keys after the job: in a young
# database, whose statistics know one project, the jobs of that project would be read instead, all of them.
_DESCRIBED: Final = """
SELECT a.id, a.epoch, j.number, r.uuid, r.name, person.username, project.slug, queue.slug, r.command, r.script,
    r.env, r.working_dir, r.cpu_millis, r.memory_mib, r.time_limit_seconds, r.tasks, r.min_tasks, r.gpu_slice,
    r.cpu_limit_millis, r.memory_limit_mib, r.numa, r.array_number, r.array_index, r.checkpoint, r.storage_mib,
    queue.scratch_mib, r.output_path, r.error_path, r.open_mode, r.probes,
    CASE WHEN a.epoch > 1 THEN (SELECT min(t.id) FROM scheduler_attempt e JOIN scheduler_task t ON t.attempt_id = e.id
        WHERE e.job_id = j.number) END,
    r.secrets, j.user_id, j.project_id, r.upload, r.image, r.limit_signal,
    (SELECT c.slug FROM scheduler_cluster c WHERE c.id = queue.cluster_id)
FROM scheduler_attempt a JOIN scheduler_job j ON j.number = a.job_id
    JOIN scheduler_jobrequest r ON r.number = a.job_id
    LEFT JOIN accounts_user person ON person.id = j.user_id
    LEFT JOIN accounts_project project ON project.id = j.project_id
    LEFT JOIN scheduler_queue queue ON queue.id = j.queue_id
WHERE a.id = ANY(%s::bigint[])
"""
_HELD_DEVICES: Final = """
SELECT node_id, attempt_id, rank, device_ids FROM scheduler_allocation
WHERE attempt_id = ANY(%s::bigint[]) AND node_id = ANY(%s::bigint[]) AND device_ids <> '{}'
"""


class _AttemptRow(NamedTuple):
    """An attempt and its job, as an assignment describes them: a row of `_DESCRIBED`."""

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
    array_number: int | None
    array_index: int | None
    checkpoint: str  # JSON
    storage_mib: int
    scratch_mib: int | None
    output_path: str
    error_path: str
    open_mode: str
    probes: str  # JSON
    #: Of a later attempt: the lowest number of a task of its job.
    first_task: int | None
    secrets: str  # JSON
    user_id: int
    project_id: int
    upload: UUID | None
    image: str | None
    limit_signal: str  # JSON
    cluster: str | None

    @property
    def scratch_limit_mib(self) -> int:
        """What a task may fill of the disk: as its job asked, else its queue's limit, else the site's; 0 = all."""
        if self.storage_mib:
            return self.storage_mib
        site: int = settings.MUSTER_SCRATCH_MIB
        return site if self.scratch_mib is None else self.scratch_mib


# ---------------------------------------------------------------- describe


class _Place(NamedTuple):
    """Where one rank of an attempt runs."""

    rank: int
    node_id: int
    node: str
    address: str


#: One task of an attempt: (attempt, rank).
_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _OnNode:
    """What the tasks of one answer have on their node, and where the other tasks of their attempts run."""

    node: Node
    layouts: Mapping[int, list[_Place]]
    devices: Mapping[_Key, list[int]]
    slice_names: Mapping[_Key, str]
    domains: Mapping[_Key, int]


def _describe(
    node: Node,
    tasks: Sequence[_StartableTask],
    attempts: Mapping[int, _AttemptRow],
    layouts: Mapping[int, list[_Place]],
    held: Rows,
) -> list[Assignment]:
    devices = _devices(node.pk, held)
    bound = sorted({task.attempt for task in tasks if attempts[task.attempt].numa == "one"})
    on_node = _OnNode(
        node,
        layouts=layouts,
        devices=devices,
        slice_names=_slice_names(node.pk, devices),
        domains=_domains(node.pk, bound),
    )
    assignments = []
    for task in tasks:
        assignment = _assignment(task, attempts[task.attempt], on_node)
        _add_options(assignment, task, attempts[task.attempt], on_node)
        if (first := attempts[task.attempt].first_task) is not None:
            assignment["first_task"] = first
        if (upload := attempts[task.attempt].upload) is not None:
            assignment["upload"] = str(upload)
        if (image := attempts[task.attempt].image) is not None:
            assignment["image"] = image
        assignments.append(assignment)
    return assignments


def _assignment(task: _StartableTask, job: _AttemptRow, on_node: _OnNode) -> Assignment:
    """What every assignment says."""
    node = on_node.node
    layout = on_node.layouts.get(task.attempt) or [_Place(task.rank, node.pk, node.name, node.address)]
    nodes = {place.node_id: place.node for place in layout}  # each once, in order of first rank
    here = [place.rank for place in layout if place.node_id == node.pk]
    devices = {one: on_node.devices.get((task.attempt, one), []) for one in here}
    return Assignment(
        task=task.task,
        epoch=job.epoch,
        job=job.job,
        job_id=str(job.uuid),
        name=job.name,
        user=job.user,
        project=job.project,
        queue=job.queue,
        rank=task.rank,
        tasks=len(layout),
        local_rank=sum(1 for place in layout if place.node_id == node.pk and place.rank < task.rank),
        node_rank=list(nodes).index(node.pk),
        nodes=len(nodes),
        node_names=list(nodes.values()),
        master_address=_master(layout[0], len(nodes)),
        master_port=FIRST_PORT + job.job % PORTS,
        command=job.command,
        script=job.script,
        env={str(key): str(value) for key, value in json.loads(job.env).items()},
        working_dir=job.working_dir,
        devices=devices.get(task.rank, []),
        cluster=job.cluster or "",
        submit_host=socket.gethostname(),
        node_tasks=list(Counter(place.node_id for place in layout).values()),
        node_ranks=here,
        node_devices=sorted(chain.from_iterable(devices.values())),
        cpu_millis=job.cpu_millis,
        memory_mib=job.memory_mib,
        limit_seconds=job.time_limit_seconds,
        grace_seconds=grace_of(job.time_limit_seconds),
    )


def grace_of(time_limit_seconds: int | None) -> int:
    """How long after its time limit a task has to end, in seconds: no longer than the limit itself was, or 5."""
    grace: int = settings.MUSTER_GRACE_SECONDS
    return grace if time_limit_seconds is None else min(grace, max(LEAST_GRACE_SECONDS, time_limit_seconds))


def _add_options(assignment: Assignment, task: _StartableTask, job: _AttemptRow, on_node: _OnNode) -> None:
    """What only the assignments of jobs that asked for it say."""
    key = task.attempt, task.rank
    if job.gpu_slice and (name := on_node.slice_names.get(key)):
        assignment["device_names"] = [name]
    if job.cpu_limit_millis is not None:
        assignment["cpu_limit_millis"] = job.cpu_limit_millis
    if job.memory_limit_mib is not None:
        assignment["memory_limit_mib"] = job.memory_limit_mib
    if limit := job.scratch_limit_mib:
        assignment["scratch_limit_mib"] = limit
    if job.numa == "one" and (domain := on_node.domains.get(key)) is not None:
        assignment["numa_domain"] = domain
    if job.output_path or job.error_path:
        append = job.open_mode == "append"
        assignment["output"] = OutputFiles(stdout=job.output_path, stderr=job.error_path, append=append)
    if job.probes != "[]":
        assignment["probes"] = json.loads(job.probes)
    if job.min_tasks is not None:
        assignment["least_tasks"], assignment["most_tasks"] = job.min_tasks, job.tasks
    if job.array_number is not None and job.array_index is not None:
        assignment["array_id"], assignment["array_index"] = str(job.array_number), job.array_index
    _add_signals(assignment, job)


def _add_signals(assignment: Assignment, job: _AttemptRow) -> None:
    """The signal before the time limit, and how the job is asked for checkpoints."""
    if job.limit_signal != "{}":
        asked = json.loads(job.limit_signal)
        number = int(getattr(signal, f"SIG{asked['signal']}"))
        terms = LimitSignal(signal=number, to=asked["to"], before_seconds=asked["before"])
        assignment["limit_signal"] = terms
    if job.checkpoint == "{}":
        return
    policy = policy_of(json.loads(job.checkpoint))
    if policy is not None:
        assignment["checkpoint"] = CheckpointTerms(
            signal=policy.signal_number,
            to=policy.to,
            grace_seconds=policy.grace,
            every_seconds=policy.every,
        )
        assignment["restore"] = job.epoch > 1


def _master(first: _Place, nodes: int) -> str:
    """The address of rank 0; tasks that share one machine meet on its loopback address."""
    return "127.0.0.1" if nodes == 1 else first.address or first.node


def _layouts(attempt_ids: list[int]) -> dict[int, list[_Place]]:
    """Where each rank of these attempts runs, by rising rank."""
    layouts: dict[int, list[_Place]] = defaultdict(list)
    if attempt_ids:
        for attempt, *place in run(
            "SELECT t.attempt_id, t.rank, n.id, n.name, n.address FROM scheduler_task t"
            " JOIN scheduler_node n ON n.id = t.node_id WHERE t.attempt_id = ANY(%s)"
            " ORDER BY t.attempt_id, t.rank",
            [attempt_ids],
        ):
            layouts[attempt].append(_Place(*place))
    return layouts


def _devices(node_id: int, held: Rows) -> dict[_Key, list[int]]:
    """The devices of each (attempt, rank) on this node, numbered as the node numbers them."""
    if not held:
        return {}
    index = dict(Device.objects.filter(node_id=node_id).values_list("pk", "index"))
    return {(attempt, rank): sorted(index[pk] for pk in ids if pk in index) for attempt, rank, ids in held}


def _domains(node_id: int, attempt_ids: list[int]) -> dict[_Key, int]:
    """The NUMA domain on this node that each (attempt, rank) is bound to."""
    if not attempt_ids:
        return {}
    held = run(
        "SELECT attempt_id, rank, numa_domain FROM scheduler_allocation"
        " WHERE attempt_id = ANY(%s) AND node_id = %s AND numa_domain IS NOT NULL",
        [attempt_ids, node_id],
    )
    return {(attempt, rank): domain for attempt, rank, domain in held}


def _slice_names(node_id: int, devices: Mapping[_Key, list[int]]) -> dict[_Key, str]:
    """The driver's name for the slice that each task is given: a slice has no number there."""
    if not devices:
        return {}
    slices = Device.objects.filter(node_id=node_id, model__contains="MIG ")
    uuids = dict(slices.values_list("index", "uuid"))
    return {
        task: uuids[indices[0]]
        for task, indices in devices.items()
        if len(indices) == 1 and uuids.get(indices[0])
    }
