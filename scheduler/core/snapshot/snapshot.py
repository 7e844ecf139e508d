"""Snapshot: everything one planning cycle sees, as read-only columns; ids are integers, times are ms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Final

import numpy as np

from scheduler.core.columns import Bools, Columns, Ints, bools, ints, objects, rows_of
from scheduler.core.lifecycle import NodeState
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.snapshot.agent_features import ALL
from scheduler.core.snapshot.constraints import Labels, Taint
from scheduler.core.snapshot.request_classes import RequestClass


class Pause(IntEnum):
    """Whether a running job is suspended; the numbers are stored in recordings."""

    NO = 0
    ASKED = 1  # it was asked to suspend, and holds its CPUs until it has
    SUSPENDED = 2  # it holds its memory, and its CPUs no more


class JobGate(IntEnum):
    """What a pending job's own row says must happen first; the numbers are stored in recordings."""

    OPEN = 0
    HELD_BY_USER = 1
    HELD_BY_ADMIN = 2
    DEPENDENCY = 3
    DEPENDENCY_NEVER_SATISFIED = 4
    APPROVAL_PENDING = 5
    BACKOFF = 6  # until eligible_ms, after a failed start
    ACCOUNT_EXPIRED = 7


GATE_REASONS: Final[dict[JobGate, ReasonCode]] = {
    JobGate.HELD_BY_USER: ReasonCode.HELD_BY_USER,
    JobGate.HELD_BY_ADMIN: ReasonCode.HELD_BY_ADMIN,
    JobGate.DEPENDENCY: ReasonCode.DEPENDENCY,
    JobGate.DEPENDENCY_NEVER_SATISFIED: ReasonCode.DEPENDENCY_NEVER_SATISFIED,
    JobGate.APPROVAL_PENDING: ReasonCode.APPROVAL_PENDING,
    JobGate.BACKOFF: ReasonCode.BACKOFF,
    JobGate.ACCOUNT_EXPIRED: ReasonCode.ACCOUNT_EXPIRED,
}


@dataclass(frozen=True, eq=False)
class NodeColumns(Columns):
    """Machines. Capacities already include overcommit; `used_*` are the row counters, devices apart."""

    id: Ints = ints()
    name: tuple[str, ...] = objects()
    state: tuple[str, ...] = objects(default=NodeState.UP.value)  # a NodeState; only "up" takes new tasks
    cordoned: Bools = bools(default=False)
    draining: Bools = bools(default=False)
    cpu_millis: Ints = ints(default=0)
    memory_mib: Ints = ints(default=0)
    storage_mib: Ints = ints(default=0)
    used_cpu_millis: Ints = ints(default=0)
    used_memory_mib: Ints = ints(default=0)
    used_storage_mib: Ints = ints(default=0)
    labels: tuple[Labels, ...] = objects(default=())  # ((key, value), ...)
    taints: tuple[tuple[Taint, ...], ...] = objects(default=())
    partition_ids: tuple[tuple[int, ...], ...] = objects(default=())
    rack: tuple[str, ...] = objects(default="")
    zone: tuple[str, ...] = objects(default="")
    generation: Ints = ints(default=0)
    region: tuple[str, ...] = objects(default="")
    max_wall_seconds: Ints = ints(default=0)  # the most that one of its partitions allows; 0 = no bound
    size_cpu_millis: Ints = ints(default=0)  # what the machine itself has; 0 = as much as may be given away
    size_memory_mib: Ints = ints(default=0)
    #: (number, CPU, memory) of each NUMA domain of the machine itself; () = it is one domain, or unknown.
    domains: tuple[tuple[tuple[int, int, int], ...], ...] = objects(default=())
    bound: tuple[tuple[tuple[int, int, int], ...], ...] = objects(default=())  # and what is bound in them
    isolation: Ints = ints(default=0)  # what keeps its jobs apart: bits of `node_isolation.BITS`
    features: Ints = ints(default=ALL)  # what its agent knows: bits of `agent_features.FEATURES`
    faulty: Bools = bools(default=False)  # its agent says that no task can start there now
    #: What ended there lately says, 0 to 100 (`forecast.node_scores`); -1 = unknown.
    reliability: Ints = ints(default=-1)
    performance: Ints = ints(default=-1)


