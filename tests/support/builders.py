"""Builders: small worlds for tests of the core, in words a reader can follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quotas.core.gpu_models import slice_share, sliced
from quotas.core.resources import Resources
from scheduler.core.cluster.numa import Bound, bind, bound_column
from scheduler.core.columns import Columns
from scheduler.core.plan import Plan, Start
from scheduler.core.policy import Policy
from scheduler.core.snapshot.constraints import JobTerm, Preference, Requirement, Taint, TaskTerm, Toleration
from scheduler.core.snapshot.node_isolation import BITS, NEEDED, IsolationLevel
from scheduler.core.snapshot.request_classes import ClassTable, RequestClass, request_class
from scheduler.core.snapshot.snapshot import (
    MUST,
    PACKS,
    AllocationColumns,
    DeviceColumns,
    JobGate,
    NodeColumns,
    PendingColumns,
    PoolColumns,
    ProjectColumns,
    QueueColumns,
    QuotaColumns,
    ReservationColumns,
    RunningColumns,
    Snapshot,
    gathering_id,
)

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
GIB = 1024


@dataclass(frozen=True)
class NodeSpec:
    name: str
    cpus: float = 64
    memory_gib: float = 256
    storage_gib: float = 0
    gpus: int = 0
    model: str = "H100"
    gpu_memory_gib: int = 80
    slices: tuple[str, ...] = ()  # of further devices that are cut, in the positions after the whole ones
    numa: int = 1
    domains: bool = True  # whether it says what its NUMA domains have: its CPUs and memory in even parts
    unhealthy: tuple[int, ...] = ()
    state: str = "up"
    rack: str = ""
    zone: str = ""
    region: str = ""
    overcommit: float = 1  # so many times its cores and memory may be given away
    max_minutes: int = 0  # its partitions allow no more
    faulty: bool = False
    cordoned: bool = False
    draining: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    partitions: tuple[int, ...] = ()
    isolation: tuple[str, ...] = ()  # what holds there, of `node_isolation.BITS`
    id: int | None = None
    first_device_id: int | None = None


@dataclass(frozen=True)
class JobSpec:
    name: str
    request: RequestClass
    queue: str = "main"
    project: str = "vision"
    user: int = 1
    kind: int = 0  # the number of its job type
    priority: int = 50
    submitted: int = 0  # minutes after NOW_MS (negative = before)
    begin: int | None = None
    tasks: int = 1
    nodes: int = 0
    tasks_per_node: int = 0
    minutes: int = 0
    generation: int = 1
    gate: JobGate = JobGate.OPEN
    array: int = 0
    array_max_running: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    id: int | None = None
    deadline: int | None = None  # minutes from now
    most: int = 0  # `tasks` are enough, and it takes up to so many
    pack: str = ""  # "rack" wishes, "rack!" must
    gathers: int = 0  # minutes for which nodes may be kept for it
    gathering: tuple[str, ...] = ()  # nodes that are kept for it already
    gathers_until: int = 0  # minutes from now
    gathered_in_vain: int = 0  # times
    elastic: bool = False  # once it runs its size may change
    preemptible: bool = True  # of a running one its own word counts
    predicted: int = 0  # minutes that one without a limit is expected to run; 0 = unknown
    reservation: str = ""  # the name of the reservation that it names


@dataclass(frozen=True)
class RunningSpec:
    """A job that runs: `on` gives, for each task, a node name and the positions of its devices there."""

    job: JobSpec
    on: tuple[tuple[str, tuple[int, ...]], ...]
    ends_in: int = 0  # minutes from now; 0 = unknown
    started: int = 0  # minutes from now (negative = before)
    saved: int | None = None  # its last checkpoint, the same way
    preemptible: bool = True
    times_preempted: int = 0
    stop_by: int = 0  # minutes from now; 0 = it was not told to end
    stopped_for: str = ""  # the pending job it is stopped for
    least: int = 0  # it may be made as small; `most` of the job is how large
    resized: int | None = None  # minutes from now, its last change of size
    leaving: tuple[int, ...] = ()  # ranks that were told to end
    resized_for: str = ""  # the pending job they make room for
    domains: tuple[int, ...] = ()  # of a job that demands one, of each task the NUMA domain it is bound to
    pause: str = ""  # "asked" to stand still, or "suspended": it holds no CPUs


@dataclass(frozen=True)
class QueueSpec:
    name: str = "main"
    priority: int = 50
    paused: str | None = None  # why
    max_concurrent_jobs: int = 0
    running: int | None = None  # default: as many as run in the world
    partitions: tuple[int, ...] = ()
    max_minutes: int = 0
    isolation: str = ""


@dataclass(frozen=True)
class ReservationSpec:
    name: str
    nodes: tuple[str, ...]
    starts_in: int = 0  # minutes from now
    minutes: int = 60
    projects: tuple[str, ...] = ()
    users: tuple[int, ...] = ()
    jobs: tuple[int, ...] = ()
    #: (node, cores, GiB, positions of devices) of each node of which it holds a part.
    parts: tuple[tuple[str, float, float, tuple[int, ...]], ...] = ()
    magnetic: bool = True


@dataclass(frozen=True)
class ProjectSpec:
    name: str
    share: int = 1
    used_gpu_hours: float = 0


@dataclass(frozen=True)
class QuotaSpec:
    """`above` names the owner of the line above that limits the same thing."""

    resource: str
    hard: int = -1
    projects: tuple[str, ...] = ("vision",)  # several = a line above them
    owner: str = "project vision"
    used: int = 0
    enforce: bool = True
    nominal: int = -1
    borrowing_limit: int = -1
    lending_limit: int = -1
    above: str = ""
    is_pool: bool = False
    model: str = ""
    user: int = 0
    job_type: int = 0
    converge: int | None = None  # minutes from now


def a_node(name: str, **words: Any) -> NodeSpec:
    """`a_node("n1", gpus=4, numa=2)`: 64 cores and 256 GiB unless said; devices split evenly over domains."""
    return NodeSpec(name, **words)


def a_job(
    name: str,
    *,
    cpus: float = 1,
    memory_gib: float = 1,
    storage_gib: float = 0,
    gpus: int = 0,
    share: int = 0,
    slice: str = "",
    model: str = "",
    gpu_memory_gib: int = 0,
    extras: Mapping[str, int] | None = None,
    selector: Mapping[str, str] | None = None,
    tolerations: Iterable[Toleration] = (),
    affinity: Iterable[Iterable[Requirement]] = (),
    partitions: Iterable[int] = (),
    prefers: Iterable[Preference] = (),
    terms: Iterable[JobTerm] = (),
    spread: TaskTerm | None = None,
    cpu_limit: float = 0,
    memory_limit_gib: float = 0,
    numa: str = "prefer",
    **words: Any,
) -> JobSpec:
    """`a_job("train", tasks=2, gpus=4)`: amounts are per task; 1 core and 1 GiB unless said."""
    if slice:
        gpus, share, model = 1, slice_share(slice), sliced(model, slice)
    per_task = Resources(
        cpu_millis=round(cpus * 1000),
        memory_mib=round(memory_gib * GIB),
        gpus=gpus,
        gpu_millis=share,
        storage_mib=round(storage_gib * GIB),
        extras=tuple(sorted((extras or {}).items())),
    )
    request = request_class(
        per_task,
        gpu_model=model,
        gpu_memory_mib=gpu_memory_gib * GIB,
        node_selector=(selector or {}).items(),
        tolerations=tolerations,
        required_affinity=affinity,
        partition_ids=partitions,
        preferred_affinity=prefers,
        job_terms=terms,
        task_term=spread,
        cpu_limit_millis=round(cpu_limit * 1000),
        memory_limit_mib=round(memory_limit_gib * GIB),
        one_domain=numa == "one",
    )
    return JobSpec(name, request, **words)


def running(
    job: JobSpec, *on: tuple[str, Sequence[int]] | str, ends_in: int = 0, **words: Any
) -> RunningSpec:
    """`running(a_job("old", gpus=2), ("n1", [0, 1]), ends_in=30)`: a place for each task."""
    places = tuple((place, ()) if isinstance(place, str) else (place[0], tuple(place[1])) for place in on)
    return RunningSpec(job, places, ends_in, **words)


def a_queue(name: str = "main", **words: Any) -> QueueSpec:
    return QueueSpec(name, **words)


def a_project(name: str, **words: Any) -> ProjectSpec:
    return ProjectSpec(name, **words)


def a_quota(resource: str, hard: int = -1, **words: Any) -> QuotaSpec:
    return QuotaSpec(resource, hard, **words)


def a_reservation(name: str, *nodes: str, **words: Any) -> ReservationSpec:
    """`a_reservation("course", parts=[("n1", 4, 8, [0, 1])])`: 4 cores, 8 GiB and two devices of n1."""
    words["parts"] = tuple((*part[:3], tuple(part[3])) for part in words.get("parts", ()))
    return ReservationSpec(name, nodes, **words)


def a_policy(**words: Any) -> Policy:
    return Policy(**words)


@dataclass(frozen=True)
class World:
    """A snapshot with the ids of the names it was built from."""

    snapshot: Snapshot
    nodes: dict[str, int]
    jobs: dict[str, int]
    devices: dict[tuple[str, int], int]

    def job(self, name: str) -> int:
        return self.jobs[name]

    def starts(self, plan: Plan) -> dict[str, list[str]]:
        """Job name -> node name of each task: the readable half of a plan."""
        node_name = {node_id: name for name, node_id in self.nodes.items()}
        return {
            self._job_name(start.job_id): [node_name[p.node_id] for p in start.placements]
            for start in plan.starts
        }

    def devices_of(self, start: Start) -> list[list[tuple[str, int]]]:
        """(node name, position) of every device of each task."""
        place = {device_id: key for key, device_id in self.devices.items()}
        return [[place[device] for device in placement.device_ids] for placement in start.placements]

    def reasons(self, plan: Plan) -> dict[str, str]:
        """Job name -> headline: the other half."""
        return {self._job_name(job_id): reason.value for job_id, reason in plan.reasons.items()}

    def _job_name(self, job_id: int) -> str:
        return next(name for name, number in self.jobs.items() if number == job_id)


def a_world(
    *,
    nodes: Sequence[NodeSpec] = (),
    pending: Sequence[JobSpec] = (),
    running: Sequence[RunningSpec] = (),
    queues: Sequence[QueueSpec] = (),
    quotas: Sequence[QuotaSpec] = (),
    projects: Sequence[ProjectSpec] = (),
    reservations: Sequence[ReservationSpec] = (),
    licences: Mapping[str, tuple[int, int]] | None = None,  # name -> (how many, in use)
    now_ms: int = NOW_MS,
) -> World:
    """Everything not said is the plainest there is: one queue `main`, one project `vision`, no limits."""
    node_ids = {spec.name: spec.id or number for number, spec in enumerate(nodes, 1)}
    devices = [
        (spec, position, (spec.first_device_id or node_ids[spec.name] * 100) + position)
        for spec in nodes
        for position in range(spec.gpus + len(spec.slices))
    ]
    device_ids = {(spec.name, position): number for spec, position, number in devices}
    all_jobs = [spec.job for spec in running] + list(pending)
    job_ids = {spec.name: spec.id or number for number, spec in enumerate(all_jobs, 1)}
    assert len(job_ids) == len(all_jobs), "two jobs of one name"
    queue_names = dict.fromkeys(
        [spec.name for spec in queues] + [spec.queue for spec in all_jobs] or ["main"]
    )
    queue_specs = {name: QueueSpec(name) for name in queue_names} | {spec.name: spec for spec in queues}
    queue_ids = {name: number for number, name in enumerate(queue_specs, 1)}
    project_names = sorted(
        {spec.project for spec in all_jobs}
        | {name for quota in quotas for name in quota.projects}
        | {name for reservation in reservations for name in reservation.projects}
        | {spec.name for spec in projects}
        | {"vision"}
    )
    shares = {spec.name: spec for spec in projects}
    project_ids = {name: number for number, name in enumerate(project_names, 1)}
    reservation_ids = {spec.name: number for number, spec in enumerate(reservations, 1)} | {"": 0}
    table = ClassTable()

    used_cpu, used_memory, used_storage = (
        dict.fromkeys(node_ids, 0),
        dict.fromkeys(node_ids, 0),
        dict.fromkeys(node_ids, 0),
    )
    used_device = dict.fromkeys(device_ids.values(), 0)
    bound: Bound = {}
    allocations: list[dict[str, Any]] = []
    for spec in running:
        request = spec.job.request
        millis = (request.per_task.gpu_millis or 1000) if request.per_task.gpus else 0
        for rank, (node, positions) in enumerate(spec.on):
            cpu_millis = 0 if spec.pause == "suspended" else request.per_task.cpu_millis
            used_cpu[node] += cpu_millis
            used_memory[node] += request.per_task.memory_mib
            used_storage[node] += request.per_task.storage_mib
            domain = spec.domains[rank] if spec.domains else -1
            bind(bound, list(node_ids).index(node), domain, cpu_millis, request.per_task.memory_mib)
            held = tuple(device_ids[node, position] for position in positions)
            for device in held:
                used_device[device] += millis
            allocations.append(
                {
                    "id": len(allocations) + 1,
                    "job_id": job_ids[spec.job.name],
                    "rank": rank,
                    "node_id": node_ids[node],
                    "cpu_millis": cpu_millis,
                    "memory_mib": request.per_task.memory_mib,
                    "storage_mib": request.per_task.storage_mib,
                    "device_ids": held,
                    "gpu_millis": millis,
                    "leaving": rank in spec.leaving,
                    "numa": domain,
                }
            )

    def jobs_in(queue: str) -> int:
        return sum(spec.job.queue == queue for spec in running)

    snapshot = Snapshot.build(
        now_ms=now_ms,
        nodes=NodeColumns(
            id=[node_ids[spec.name] for spec in nodes],
            name=[spec.name for spec in nodes],
            state=[spec.state for spec in nodes],
            faulty=[spec.faulty for spec in nodes],
            cordoned=[spec.cordoned for spec in nodes],
            draining=[spec.draining for spec in nodes],
            cpu_millis=[round(spec.cpus * 1000 * spec.overcommit) for spec in nodes],
            memory_mib=[round(spec.memory_gib * GIB * spec.overcommit) for spec in nodes],
            storage_mib=[round(spec.storage_gib * GIB) for spec in nodes],
            used_cpu_millis=[used_cpu[spec.name] for spec in nodes],
            used_memory_mib=[used_memory[spec.name] for spec in nodes],
            used_storage_mib=[used_storage[spec.name] for spec in nodes],
            labels=[tuple(sorted(spec.labels.items())) for spec in nodes],
            taints=[tuple(sorted(spec.taints)) for spec in nodes],
            partition_ids=[spec.partitions for spec in nodes],
            rack=[spec.rack for spec in nodes],
            zone=[spec.zone for spec in nodes],
            region=[spec.region for spec in nodes],
            max_wall_seconds=[spec.max_minutes * 60 for spec in nodes],
            size_cpu_millis=[round(spec.cpus * 1000) for spec in nodes],
            size_memory_mib=[round(spec.memory_gib * GIB) for spec in nodes],
            domains=[_domains_of(spec) for spec in nodes],
            bound=bound_column(bound, len(nodes)),
            isolation=[sum(BITS[name] for name in spec.isolation) for spec in nodes],
        ),
        devices=DeviceColumns(
            id=[number for _, _, number in devices],
            node_id=[node_ids[spec.name] for spec, _, _ in devices],
            position=[position for _, position, _ in devices],
            numa=[position * spec.numa // (spec.gpus + len(spec.slices)) for spec, position, _ in devices],
            model=[sliced(spec.model, _slice_at(spec, position)) for spec, position, _ in devices],
            memory_mib=[
                int((_slice_at(spec, position) or f".{spec.gpu_memory_gib}gb").split(".")[1][:-2]) * GIB
                for spec, position, _ in devices
            ],
            healthy=[position not in spec.unhealthy for spec, position, _ in devices],
            used_millis=[used_device[number] for _, _, number in devices],
        ),
        pending=_table(
            PendingColumns,
            [
                {
                    "id": job_ids[job.name],
                    "class_index": table.intern(job.request),
                    "queue_id": queue_ids[job.queue],
                    "project_id": project_ids[job.project],
                    "user_id": job.user,
                    "priority": job.priority,
                    "submitted_ms": now_ms + job.submitted * MINUTE_MS,
                    "eligible_ms": 0 if job.begin is None else now_ms + job.begin * MINUTE_MS,
                    "tasks": job.tasks,
                    "nodes": job.nodes,
                    "tasks_per_node": job.tasks_per_node,
                    "time_limit_seconds": job.minutes * 60,
                    "generation": job.generation,
                    "gate": int(job.gate),
                    "array_id": job.array,
                    "array_max_running": job.array_max_running,
                    "awaited": False,
                    "deadline_ms": 0 if job.deadline is None else now_ms + job.deadline * MINUTE_MS,
                    "promised_ms": 0,
                    "most_tasks": job.most,
                    "pack": PACKS.index(job.pack.rstrip("!")) + MUST * job.pack.endswith("!"),
                    "assembly_seconds": job.gathers * 60,
                    "assembling_until_ms": now_ms + job.gathers_until * MINUTE_MS if job.gathering else 0,
                    "assemblies_failed": job.gathered_in_vain,
                    "job_type": job.kind,
                    "name": job.name,
                    "labels": tuple(sorted(job.labels.items())),
                    "elastic": job.elastic,
                    "preemptible": job.preemptible,
                    "predicted_seconds": job.predicted * 60,
                    "reservation_id": reservation_ids.get(job.reservation, 1000),
                }
                for job in pending
            ],
        ),
        running=_table(
            RunningColumns,
            [
                {
                    "id": job_ids[spec.job.name],
                    "attempt_id": number,
                    "class_index": table.intern(spec.job.request),
                    "queue_id": queue_ids[spec.job.queue],
                    "project_id": project_ids[spec.job.project],
                    "user_id": spec.job.user,
                    "priority": spec.job.priority,
                    "started_ms": now_ms + spec.started * MINUTE_MS,
                    "expected_end_ms": now_ms + spec.ends_in * MINUTE_MS if spec.ends_in else 0,
                    "array_id": spec.job.array,
                    "preemptible": spec.preemptible,
                    "times_preempted": spec.times_preempted,
                    "saved_ms": 0 if spec.saved is None else now_ms + spec.saved * MINUTE_MS,
                    "stop_by_ms": now_ms + spec.stop_by * MINUTE_MS if spec.stop_by else 0,
                    "stopped_for": job_ids[spec.stopped_for] if spec.stopped_for else 0,
                    "job_type": spec.job.kind,
                    "pause": ("", "asked", "suspended").index(spec.pause),
                    "name": spec.job.name,
                    "labels": tuple(sorted(spec.job.labels.items())),
                    "least_tasks": spec.least,
                    "most_tasks": (spec.job.most or len(spec.on)) if spec.least else 0,
                    "resized_ms": 0 if spec.resized is None else now_ms + spec.resized * MINUTE_MS,
                    "resized_for": job_ids[spec.resized_for] if spec.resized_for else 0,
                    "pack": PACKS.index(spec.job.pack.rstrip("!")) + MUST * spec.job.pack.endswith("!"),
                    "predicted_seconds": 0 if spec.ends_in else spec.job.predicted * 60,
                    "reservation_id": reservation_ids.get(spec.job.reservation, 1000),
                }
                for number, spec in enumerate(running, 1)
            ],
        ),
        classes=table.classes,
        allocations=_table(AllocationColumns, allocations),
        reservations=_table(
            ReservationColumns,
            [
                {
                    "id": number,
                    "name": spec.name,
                    "starts_ms": now_ms + spec.starts_in * MINUTE_MS,
                    "ends_ms": now_ms + (spec.starts_in + spec.minutes) * MINUTE_MS,
                    "node_ids": tuple(node_ids[node] for node in spec.nodes),
                    "project_ids": tuple(project_ids[project] for project in spec.projects),
                    "user_ids": spec.users,
                    "job_ids": spec.jobs,
                    "parts": tuple(
                        (
                            node_ids[node],
                            round(cores * 1000),
                            round(gib * GIB),
                            tuple(device_ids[node, position] for position in positions),
                        )
                        for node, cores, gib, positions in spec.parts
                    ),
                    "magnetic": spec.magnetic,
                }
                for number, spec in enumerate(reservations, 1)
            ]
            + [
                {
                    "id": gathering_id(job_ids[job.name]),
                    "name": f"gathering for {job.name}",
                    "starts_ms": now_ms,
                    "ends_ms": now_ms + job.gathers_until * MINUTE_MS,
                    "node_ids": tuple(node_ids[node] for node in job.gathering),
                    "project_ids": (),
                    "user_ids": (),
                    "job_ids": (job_ids[job.name],),
                    "parts": (),
                    "magnetic": True,
                }
                for job in pending
                if job.gathering and job.gathers_until > 0
            ],
        ),
        queues=QueueColumns(
            id=list(queue_ids.values()),
            name=list(queue_ids),
            priority=[spec.priority for spec in queue_specs.values()],
            paused=[spec.paused is not None for spec in queue_specs.values()],
            paused_text=[spec.paused or "" for spec in queue_specs.values()],
            max_concurrent_jobs=[spec.max_concurrent_jobs for spec in queue_specs.values()],
            running_jobs=[
                jobs_in(spec.name) if spec.running is None else spec.running for spec in queue_specs.values()
            ],
            partition_ids=[spec.partitions for spec in queue_specs.values()],
            max_wall_seconds=[spec.max_minutes * 60 for spec in queue_specs.values()],
            isolation=[NEEDED[IsolationLevel(spec.isolation)] for spec in queue_specs.values()],
        ),
        projects=ProjectColumns(
            id=list(project_ids.values()),
            name=list(project_ids),
            quota_line_ids=[
                tuple(number for number, quota in enumerate(quotas, 1) if project in quota.projects)
                for project in project_ids
            ],
            share_weight=[shares[name].share if name in shares else 1 for name in project_ids],
            used_gpu_seconds=[
                round(shares[name].used_gpu_hours * 3600) if name in shares else 0 for name in project_ids
            ],
        ),
        quotas=QuotaColumns(
            id=range(1, len(quotas) + 1),
            owner=[quota.owner for quota in quotas],
            resource=[quota.resource for quota in quotas],
            hard=[quota.hard for quota in quotas],
            used=[quota.used for quota in quotas],
            enforce=[quota.enforce for quota in quotas],
            parent_id=[_above(quota, quotas) for quota in quotas],
            nominal=[quota.nominal for quota in quotas],
            borrowing_limit=[quota.borrowing_limit for quota in quotas],
            lending_limit=[quota.lending_limit for quota in quotas],
            is_pool=[quota.is_pool for quota in quotas],
            gpu_model=[quota.model for quota in quotas],
            user_id=[quota.user for quota in quotas],
            job_type=[quota.job_type for quota in quotas],
            converge_ms=[
                0 if quota.converge is None else now_ms + quota.converge * MINUTE_MS for quota in quotas
            ],
        ),
        pools=PoolColumns(
            id=range(1, len(licences or {}) + 1),
            name=list(licences or {}),
            capacity=[count for count, _ in (licences or {}).values()],
            used=[used for _, used in (licences or {}).values()],
        ),
    )
    return World(snapshot, node_ids, job_ids, device_ids)


C = TypeVar("C", bound=Columns)


def _table(columns: type[C], rows: Sequence[Mapping[str, Any]]) -> C:
    """The table from rows that name their values."""
    return (
        columns.from_columns(**{name: [row[name] for row in rows] for name in rows[0]}) if rows else columns()
    )


def _domains_of(spec: NodeSpec) -> tuple[tuple[int, int, int], ...]:
    if spec.numa < 2 or not spec.domains:
        return ()
    cpu, memory = round(spec.cpus * 1000) // spec.numa, round(spec.memory_gib * GIB) // spec.numa
    return tuple((number, cpu, memory) for number in range(spec.numa))


def _slice_at(spec: NodeSpec, position: int) -> str:
    return spec.slices[position - spec.gpus] if position >= spec.gpus else ""


def _above(quota: QuotaSpec, quotas: Sequence[QuotaSpec]) -> int:
    """The number of the line above; 0 = none."""
    return next(
        (
            number
            for number, other in enumerate(quotas, 1)
            if quota.above == other.owner
            and (quota.resource, quota.model, quota.job_type) == (other.resource, other.model, other.job_type)
        ),
        0,
    )


def a_snapshot(**words: Any) -> Snapshot:
    """`a_world(...)` when its names are not needed: jobs and nodes are numbered from 1 in the order given."""
    return a_world(**words).snapshot
