"""The engine: a cluster under a virtual clock; arrivals and ends drive the very planner that runs in production."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from quotas.core.share_tree import ShareTree
from scheduler.core.columns import Ints
from scheduler.core.cycle import plan_cycle
from scheduler.core.plugins import NO_PLUGINS, Plugins
from scheduler.core.policy import Policy
from scheduler.core.snapshot import Snapshot
from scheduler.core.virtual import VirtualCluster, moments_of
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
    #: When each really started (-1 = it has not), where that is known.
    started_ms: Ints | None = None

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
    handled: the rules under which published schedules were made. A job that is stopped for another waits
    again and starts from its beginning.
    """
    snapshot = workload.snapshot
    pending = snapshot.pending
    order = np.lexsort((pending.id, pending.submitted_ms))
    arrivals = [(int(pending.submitted_ms[row]), row) for row in order.tolist()]
    world = VirtualCluster.at_first(snapshot, restarts=policy.preemption.enabled)
    memory = ShareMemory(snapshot, policy, workload.tree)
    fragments = Fragments(snapshot)
    run_ms, gpus = workload.run_ms.tolist(), workload.amounts.tolist()
    ends: list[tuple[int, int, int]] = []  # (end, turn of its start, job id)
    for turn, number in enumerate(world.running):
        expected = world.expected_end_ms(number)
        end_ms = max(expected, snapshot.now_ms) if expected else snapshot.now_ms + DEFAULT_RUN_MS
        heapq.heappush(ends, (end_ms, turn, number))
    for row in range(
        len(pending), len(world.jobs)
    ):  # those that run at the beginning, should they start again
        limit = int(world.jobs.time_limit_seconds[row]) * 1000
        run_ms.append(limit or DEFAULT_RUN_MS)
        gpus.append(0)
    live = {number: turn for turn, number in enumerate(world.running)}
    if not each_event:  # a moment at which nothing ends: the job 0 is none
        for at_ms in moments_of(snapshot):
            heapq.heappush(ends, (at_ms, -1, 0))
    started = np.full(len(world.jobs), -1, dtype=np.int64)
    waiting: list[int] = []
    stopped: list[int] = []
    wants_gpus = np.array([request.per_task.gpus > 0 for request in snapshot.classes] or [False])
    arrived, ended, cycles, turn, lost_ms = 0, 0, 0, len(live), 0
    now_ms = snapshot.now_ms
    waited_ms = wasted = broken = 0.0
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
                _, started_turn, number = heapq.heappop(ends)
                if live.get(number) != started_turn:
                    continue  # it was stopped before
                memory.end(number, now_ms)
                again = world.end(number)
                if again is None:
                    ended += 1
                    if ended % 100 == 0:
                        progress(ended)
                else:
                    waiting.append(again)
                    stopped.append(again)
                    lost_ms += (now_ms - max(int(started[again]), snapshot.now_ms)) * gpus[again] // 1000
                    started[again] = -1
                if each_event:
                    break
        if each_event:
            for number in list(world.running):
                if 0 < world.expected_end_ms(number) <= now_ms:
                    memory.end(number, now_ms)
                    world.end(number)
        if not waiting:
            continue
        plan = plan_cycle(memory.onto(world.picture(now_ms, np.array(waiting, dtype=np.int64))), policy)
        cycles += 1
        for at_ms in world.follow(plan, now_ms):
            heapq.heappush(ends, (at_ms, -1, 0))
        for start in plan.starts:
            place = world.row_of[start.job_id]
            started[place] = now_ms
            memory.start(start, int(world.jobs.user_id[place]), now_ms)
            live[start.job_id] = turn
            heapq.heappush(ends, (now_ms + run_ms[place], turn, start.job_id))
            turn += 1
        for preempt in plan.preempts:  # it may end by itself before
            heapq.heappush(
                ends, (now_ms + preempt.grace_seconds * 1000, live[preempt.job_id], preempt.job_id)
            )
        if plan.starts:
            waiting = [row for row in waiting if started[row] < 0]
    return Outcome(
        started[: len(pending)],
        cycles,
        100 * wasted / waited_ms if waited_ms else 0.0,
        100 * broken / waited_ms if waited_ms else 0.0,
        len(stopped),
        lost_ms,
        tuple(row for row in stopped if row < len(pending)),
    )