@dataclass(frozen=True, eq=False)
class DeviceColumns(Columns):
    """GPUs. A task that takes whole devices uses 1000 thousandths of each; a share less of one."""

    id: Ints = ints()
    node_id: Ints = ints()
    position: Ints = ints(default=0)  # index on its node, as in CUDA_VISIBLE_DEVICES
    numa: Ints = ints(default=0)
    model: tuple[str, ...] = objects(default="")
    memory_mib: Ints = ints(default=0)
    healthy: Bools = bools(default=True)
    used_millis: Ints = ints(default=0)  # 0..1000


#: How near to each other the tasks of a job are to be, by `PendingColumns.pack`.
PACKS: Final = ("", "node", "rack", "zone")
#: Added to a place in PACKS: the job waits rather than start anywhere else.
MUST: Final = 8


def gathering_id(job_id: int) -> int:
    """The id of the reservation that keeps the nodes a job gathers: no row of a table has it."""
    return -job_id


@dataclass(frozen=True, eq=False)
class PendingColumns(Columns):
    """Jobs that hold nothing yet. `id` is the job number."""

    id: Ints = ints()
    class_index: Ints = ints()  # into Snapshot.classes (ClassTable.intern)
    queue_id: Ints = ints()
    project_id: Ints = ints()
    user_id: Ints = ints(default=0)
    priority: Ints = ints(default=50)  # 0..100
    submitted_ms: Ints = ints(default=0)
    eligible_ms: Ints = ints(default=0)  # not before: begin_at or end of a back-off; 0 = since submission
    tasks: Ints = ints(default=1)
    nodes: Ints = ints(default=0)  # exactly this many nodes; 0 = any number
    tasks_per_node: Ints = ints(default=0)  # exactly this many on each node; 0 = any number
    time_limit_seconds: Ints = ints(default=0)  # 0 = the queue's, or none
    generation: Ints = ints(default=0)
    gate: Ints = ints(default=0)  # a JobGate
    array_id: Ints = ints(default=0)  # 0 = not in an array
    array_max_running: Ints = ints(default=0)  # 0 = no bound
    awaited: Bools = bools(default=False)  # others were stopped for it, and it has not started since
    deadline_ms: Ints = ints(default=0)  # should have ended by then; 0 = none
    promised_ms: Ints = ints(default=0)  # the first expected start that was shown; 0 = none
    most_tasks: Ints = ints(default=0)  # up to this many are taken, `tasks` are enough; 0 = just `tasks`
    pack: Ints = ints(default=0)  # into PACKS: how near to each other; MUST added = nowhere else
    assembly_seconds: Ints = ints(default=0)  # how long nodes may be kept for it; 0 = it does not gather
    assembling_until_ms: Ints = ints(default=0)  # it gathers nodes until then (`gathering_id`); 0 = none
    assemblies_failed: Ints = ints(default=0)  # times it had to give them back
    job_type: Ints = ints(default=0)  # the number of its job type, as quota lines have it
    name: tuple[str, ...] = objects(default="")  # this and the next: only where some job's terms ask for them
    labels: tuple[Labels, ...] = objects(default=())
    elastic: Bools = bools(default=False)  # this and the next matter once it runs: for what is played ahead
    preemptible: Bools = bools(default=True)
    predicted_seconds: Ints = ints(
        default=0
    )  # of one without a limit, how long it is likely to run; 0 = unknown
    reservation_id: Ints = ints(default=0)  # the reservation that it names and runs inside; 0 = none


