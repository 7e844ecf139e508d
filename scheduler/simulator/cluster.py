"""The engine: a cluster under a virtual clock; arrivals and ends drive the very planner that runs in production."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from quotas.core.share_tree import ShareTree
from scheduler.core.columns import Ints
from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.virtual_cluster import Event, VirtualCluster, moments_of
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
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
    suspensions: int = 0  # times that jobs stood still for others instead
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

    One cycle follows each moment at which something came or ended. With `each_event` one follows each event,
    arrivals first, and a job that has reached its limit holds nothing any more even if its end is still to be
    handled: the rules under which published schedules were made. A job that is stopped for another waits again
    and starts from its beginning, or from what it saved before the first moment; a suspended one goes on where it
    was. Elastic jobs save their work as they go, and get on as fast as they are large.
    """
    snapshot = workload.snapshot
    pending = snapshot.pending
    order = np.lexsort((pending.id, pending.submitted_ms))
    arrivals = [(int(pending.submitted_ms[row]), row) for row in order.tolist()]
    world = VirtualCluster.at_first(snapshot, resize_seconds=policy.resize_seconds)
    memory = ShareMemory(snapshot, policy, workload.tree)
    fragments = Fragments(snapshot)
    ends: list[tuple[int, int, int]] = []  # (moment, turn of its start, job id; 0 = of no job)
    turns = {number: turn for turn, number in enumerate(world.running)}

    def await_all(events: Iterable[Event]) -> None:
        for at_ms, number in events:
            heapq.heappush(ends, (max(at_ms, now_ms), turns.get(number, -1), number))

    now_ms = snapshot.now_ms
    for number in world.running:
        expected = world.expected_end_ms(number)
        await_all(world.runs_for(number, now_ms, max(expected - now_ms, 0) if expected else DEFAULT_RUN_MS))
    limits = (
        world.jobs.time_limit_seconds[len(pending) :] * 1000
    )  # of those that run already, should they start again
    run_ms = [*workload.run_ms.tolist(), *np.where(limits > 0, limits, DEFAULT_RUN_MS).tolist()]
    gpus = [*workload.amounts.tolist(), *[0] * len(limits)]
    serial = [0] * len(world.jobs)
    if workload.serial_millis is not None:
        serial[: len(pending)] = workload.serial_millis.tolist()
    if not each_event:
        await_all((at_ms, 0) for at_ms in moments_of(snapshot))
    started = np.full(len(world.jobs), -1, dtype=np.int64)
    ended_ms = np.full(len(world.jobs), -1, dtype=np.int64)
    waiting: list[int] = []
    stopped: list[int] = []
    suspensions = resizes = 0
    wants_gpus = np.array([request.per_task.gpus > 0 for request in snapshot.classes] or [False])
    arrived, ended, cycles, turn, lost_ms = 0, 0, 0, len(turns), 0
    waited_ms = wasted = broken = 0.0
    before = _Held(world, bool(len(snapshot.devices)), now_ms)
    while arrived < len(arrivals) or ends:
        due = min([arrivals[arrived][0]] if arrived < len(arrivals) else [ends[0][0]], default=now_ms)
        moment = max(min(due, ends[0][0]) if ends else due, now_ms)
        if (
            moment > now_ms
            and waiting
            and fragments.any
            and wants_gpus[world.jobs.class_index[waiting]].any()
        ):
            span = float(moment - now_ms)
            waited_ms += span
            wasted += fragments.idle(world.device_used) * span
            broken += fragments.of(world.device_used, world.used) * span
        now_ms = moment
        while arrived < len(arrivals) and arrivals[arrived][0] <= now_ms:
            waiting.append(arrivals[arrived][1])
            arrived += 1
            if each_event:
                break
        else:
            while ends and ends[0][0] <= now_ms:
                number = heapq.heappop(ends)[2]
                due_ms = world.due_ms(number)
                if due_ms is None or due_ms > now_ms:
                    continue  # it has ended, or something has changed since
                memory.end(number, now_ms)
                before.end(number, now_ms)
                ended_ms[world.row_of[number]] = now_ms
                again = world.end(number, now_ms)
                if again is None:
                    ended += 1
                    if ended % 100 == 0:
                        progress(ended)
                else:
                    waiting.append(again.row)
                    if not again.grown:
                        stopped.append(again.row)
                        lost_ms += again.lost_ms * gpus[again.row] // 1000
                        started[again.row] = -1
                if each_event:
                    break
        if each_event:
            for number in list(world.running):
                if 0 < world.expected_end_ms(number) <= now_ms and not world.stands_still(number):
                    memory.end(number, now_ms)
                    before.end(number, now_ms)
                    ended_ms[world.row_of[number]] = now_ms
                    world.end(number, now_ms)
                    ended += 1
        if not waiting and not world.is_restless:
            continue
        plan = plan_cycle(
            memory.onto(world.picture(now_ms, np.array(waiting, dtype=np.int64))), policy, plugins
        )
        cycles += 1
        for start in plan.starts:
            turns[start.job_id] = turn
            turn += 1
        await_all(world.follow(plan, now_ms))
        for start in plan.starts:
            place, number = world.row_of[start.job_id], start.job_id
            if started[place] < 0:
                started[place] = now_ms
            memory.start(start, int(world.jobs.user_id[place]), now_ms)
            if place >= len(pending):
                before.begin(number, now_ms)
            least = int(world.jobs.tasks[place])
            await_all(world.runs_for(number, now_ms, run_ms[place], tasks=least, serial_millis=serial[place]))
        moved = [one.job_id for one in plan.resizes] + [one.job_id for one in plan.resumes]
        for number in moved + [one.job_id for one in plan.preempts]:
            memory.hold(number, world.holds(number), now_ms)
            before.change(number, now_ms)
        suspensions += sum(preempt.mode == "suspend" for preempt in plan.preempts)
        resizes += len(plan.resizes)
        if plan.starts:
            begun = {world.row_of[start.job_id] for start in plan.starts}
            waiting = [row for row in waiting if row not in begun]
    return Outcome(
        started[: len(pending)],
        cycles,
        100 * wasted / waited_ms if waited_ms else 0.0,
        100 * broken / waited_ms if waited_ms else 0.0,
        len(stopped),
        lost_ms,
        tuple(row for row in stopped if row < len(pending)),
        suspensions,
        resizes,
        ended_ms[: len(pending)],
        before.busy,
    )


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
