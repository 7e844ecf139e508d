"""Forecast: when each pending job is likely to start, found by playing the planner forward."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from scheduler.core.backfill.backfill import FOREVER_MS
from scheduler.core.backfill.cluster_backfill import lengths_ms
from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.virtual_cluster import Event, VirtualCluster, moments_of
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
from scheduler.core.plan import Decision, Plan
from scheduler.core.policy import Policy
from scheduler.core.reason_codes import CATEGORY, ReasonCategory
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.snapshot import Snapshot

#: What part of its limit a job runs for, in thousandths, where nothing is known of its owner: the mean of the
#: deciles (5th, 15th, ... percentile) of KTH-SP2, CTC-SP2, SDSC-SP2, SDSC-BLUE and CEA-Curie.
PRIOR: Final = (2, 20, 49, 98, 157, 255, 400, 579, 804, 1000)
#: So many finished jobs say something of the next one.
LEAST_RUNS: Final = 5
#: No start later than this is forecast.
FARTHEST_MS: Final = 30 * 24 * 3_600_000
#: Of the jobs like it so many are shorter than one of the short future.
_SHORT: Final = 0.1
#: A multiplier without a common measure with anything: neighbours get run times that lie far from each other.
_GOLDEN: Final = 0.618_033_988_749_895
#: The first third of a future is played moment by moment; then what ends within so much of the time gone by
#: is one moment, and in the last third within so much.
_STEPS: Final = (0.0, 0.03, 0.12)


class Course(StrEnum):
    """How long jobs run in a future."""

    LIMITS = "limits"  # each until its limit: the latest it can be
    TYPICAL = "typical"  # some short, some long, as they were before
    SHORT = "short"  # each as short as one in ten


@dataclass(frozen=True, slots=True)
class RunTimes:
    """How long earlier jobs ran: sorted points, of a person, of a project, of everybody.

    `parts` are thousandths of what was asked for; `seconds` are those of jobs that had no limit.
    """

    parts_of_user: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    parts_of_project: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    parts: tuple[int, ...] = ()
    seconds_of_user: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    seconds_of_project: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    seconds: tuple[int, ...] = ()

    __hash__ = None  # type: ignore[assignment]

    def length_ms(
        self, user: int, project: int, limit_ms: int, share: float, elapsed_ms: int = 0
    ) -> int | None:
        """How long such a job runs if `share` (0..1) of those like it are shorter; None = nobody knows.

        Of one that has run for a while already only those are like it that ran longer.
        """
        if limit_ms == FOREVER_MS:
            points = self._points(user, project, self.seconds_of_user, self.seconds_of_project, self.seconds)
            lengths = [point * 1000 for point in points]
        else:
            points = self._points(user, project, self.parts_of_user, self.parts_of_project, self.parts)
            lengths = [limit_ms * point // 1000 for point in points or PRIOR]
        longer = [length for length in lengths if length > elapsed_ms]
        if longer:
            return max(longer[min(int(share * len(longer)), len(longer) - 1)], 1000)
        return None if limit_ms == FOREVER_MS else limit_ms

    @staticmethod
    def _points(
        user: int,
        project: int,
        of_user: Mapping[int, tuple[int, ...]],
        of_project: Mapping[int, tuple[int, ...]],
        of_all: tuple[int, ...],
    ) -> tuple[int, ...]:
        for points in (of_user.get(user, ()), of_project.get(project, ()), of_all):
            if len(points) >= LEAST_RUNS:
                return points
        return ()


@dataclass(frozen=True, slots=True)
class Forecast:
    """When one job starts, by quantiles. None = nobody knows, and `unknown` says why."""

    job_id: int
    p10_ms: int | None = None
    p50_ms: int | None = None
    p90_ms: int | None = None
    ends_first: int = 0  # running jobs that end before it starts, if all run to their limits
    ahead_jobs: int = 0
    unknown: str = ""


@dataclass(slots=True)
class Future:
    """One course of things: when each job started, and how it stood at last with those that did not."""

    started_ms: dict[int, int] = field(default_factory=dict)
    ends_first: dict[int, int] = field(default_factory=dict)
    ahead_jobs: dict[int, int] = field(default_factory=dict)
    decisions: dict[int, Decision] = field(default_factory=dict)
    endless: int = 0  # jobs that run on, and nobody knows until when
    cut_short: bool = False  # it went on, but nobody looked further


def forecast(
    snapshot: Snapshot,
    policy: Policy,
    runs: RunTimes | None = None,
    *,
    jobs: Collection[int] | None = None,
    most_cycles: int = 400,
    plugins: Plugins = NO_PLUGINS,
) -> dict[int, Forecast]:
    """When each pending job (or each of `jobs`) is likely to start, if nobody else comes.

    Idea: play the cluster on, under a virtual clock, with the planner itself, in three futures. In one every
    job runs to its limit, in one as long as such jobs are seen to run, in one every job is as short
    as one in ten. No dice: equal worlds have equal forecasts. `most_cycles` bounds each future: what is
    further away is looked at in coarser steps, and what is too far away is not known.
    """
    wanted = sorted(snapshot.pending.id.tolist() if jobs is None else set(jobs))
    limits, typical, short = (
        play_forward(
            snapshot, policy, runs or RunTimes(), course, wanted, most_cycles=most_cycles, plugins=plugins
        )
        for course in (Course.LIMITS, Course.TYPICAL, Course.SHORT)
    )
    found = {}
    for number in wanted:
        latest, middle, earliest = (one.started_ms.get(number) for one in (limits, typical, short))
        # Ending early can delay somebody, rarely: then the futures are not in order, and the range holds all.
        known = [at_ms for at_ms in (earliest, middle, latest) if at_ms is not None]
        found[number] = Forecast(
            number,
            min(known, default=None) if earliest is not None else None,
            middle if middle is None or latest is None else min(max(middle, min(known)), max(known)),
            max(known) if latest is not None else None,
            limits.ends_first.get(number, 0),
            limits.ahead_jobs.get(number, 0),
            "" if latest is not None else _why_unknown(number, limits),
        )
    return found


def play_forward(
    snapshot: Snapshot,
    policy: Policy,
    history: RunTimes,
    course: Course,
    wanted: Collection[int],
    *,
    most_cycles: int = 400,
    until_ms: int = FOREVER_MS,
    plugins: Plugins = NO_PLUGINS,
) -> Future:
    """Let time pass until the wanted jobs have started, nothing happens any more, or `until_ms` is over."""
    played = _Course(snapshot, policy, history, course, wanted)
    for cycle in range(most_cycles):
        played.plan(plugins)
        if played.is_over or not played.advance(cycle, most_cycles, until_ms):
            break
    else:
        played.future.cut_short = True
    return played.result()


class _Course:
    """One future being played: the virtual cluster, the events to come, and what is known of the wanted jobs."""

    def __init__(
        self, snapshot: Snapshot, policy: Policy, history: RunTimes, course: Course, wanted: Collection[int]
    ) -> None:
        self.future = Future()
        self._policy, self._history, self._course = policy, history, course
        self._cluster = cluster = VirtualCluster.at_first(snapshot, resize_seconds=policy.resize_seconds)
        jobs = cluster.jobs
        bounds = snapshot.queues.max_wall_seconds[np.searchsorted(snapshot.queues.id, jobs.queue_id)]
        self._limits_ms: list[int] = lengths_ms(jobs.time_limit_seconds, bounds).tolist()
        self._origin_ms = self._now_ms = snapshot.now_ms
        self._events: list[Event] = [(at_ms, 0) for at_ms in moments_of(snapshot)]
        heapq.heapify(self._events)
        self._left = set(wanted)
        self._waiting = list(range(len(snapshot.pending)))
        self._plan: Plan | None = None
        self._begin_running(snapshot)
        self._first, self._ended_first = set(cluster.running), 0

    def _begin_running(self, snapshot: Snapshot) -> None:
        running, cluster = snapshot.running, self._cluster
        for number, started_ms, end_ms, stop_by_ms, user, project in zip(
            running.id.tolist(), running.started_ms.tolist(), running.expected_end_ms.tolist(),
            running.stop_by_ms.tolist(), running.user_id.tolist(), running.project_id.tolist(), strict=True,
        ):  # fmt: skip
            if stop_by_ms and not cluster.stands_still(number):
                length = max(end_ms - self._now_ms, 1000) if end_ms else None
                self._await(cluster.runs_for(number, self._now_ms, length))
            else:
                self._run(number, started_ms, end_ms - started_ms if end_ms else FOREVER_MS, user, project)

    def _run(self, number: int, started_ms: int, limit_ms: int, user: int, project: int) -> None:
        """Say how long a running job takes in this course."""
        length: int | None = None if limit_ms == FOREVER_MS else limit_ms
        if self._course is not Course.LIMITS:
            share = _SHORT if self._course is Course.SHORT else number * _GOLDEN % 1.0
            ran_ms = self._now_ms - started_ms
            length = self._history.length_ms(user, project, limit_ms, share, ran_ms)
        if length is None:
            self.future.endless += 1
        left = None if length is None else max(started_ms + length - self._now_ms, 1000)
        self._await(self._cluster.runs_for(number, self._now_ms, left))

    def _await(self, events: Iterable[Event]) -> None:
        for at_ms, number in events:
            heapq.heappush(self._events, (max(at_ms, self._now_ms + 1000), number))

    @property
    def is_over(self) -> bool:
        """Whether all wanted jobs have started, or nothing will happen any more."""
        return not self._left or not self._events

    def plan(self, plugins: Plugins) -> None:
        """Plan a cycle for this moment and let what it decided happen."""
        cluster, jobs = self._cluster, self._cluster.jobs
        picture = cluster.picture(self._now_ms, np.array(self._waiting, dtype=np.int64))
        plan = plan_cycle(picture, self._policy, plugins)
        self._await(cluster.follow(plan, self._now_ms))
        for start in plan.starts:
            number, row = start.job_id, cluster.row_of[start.job_id]
            if number in self._left:
                self._left.discard(number)
                self.future.started_ms[number] = self._now_ms
                self.future.ends_first[number] = self._ended_first
            user, project = jobs.user_id.item(row), jobs.project_id.item(row)
            self._run(number, self._now_ms, self._limits_ms[row], user, project)
        if self._plan is None:
            ahead = zip(plan.waiting.job_id.tolist(), plan.waiting.ahead_jobs.tolist(), strict=True)
            self.future.ahead_jobs = dict(ahead)
        self._plan = plan
        if plan.starts:
            started = {start.job_id for start in plan.starts}
            self._waiting = [row for row in self._waiting if jobs.id.item(row) not in started]

    def advance(self, cycle: int, most_cycles: int, until_ms: int) -> bool:
        """Go on by a step that is coarser the more of the cycles are used up; False past the farthest moment."""
        next_ms = self._events[0][0]
        if next_ms > min(self._origin_ms + FARTHEST_MS, until_ms):
            self.future.cut_short = True
            return False
        step = _STEPS[min(3 * cycle // most_cycles, 2)]
        through_ms = next_ms + int(step * (next_ms - self._origin_ms))
        while self._events and self._events[0][0] <= through_ms:
            self._now_ms, number = heapq.heappop(self._events)
            due_ms = self._cluster.due_ms(number)
            if due_ms is None or due_ms > self._now_ms:
                continue  # the job has ended, or its end has moved since
            self._ended_first += number in self._first
            requeue = self._cluster.end(number, self._now_ms)
            if requeue is not None:
                self._waiting.append(requeue.row)
        return True

    def result(self) -> Future:
        """The future, with the last reason of every wanted job that did not start."""
        if self._plan is not None:
            waiting = self._plan.waiting
            reasons = dict(zip(waiting.job_id.tolist(), waiting.decision.tolist(), strict=True))
            self.future.decisions = {
                number: self._plan.decisions[reasons[number]] for number in self._left if number in reasons
            }
        return self.future


def _why_unknown(number: int, future: Future) -> str:
    """In a sentence why nobody knows the latest start of a job."""
    decision = future.decisions.get(number)
    if decision is None:
        return "The job is not in the scheduler's queue."
    if CATEGORY[decision.reason] is not ReasonCategory.WAIT:
        return sentence(decision.reason, decision.facts)
    if future.cut_short:
        ahead = future.ahead_jobs.get(number, 0)
        return f"Beyond the prediction horizon: {ahead:,} {'job' if ahead == 1 else 'jobs'} ahead."
    if future.endless:
        one = future.endless == 1
        return (
            f"{future.endless:,} {'job' if one else 'jobs'} that may delay the start {'has' if one else 'have'} "
            "no time limit."
        )
    return f"No known end of another job makes room. {sentence(decision.reason, decision.facts)}"


def points_of(values: Iterable[int], *, most: int = 40) -> tuple[int, ...]:
    """So many at most of the values, sorted, at even distances: what `RunTimes` needs of a long history."""
    ordered = sorted(values)
    if len(ordered) <= most:
        return tuple(ordered)
    return tuple(ordered[(2 * place + 1) * len(ordered) // (2 * most)] for place in range(most))