@dataclass(frozen=True, eq=False)
class RunningColumns(Columns):
    """Jobs that hold resources, one live attempt each. `id` is the job number."""

    id: Ints = ints()
    attempt_id: Ints = ints(default=0)
    class_index: Ints = ints()
    queue_id: Ints = ints()
    project_id: Ints = ints()
    user_id: Ints = ints(default=0)
    priority: Ints = ints(default=50)
    started_ms: Ints = ints(default=0)
    expected_end_ms: Ints = ints(default=0)  # start plus time limit; 0 = unknown
    array_id: Ints = ints(default=0)
    preemptible: Bools = bools(default=True)
    times_preempted: Ints = ints(default=0)
    saved_ms: Ints = ints(default=0)  # its last checkpoint: work before it is not lost; 0 = none
    stop_by_ms: Ints = ints(default=0)  # it was asked to end, by then at the latest; 0 = it was not
    stopped_for: Ints = ints(default=0)  # the pending job it is stopped for; 0 = for none
    job_type: Ints = ints(default=0)  # the number of its job type, as quota lines have it
    pause: Ints = ints(default=0)  # a Pause
    name: tuple[str, ...] = objects(default="")  # this and the next: only where some job's terms ask for them
    labels: tuple[Labels, ...] = objects(default=())
    least_tasks: Ints = ints(default=0)  # it may be made as small while it runs; 0 = it has one size
    most_tasks: Ints = ints(default=0)  # and as large
    resized_ms: Ints = ints(default=0)  # when its size was changed last; 0 = not since it started
    resized_for: Ints = ints(default=0)  # the pending job that its leaving tasks make room for; 0 = for none
    pack: Ints = ints(default=0)  # as of pending jobs
    predicted_seconds: Ints = ints(
        default=0
    )  # of one without a limit, how long it is likely to run; 0 = unknown
    reservation_id: Ints = ints(default=0)  # the reservation that it was started in; 0 = none


@dataclass(frozen=True, eq=False)
class AllocationColumns(Columns):
    """What each task of a running job holds, and so frees when that job ends."""

    id: Ints = ints()
    job_id: Ints = ints()
    rank: Ints = ints(default=0)
    node_id: Ints = ints()
    cpu_millis: Ints = ints(default=0)
    memory_mib: Ints = ints(default=0)
    storage_mib: Ints = ints(default=0)
    device_ids: tuple[tuple[int, ...], ...] = objects(default=())
    gpu_millis: Ints = ints(default=0)  # held of each of its devices
    leaving: Bools = bools(
        default=False
    )  # this task of an elastic job was asked to end, or has; the others go on
    numa: Ints = ints(default=-1)  # the NUMA domain that all of it is bound to; -1 = it is not


