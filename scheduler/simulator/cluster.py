"""The engine: a cluster under a virtual clock, where arrivals and ends drive the planner that runs in production."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from quotas.core.share_tree import ShareTree
from scheduler.core.columns import Bools, Ints
from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.virtual_cluster import Event, Requeue, VirtualCluster, moments_of
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
from scheduler.core.plan import Start
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.simulator.fragments import Fragments
from scheduler.simulator.memory import ShareMemory

#: Told how many jobs have ended, now and then.
Progress = Callable[[int], None]

#: A job that nobody has bounded runs so long.
DEFAULT_RUN_MS = 3_600_000


@dataclass(frozen=True)
class ClusterWorkload:
    """A cluster as it is at the beginning, the jobs that will come, and how long each of them really runs."""

    name: str
    snapshot: Snapshot  # what runs at the beginning is there; `pending` holds every job that will ever come
    run_ms: Ints  # of each pending row
    amounts: Ints  # what each holds, in thousandths of GPUs (or of processors where there are no GPUs)
    capacity: int
    #: Who belongs where and with what weight, for policies of fair share; without it the projects stand alone.
    tree: ShareTree | None = None

    users: Mapping[int, str] = field(default_factory=dict)  # names, where they are known
    #: When each really started and ended (-1 = it has not), where that is known.
    started_ms: Ints | None = None
    ended_ms: Ints | None = None
    #: What part of each one's work more tasks do not speed up, in thousandths; without it there is none. `run_ms` is
    #: with the fewest tasks that are enough for it (`tasks`): with twice as many it takes half as long.
    serial_millis: Ints | None = None

    def head(self, count: int) -> ClusterWorkload:
        """Only the first so many jobs to come."""
        pending = self.snapshot.pending
        rows = np.sort(np.lexsort((pending.id, pending.submitted_ms))[:count])
        return replace(
            self,
            snapshot=replace(self.snapshot, pending=pending.take(rows)),
            run_ms=self.run_ms[rows],
            amounts=self.amounts[rows],
            started_ms=None if self.started_ms is None else self.started_ms[rows],
            ended_ms=None if self.ended_ms is None else self.ended_ms[rows],
            serial_millis=None if self.serial_millis is None else self.serial_millis[rows],
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Outcome:
    """When each job started for good (-1 = never), and how the time in between was spent."""

    started_ms: Ints
    cycles: int = 0
    #: Of all GPUs, on the average, while jobs that ask for GPUs waited: those that stood idle,
    idle_while_waiting_percent: float = 0.0
    #: and those of them that were of no use to the usual requests (`fragments`).
    fragmentation_percent: float = 0.0
    preemptions: int = 0
    lost_ms: int = 0  # time that stopped jobs had run for nothing, each as often as it holds GPUs
    stopped: tuple[int, ...] = ()  # rows of the jobs that were stopped, as often as they were
    suspensions: int = 0  # times that jobs was suspended for others instead
    resizes: int = 0  # times that elastic jobs were made smaller or larger
    ended_ms: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # of each job; -1 = never
    busy_before: float = 0.0  # what those that ran at the beginning held from then on: amounts times ms

    __hash__ = None  # type: ignore[assignment]


def simulate(
    workload: ClusterWorkload,
    policy: Policy,
    *,
    each_event: bool = False,
    plugins: Plugins = NO_PLUGINS,
    progress: Progress = lambda ended: None,
) -> Outcome:
    """Let every job of a workload arrive, start and end under a policy.

    One cycle follows each moment at which a job came or ended. With `each_event` one cycle follows each event,
    arrivals first, and a job that has reached its limit holds nothing any more even if its end is still to be
    handled: the rules under which published schedules were made. A job that is stopped for another waits again
    and starts from its beginning, or from what it saved before the first moment; a suspended job goes on where it
    was. Elastic jobs save their work as they go, and their speed grows with their size.
    """
    simulation = _Simulation(workload, policy, each_event=each_event, plugins=plugins, progress=progress)
    while simulation.advance():
        simulation.take_events()
        if simulation.has_to_plan:
            simulation.plan()
    return simulation.outcome()


class _Simulation:
    """One run of a workload: the virtual cluster, the events to come, and what is measured on the way.

    Rows are rows of `VirtualCluster.jobs`: first the jobs that will come, then those that run at the beginning.
    """

    def __init__(
        self,
        workload: ClusterWorkload,
        policy: Policy,
        *,
        each_event: bool,
        plugins: Plugins,
        progress: Progress,
    ) -> None:
        snapshot = workload.snapshot
        self._snapshot, self._policy, self._plugins = snapshot, policy, plugins
        self._each_event, self._progress = each_event, progress
        self._coming = len(snapshot.pending)
        self.cluster = VirtualCluster.at_first(snapshot, resize_seconds=policy.resize_seconds)
        self._now_ms = snapshot.now_ms
        order = np.lexsort((snapshot.pending.id, snapshot.pending.submitted_ms)).tolist()
        self._arrivals = [(snapshot.pending.submitted_ms.item(row), row) for row in order]
        self._arrived = 0
        #: (moment, turn of the job's start, job id; 0 = of no job)
        self._ends: list[tuple[int, int, int]] = []
        self._turns = {number: turn for turn, number in enumerate(self.cluster.running)}
        self._next_turn = len(self._turns)
        self._waiting: list[int] = []
        self._memory = ShareMemory(snapshot, policy, workload.tree)
        self._held_before = _Held(self.cluster, bool(len(snapshot.devices)), self._now_ms)
        self._idle = _IdleMeter(snapshot, self.cluster)
        self._measure_jobs(workload)
        self._started: Ints = np.full(len(self.cluster.jobs), -1, dtype=np.int64)
        self._ended: Ints = np.full(len(self.cluster.jobs), -1, dtype=np.int64)
        self._stopped: list[int] = []
        self._cycles = self._ended_jobs = self._lost_ms = self._suspensions = self._resizes = 0
        for number in self.cluster.running:
            end_ms = self.cluster.expected_end_ms(number)
            length = max(end_ms - self._now_ms, 0) if end_ms else DEFAULT_RUN_MS
            self._await(self.cluster.runs_for(number, self._now_ms, length))
        if not each_event:
            self._await((at_ms, 0) for at_ms in moments_of(snapshot))

    def _measure_jobs(self, workload: ClusterWorkload) -> None:
        """By row: how long each job runs, how many GPUs it holds, and the serial part of its work."""
        limits = self.cluster.jobs.time_limit_seconds[self._coming :] * 1000
        again = np.where(limits > 0, limits, DEFAULT_RUN_MS).tolist()  # jobs running now, if they start again
        self._run_ms = [*workload.run_ms.tolist(), *again]
        self._gpus = [*workload.amounts.tolist(), *[0] * len(again)]
        serial = workload.serial_millis
        self._serial = [0] * self._coming if serial is None else serial.tolist()
        self._serial += [0] * len(again)

    def _await(self, events: Iterable[Event]) -> None:
        for at_ms, number in events:
            heapq.heappush(self._ends, (max(at_ms, self._now_ms), self._turns.get(number, -1), number))

    def advance(self) -> bool:
        """Go to the next moment at which a job comes or ends; False when there is none."""
        moments = [self._arrivals[self._arrived][0]] if self._arrived < len(self._arrivals) else []
        if self._ends:
            moments.append(self._ends[0][0])
        if not moments:
            return False
        moment = max(min(moments), self._now_ms)
        self._idle.count(moment - self._now_ms, self._waiting)
        self._now_ms = moment
        return True

    def take_events(self) -> None:
        """Let the jobs of this moment come and end; with `each_event` only the next of them."""
        took_one = self._take_arrivals()
        if not (took_one and self._each_event):
            self._take_ends()
        if self._each_event:
            self._end_at_limits()

    def _take_arrivals(self) -> bool:
        began = self._arrived
        while self._arrived < len(self._arrivals) and self._arrivals[self._arrived][0] <= self._now_ms:
            self._waiting.append(self._arrivals[self._arrived][1])
            self._arrived += 1
            if self._each_event:
                break
        return self._arrived > began

    def _take_ends(self) -> None:
        while self._ends and self._ends[0][0] <= self._now_ms:
            number = heapq.heappop(self._ends)[2]
            due_ms = self.cluster.due_ms(number)
            if due_ms is None or due_ms > self._now_ms:
                continue  # the job has ended, or its end has moved since
            self._end(number)
            if self._each_event:
                break

    def _end(self, number: int) -> None:
        requeue = self._leave(number)
        if requeue is None:
            self._ended_jobs += 1
            if self._ended_jobs % 100 == 0:
                self._progress(self._ended_jobs)
            return
        self._waiting.append(requeue.row)
        if not requeue.grown:
            self._stopped.append(requeue.row)
            self._lost_ms += requeue.lost_ms * self._gpus[requeue.row] // 1000
            self._started[requeue.row] = -1

    def _end_at_limits(self) -> None:
        for number in list(self.cluster.running):
            at_limit = 0 < self.cluster.expected_end_ms(number) <= self._now_ms
            if at_limit and not self.cluster.stands_still(number):
                self._leave(number)
                self._ended_jobs += 1

    def _leave(self, number: int) -> Requeue | None:
        self._memory.end(number, self._now_ms)
        self._held_before.end(number, self._now_ms)
        self._ended[self.cluster.row_of[number]] = self._now_ms
        return self.cluster.end(number, self._now_ms)

    @property
    def has_to_plan(self) -> bool:
        """Whether a cycle could change anything now."""
        return bool(self._waiting) or self.cluster.is_restless

    def plan(self) -> None:
        """Plan a cycle for this moment and let what it decided happen."""
        picture = self.cluster.picture(self._now_ms, np.array(self._waiting, dtype=np.int64))
        plan = plan_cycle(self._memory.onto(picture), self._policy, self._plugins)
        self._cycles += 1
        for start in plan.starts:
            self._turns[start.job_id] = self._next_turn
            self._next_turn += 1
        self._await(self.cluster.follow(plan, self._now_ms))
        for start in plan.starts:
            self._begin(start)
        moved = [one.job_id for one in plan.resizes] + [one.job_id for one in plan.resumes]
        for number in moved + [one.job_id for one in plan.preempts]:
            self._memory.hold(number, self.cluster.holds(number), self._now_ms)
            self._held_before.change(number, self._now_ms)
        self._suspensions += sum(preempt.mode == "suspend" for preempt in plan.preempts)
        self._resizes += len(plan.resizes)
        if plan.starts:
            begun = {self.cluster.row_of[start.job_id] for start in plan.starts}
            self._waiting = [row for row in self._waiting if row not in begun]

    def _begin(self, start: Start) -> None:
        row, number, jobs = self.cluster.row_of[start.job_id], start.job_id, self.cluster.jobs
        if self._started[row] < 0:
            self._started[row] = self._now_ms
        self._memory.start(start, jobs.user_id.item(row), self._now_ms)
        if row >= self._coming:
            self._held_before.begin(number, self._now_ms)
        self._await(
            self.cluster.runs_for(
                number,
                self._now_ms,
                self._run_ms[row],
                tasks=jobs.tasks.item(row),
                serial_millis=self._serial[row],
            )
        )

    def outcome(self) -> Outcome:
        return Outcome(
            self._started[: self._coming],
            self._cycles,
            self._idle.wasted_percent,
            self._idle.fragmented_percent,
            len(self._stopped),
            self._lost_ms,
            tuple(row for row in self._stopped if row < self._coming),
            self._suspensions,
            self._resizes,
            self._ended[: self._coming],
            self._held_before.busy,
        )


class _IdleMeter:
    """Idle and fragmented GPUs while jobs that ask for GPUs wait, averaged over that time."""

    def __init__(self, snapshot: Snapshot, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._fragments = Fragments(snapshot)
        self._wants_gpus: Bools = np.array(
            [request.per_task.gpus > 0 for request in snapshot.classes] or [False]
        )
        self._waited_ms = self._wasted = self._fragmented = 0.0

    def count(self, span_ms: int, waiting: Sequence[int]) -> None:
        """Count a span of time in which these rows waited."""
        cluster = self._cluster
        if span_ms <= 0 or not waiting or not self._fragments.any:
            return
        if not self._wants_gpus[cluster.jobs.class_index[waiting]].any():
            return
        span = float(span_ms)
        self._waited_ms += span
        self._wasted += self._fragments.idle(cluster.device_used) * span
        self._fragmented += self._fragments.of(cluster.device_used, cluster.used) * span

    @property
    def wasted_percent(self) -> float:
        return 100 * self._wasted / self._waited_ms if self._waited_ms else 0.0

    @property
    def fragmented_percent(self) -> float:
        return 100 * self._fragmented / self._waited_ms if self._waited_ms else 0.0


class _Held:
    """What the jobs that run at the beginning hold from then on, in thousandths of GPUs or cores times ms."""

    def __init__(self, world: VirtualCluster, has_gpus: bool, now_ms: int) -> None:
        self.busy = 0.0
        self._world, self._which = world, 0 if has_gpus else 1
        self._since: dict[int, tuple[int, int]] = {}
        for number in world.running:
            self.begin(number, now_ms)

    def begin(self, job_id: int, now_ms: int) -> None:
        self._since[job_id] = self._world.holds(job_id)[self._which], now_ms

    def end(self, job_id: int, now_ms: int) -> None:
        amount, since_ms = self._since.pop(job_id, (0, now_ms))
        self.busy += float(amount) * (now_ms - since_ms)

    def change(self, job_id: int, now_ms: int) -> None:
        if job_id in self._since:
            self.end(job_id, now_ms)
            self.begin(job_id, now_ms)