#: Of a reservation on one node: the node, CPU in thousandths, memory in MiB, and the devices.
Part = tuple[int, int, int, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class ReservationColumns(Columns):
    """Nodes and parts of nodes set aside for a window: no other job may hold them in it. No owner = maintenance."""

    id: Ints = ints()
    name: tuple[str, ...] = objects(default="")
    starts_ms: Ints = ints()
    ends_ms: Ints = ints()
    node_ids: tuple[tuple[int, ...], ...] = objects(default=())
    project_ids: tuple[tuple[int, ...], ...] = objects(default=())  # who may use it: any that matches
    user_ids: tuple[tuple[int, ...], ...] = objects(default=())
    job_ids: tuple[tuple[int, ...], ...] = objects(default=())
    #: (node, CPU, memory, devices) of each node of which only a part is held; such a node is not in `node_ids`.
    parts: tuple[tuple[Part, ...], ...] = objects(default=())
    magnetic: Bools = bools(default=True)  # its projects and people use whole nodes of it without naming it


@dataclass(frozen=True, eq=False)
class QueueColumns(Columns):
    """Where pending jobs wait."""

    id: Ints = ints()
    name: tuple[str, ...] = objects()
    priority: Ints = ints(default=0)
    paused: Bools = bools(default=False)
    paused_text: tuple[str, ...] = objects(default="")  # "by A. Admin since 09:12: maintenance"
    max_concurrent_jobs: Ints = ints(default=0)  # 0 = no bound
    running_jobs: Ints = ints(default=0)
    partition_ids: tuple[tuple[int, ...], ...] = objects(default=())  # () = every node
    max_wall_seconds: Ints = ints(default=0)  # 0 = no bound
    generation: Ints = ints(default=0)
    preempted_last_hour: Ints = ints(default=0)  # jobs of this queue that were stopped for others
    isolation: Ints = ints(default=0)  # the bits that its jobs need of a node, of `node_isolation.BITS`


@dataclass(frozen=True, eq=False)
class ProjectColumns(Columns):
    """Who the jobs are charged to, with every quota line on the way up to the root.

    Lines of single people are among them; those count the jobs of that person only.
    """

    id: Ints = ints()
    name: tuple[str, ...] = objects(default="")
    quota_line_ids: tuple[tuple[int, ...], ...] = objects(default=())
    share_weight: Ints = ints(default=1)
    used_gpu_seconds: Ints = ints(default=0)  # what it has used, older use counting less (half-life)
    lost_gpu_seconds: Ints = ints(default=0)  # work lost to preemption in the last day
    away_text: tuple[str, ...] = objects(default="")  # why its quota provider lets nothing start now


@dataclass(frozen=True, eq=False)
class ShareColumns(Columns):
    """How people stand in the tree of shares: of each person and project that matters here, and of every such
    project with person 0, for those it does not know. Empty where shares are flat and no share has a limit.
    """

    id: Ints = ints()  # share_key(project, user)
    factor: Ints = ints(default=-1)  # millionths; -1 = shares are flat, their order follows the projects' use
    over: Ints = ints(
        default=0
    )  # a limit of a share that was passed: NOTHING, SOFT, HARD of quotas.core.fairshare
    owner: tuple[str, ...] = objects(default="")  # whose limit: "project vision"
    used_percent: Ints = ints(default=0)  # of the site, over the time that counts
    limit_percent: Ints = ints(default=0)


def share_key(project_id: Ints, user_id: Ints) -> Ints:
    return (project_id << 31) | user_id


@dataclass(frozen=True, eq=False)
class TurnColumns(Columns):
    """The memory of fair queueing (`ordering.fair_queue`): how far each tenant is in virtual time, of the cluster's
    policy and of each queue with its own. Tenant 0 is the virtual time itself. Empty where no policy is "fair_queue".
    """

    id: Ints = ints()  # turn_key(queue, by_user, tenant)
    queue_id: Ints = ints(default=0)  # 0 = of the cluster's policy
    by_user: Bools = bools(default=False)  # the tenants are people, else projects
    tenant_id: Ints = ints()
    virtual: Ints = ints(
        default=0
    )  # where its next job starts, in fair_queue.SCALE of a millionth of the site
    waiting: Bools = bools(default=False)  # it had a job left that could start when this was written
    weight: Ints = ints(default=1)  # of a person; a project's is with the project


def turn_key(queue_id: int, by_user: bool, tenant_id: int) -> int:
    """The key of a tenant's row; ids of queues are below 2^30, of tenants below 2^32."""
    return (queue_id << 33) | (by_user << 32) | tenant_id


@dataclass(frozen=True, eq=False)
class ChoiceColumns(Columns):
    """Which rule of a profile was in force after the last cycle (`ordering.choice`). Empty without rules."""

    id: Ints = ints()  # the queue whose own profile it is; 0 = the cluster's
    rule: tuple[str, ...] = objects(default="")  # "" = none: the profile's own settings
    since_ms: Ints = ints(default=0)


@dataclass(frozen=True, eq=False)
class RefusedStartColumns(Columns):
    """Pending jobs that the provider of their quota refused a while ago: not asked about again yet."""

    id: Ints = ints()  # the job's number; it need not be pending here
    generation: Ints = ints(default=0)  # of the job when it was refused
    text: tuple[str, ...] = objects(default="")  # why, as a sentence


NOTHING_REFUSED: Final = RefusedStartColumns()


@dataclass(frozen=True, eq=False)
class QuotaColumns(Columns):
    """Upper bounds on what may be in use at once, each below one other or none.

    `resource` is a name of `quotas.core.resources.NAMES` (`gpu_millis` counts whole devices as 1000 each),
    `running_jobs`, or the name of an extra. A line names the one above it that limits the same thing. Lines
    that bound no job, and neither lend nor borrow, are left out. Amounts are -1 where none is said.
    """

    id: Ints = ints()
    owner: tuple[str, ...] = objects(default="")  # "project vision", for the sentence
    resource: tuple[str, ...] = objects()
    hard: Ints = ints()
    used: Ints = ints(default=0)
    enforce: Bools = bools(default=True)  # False = only reported
    generation: Ints = ints(default=0)
    parent_id: Ints = ints(default=0)  # the line above; 0 = none
    nominal: Ints = ints(default=-1)
    borrowing_limit: Ints = ints(default=-1)
    lending_limit: Ints = ints(default=-1)
    is_pool: Bools = bools(default=False)  # of an organization: what others share
    gpu_model: tuple[str, ...] = objects(default="")  # counts devices of this model only
    user_id: Ints = ints(default=0)  # counts jobs of this person only; 0 = of everybody
    job_type: Ints = ints(default=0)  # counts jobs of this type only; 0 = of all
    converge_ms: Ints = ints(default=0)  # from then on what is over the bound is stopped; 0 = never


class SpentRule(IntEnum):
    """What becomes of jobs once a budget is spent; the numbers are stored in recordings."""

    WARN = 0
    REFUSE = 1
    DEMOTE = 2


@dataclass(frozen=True, eq=False)
class BudgetColumns(Columns):
    """Periods of budgets that are or come: how much may be used from one moment until another."""

    id: Ints = ints()
    owner: tuple[str, ...] = objects(default="")  # "Autumn of project vision", for the sentence
    resource: tuple[str, ...] = objects(default="gpu_milli_seconds")  # a key of quotas.core.budgets.COUNTED
    amount: Ints = ints()
    used: Ints = ints(default=0)  # set aside and charged
    starts_ms: Ints = ints()
    ends_ms: Ints = ints()
    on_spent: Ints = ints(default=1)  # a SpentRule
    project_ids: tuple[tuple[int, ...], ...] = objects(default=())  # who counts on it
    open_seconds: Ints = ints(default=3600)  # set aside for a job without any time limit
    #: (resource, GPU model or "", micros an hour), for budgets of money.
    prices: tuple[tuple[tuple[str, str, int], ...], ...] = objects(default=())


@dataclass(frozen=True, eq=False)
class PoolColumns(Columns):
    """Countable things of the whole cluster: licences, bandwidth (a job's `extras` take from them)."""

    id: Ints = ints()
    name: tuple[str, ...] = objects()
    capacity: Ints = ints()
    used: Ints = ints(default=0)


@dataclass(frozen=True)
class Snapshot:
    """What a cycle sees. Make it with `Snapshot.build`; equal worlds are equal snapshots.

    Every group is sorted by its key and every reference is an id, so the order rows were read in
    cannot change a plan.
    """

    now_ms: int
    nodes: NodeColumns = field(default_factory=NodeColumns)
    devices: DeviceColumns = field(default_factory=DeviceColumns)
    classes: tuple[RequestClass, ...] = ()
    pending: PendingColumns = field(default_factory=PendingColumns)
    running: RunningColumns = field(default_factory=RunningColumns)
    allocations: AllocationColumns = field(default_factory=AllocationColumns)
    reservations: ReservationColumns = field(default_factory=ReservationColumns)
    queues: QueueColumns = field(default_factory=QueueColumns)
    projects: ProjectColumns = field(default_factory=ProjectColumns)
    quotas: QuotaColumns = field(default_factory=QuotaColumns)
    pools: PoolColumns = field(default_factory=PoolColumns)
    shares: ShareColumns = field(default_factory=ShareColumns)
    budgets: BudgetColumns = field(default_factory=BudgetColumns)
    turns: TurnColumns = field(default_factory=TurnColumns)
    choices: ChoiceColumns = field(default_factory=ChoiceColumns)
    refused_starts: RefusedStartColumns = field(default_factory=RefusedStartColumns)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def build(
        cls,
        *,
        now_ms: int,
        nodes: NodeColumns | None = None,
        devices: DeviceColumns | None = None,
        classes: Iterable[RequestClass] = (),
        pending: PendingColumns | None = None,
        running: RunningColumns | None = None,
        allocations: AllocationColumns | None = None,
        reservations: ReservationColumns | None = None,
        queues: QueueColumns | None = None,
        projects: ProjectColumns | None = None,
        quotas: QuotaColumns | None = None,
        pools: PoolColumns | None = None,
        shares: ShareColumns | None = None,
        budgets: BudgetColumns | None = None,
        turns: TurnColumns | None = None,
        choices: ChoiceColumns | None = None,
        refused_starts: RefusedStartColumns = NOTHING_REFUSED,
    ) -> Snapshot:
        """Sort every class, renumber the classes and check every reference.

        Raises KeyError naming the missing row, ValueError for a key met twice or columns of unequal length.
        """
        numbered = tuple(classes)
        pending = (pending or PendingColumns()).sorted_by_key()
        running = (running or RunningColumns()).sorted_by_key()
        met = _classes_met(np.concatenate([pending.class_index, running.class_index]), len(numbered))
        kept, numbers = _canonical_classes(numbered, met)
        snapshot = cls(
            now_ms=now_ms,
            nodes=(nodes or NodeColumns()).sorted_by_key(),
            devices=(devices or DeviceColumns()).sorted_by_key(),
            classes=kept,
            pending=replace(pending, class_index=numbers[pending.class_index]),
            running=replace(running, class_index=numbers[running.class_index]),
            allocations=(allocations or AllocationColumns()).sorted_by_key(),
            reservations=(reservations or ReservationColumns()).sorted_by_key(),
            queues=(queues or QueueColumns()).sorted_by_key(),
            projects=(projects or ProjectColumns()).sorted_by_key(),
            quotas=(quotas or QuotaColumns()).sorted_by_key(),
            pools=(pools or PoolColumns()).sorted_by_key(),
            shares=(shares or ShareColumns()).sorted_by_key(),
            budgets=(budgets or BudgetColumns()).sorted_by_key(),
            turns=(turns or TurnColumns()).sorted_by_key(),
            choices=(choices or ChoiceColumns()).sorted_by_key(),
            refused_starts=refused_starts.sorted_by_key(),
        )
        snapshot.check_references()
        return snapshot

    def check_references(self) -> None:
        """Raise KeyError for the first id that names a row which is not in this snapshot."""
        node_ids, queue_ids, project_ids = self.nodes.id, self.queues.id, self.projects.id
        rows_of(node_ids, self.devices.node_id, what="node")
        rows_of(node_ids, self.allocations.node_id, what="node")
        rows_of(self.running.id, self.allocations.job_id, what="running job")
        for jobs in (self.pending, self.running):
            rows_of(queue_ids, jobs.queue_id, what="queue")
            rows_of(project_ids, jobs.project_id, what="project")
        flat = [line for lines in self.projects.quota_line_ids for line in lines]
        rows_of(self.quotas.id, np.array(flat, dtype=np.int64), what="quota line")
        above = self.quotas.parent_id[self.quotas.parent_id != 0]
        rows_of(self.quotas.id, above, what="quota line")

    def job_row(self, job_id: int) -> int:
        """The row of a pending job; raises KeyError when it is not pending here."""
        return int(rows_of(self.pending.id, np.array([job_id], dtype=np.int64), what="pending job")[0])

    def job_class(self, job_id: int) -> RequestClass:
        """What each task of this pending job asks for."""
        return self.classes[int(self.pending.class_index[self.job_row(job_id)])]


#: Groups that are recorded only where they have rows: recordings from before there were any stay as they are.
LATER_GROUPS: Final = frozenset({"turns", "choices", "refused_starts"})

#: Groups in the order they are recorded.
GROUPS: Final = tuple(f.name for f in fields(Snapshot) if f.name not in {"now_ms", "classes"})


def _classes_met(named: Ints, count: int) -> Ints:
    """The classes out of `count` that jobs name, ascending; raises KeyError for one that is not there."""
    if len(named) and not (0 <= int(named.min()) <= int(named.max()) < count):
        raise KeyError("a job names a request class that the snapshot does not have")
    return np.flatnonzero(np.bincount(named))


def _canonical_classes(classes: tuple[RequestClass, ...], met: Ints) -> tuple[tuple[RequestClass, ...], Ints]:
    """The classes that some job has, each once, in their fixed order, and the new number of each old one."""
    kept = tuple(sorted({classes[number] for number in met.tolist()}, key=lambda request: request.sort_key))
    place = {request: number for number, request in enumerate(kept)}
    return kept, np.array([place.get(request, -1) for request in classes], dtype=np.int64)
