"""Forecast: when each pending job is likely to start, found by playing the planner forward."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from scheduler.core.backfill.backfill import FOREVER_MS
from scheduler.core.backfill.cluster_backfill import lengths_ms
from scheduler.core.forecast.event_loop import EventLoop
from scheduler.core.forecast.virtual_cluster import VirtualCluster, moments_of
from scheduler.core.placement.plugins import NO_PLUGINS, Plugins
from scheduler.core.plan import Decision, Plan
from scheduler.core.policy import Policy
from scheduler.core.reason_codes import CATEGORY, ReasonCategory
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.likely_ends import likely_ends_ms
from scheduler.core.snapshot.snapshot import Snapshot

#: What part of its limit a job runs, in thousandths, where no earlier jobs are known: the mean of the deciles
#: (5th, 15th, ... percentile) of KTH-SP2, CTC-SP2, SDSC-SP2, SDSC-BLUE and CEA-Curie.
PRIOR: Final = (2, 20, 49, 98, 157, 255, 400, 579, 804, 1000)
#: Fewer finished jobs than this say nothing about the next one.
LEAST_RUNS: Final = 5
#: No start later than this is forecast.
FARTHEST_MS: Final = 30 * 24 * 3_600_000
#: In the short future a job runs as long as this part of such jobs at most.
_SHORT: Final = 0.1
#: In the future of the limits a job without a limit runs as long as this part of such jobs.
_LONG: Final = 0.9
#: The golden ratio spreads consecutive job ids evenly over 0..1, so that neighbours get different run times.
_GOLDEN: Final = 0.618_033_988_749_895
#: Steps in each third of the cycles, as a part of the time since the beginning: ends within one step are planned
#: together. In the first third each moment is planned on its own.
STEPS: Final = (0.0, 0.03, 0.12)
#: No event comes sooner after the decision that it follows from.
LEAST_STEP_MS: Final = 1000


class Course(StrEnum):
    """How long jobs run in a future."""

    LIMITS = "limits"  # each until its limit: the latest starts
    TYPICAL = "typical"  # some short, some long, as earlier jobs
    SHORT = "short"  # each as short as the shortest tenth of earlier jobs


@dataclass(frozen=True, slots=True)
class RunTimes:
    """How long earlier jobs ran, as sorted samples: of a user, of a project, of all.

    `parts` are thousandths of the time limit; `seconds` are run times of jobs that had no limit.
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
        """How long a job runs if `share` (0..1) of such jobs are shorter; None = unknown.

        For a job that has run for `elapsed_ms` only jobs that ran longer count.
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

    def course_ms(
        self,
        course: Course,
        job_id: int,
        user: int,
        project: int,
        limit_ms: int,
        elapsed_ms: int,
        likely_ms: int,
    ) -> int | None:
        """How long a job that has run for `elapsed_ms` runs in a future; None = unknown.

        `likely_ms` is how long a job without a limit is likely to run (0 = unknown). It counts where there is no
        history. In the future of the limits such a job runs as long as nine of ten that ran for `elapsed_ms`, and not
        shorter than it is likely to.
        """
        if course is Course.LIMITS and limit_ms != FOREVER_MS:
            return limit_ms
        if course is Course.LIMITS:
            length = self.length_ms(user, project, limit_ms, _LONG, elapsed_ms)
            return max(length or 0, likely_ms) if likely_ms > 0 else None
        share = _SHORT if course is Course.SHORT else job_id * _GOLDEN % 1.0
        return self.length_ms(user, project, limit_ms, share, elapsed_ms) or max(likely_ms, 0) or None

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
    """When one job starts, by quantiles. None = unknown, and `unknown` says why."""

    job_id: int
    p10_ms: int | None = None
    p50_ms: int | None = None
    p90_ms: int | None = None
    ends_first: int = 0  # running jobs that end before it starts, if all run to their limits
    ahead_jobs: int = 0
    unknown: str = ""
    #: The ends of the range before calibration; None = it is not calibrated.
    raw_p10_ms: int | None = None
    raw_p90_ms: int | None = None


@dataclass(slots=True)
class Future:
    """What happened in one future: when each job started, and the last reason of each that did not."""

    started_ms: dict[int, int] = field(default_factory=dict)
    ends_first: dict[int, int] = field(default_factory=dict)
    ahead_jobs: dict[int, int] = field(default_factory=dict)
    decisions: dict[int, Decision] = field(default_factory=dict)
    endless: int = 0  # running jobs whose end is unknown
    cut_short: bool = False  # events were left that were not looked at


def forecast(
    snapshot: Snapshot,
    policy: Policy,
    runs: RunTimes | None = None,
    *,
    jobs: Collection[int] | None = None,
    most_cycles: int = 400,
    plugins: Plugins = NO_PLUGINS,
) -> dict[int, Forecast]:
    """When each pending job (or each of `jobs`) is likely to start, if no other job is submitted.

    The planner itself plays the cluster forward under a virtual clock, in three futures: every job runs to its
    limit; as long as such jobs ran before; as short as the shortest tenth of them. Nothing is random: equal snapshots
    have equal forecasts. `most_cycles` bounds each future: later moments are planned in coarser steps, and a start
    after the last cycle is unknown.
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
        found[number] = Forecast(
            number,
            *in_order(earliest, middle, latest),
            limits.ends_first.get(number, 0),
            limits.ahead_jobs.get(number, 0),
            "" if latest is not None else _why_unknown(number, limits),
        )
    return found


def in_order(
    earliest: int | None, middle: int | None, latest: int | None
) -> tuple[int | None, int | None, int | None]:
    """P10, P50 and P90 in ms from the starts of a job in the three futures; None = it did not start there.

    Rarely an early end delays another job: then the futures are not in order, and the range holds all of them.
    """
    known = [at_ms for at_ms in (earliest, middle, latest) if at_ms is not None]
    return (
        min(known) if earliest is not None else None,
        middle if middle is None or latest is None else min(max(middle, min(known)), max(known)),
        max(known) if latest is not None else None,
    )


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
    """Play the planner on until the wanted jobs have started, no event is left, or `until_ms` is over."""
    playback = _Playback(snapshot, policy, history, course, wanted)
    for cycle in range(most_cycles):
        playback.plan(plugins)
        if playback.is_over or not playback.advance(cycle, most_cycles, until_ms):
            break
    else:
        playback.future.cut_short = True
    return playback.result()


class _Playback:
    """One future while it is played: the event loop, and what is known of the wanted jobs."""

    def __init__(
        self, snapshot: Snapshot, policy: Policy, history: RunTimes, course: Course, wanted: Collection[int]
    ) -> None:
        self.future = Future()
        self._policy, self._history, self._course = policy, history, course
        cluster = VirtualCluster(snapshot, resize_seconds=policy.resize_seconds)
        self._jobs = cluster.jobs
        bounds = snapshot.queues.max_wall_seconds[np.searchsorted(snapshot.queues.id, self._jobs.queue_id)]
        self._limits_ms: list[int] = lengths_ms(self._jobs.time_limit_seconds, bounds).tolist()
        self._begin_ms = snapshot.now_ms
        self._loop = EventLoop(
            cluster,
            snapshot.now_ms,
            waiting=range(len(snapshot.pending)),
            moments=moments_of(snapshot),
            least_step_ms=LEAST_STEP_MS,
        )
        self._left = set(wanted)
        self._plan: Plan | None = None
        self._ran_first, self._ended_first = set(cluster.running), 0
        self._begin_running(snapshot)

    def _begin_running(self, snapshot: Snapshot) -> None:
        running, now_ms = snapshot.running, snapshot.now_ms
        for number, started_ms, end_ms, likely_ms, stop_by_ms, user, project in zip(
            running.id.tolist(), running.started_ms.tolist(), running.expected_end_ms.tolist(),
            likely_ends_ms(running, now_ms).tolist(), running.stop_by_ms.tolist(), running.user_id.tolist(),
            running.project_id.tolist(), strict=True,
        ):  # fmt: skip
            if stop_by_ms and not self._loop.cluster.is_suspended(number):
                self._loop.run(number, max(end_ms - now_ms, 1000) if end_ms else None)
            else:
                limit_ms = end_ms - started_ms if end_ms else FOREVER_MS
                self._run(number, started_ms, limit_ms, user, project, likely_ms=likely_ms - started_ms)

    def _run(
        self, number: int, started_ms: int, limit_ms: int, user: int, project: int, *, likely_ms: int
    ) -> None:
        """Say how long a running job takes in this course; `likely_ms` is of a job without a limit (0 = unknown)."""
        now_ms = self._loop.now_ms
        length = self._history.course_ms(
            self._course, number, user, project, limit_ms, now_ms - started_ms, likely_ms
        )
        if length is None:
            self.future.endless += 1
        self._loop.run(number, None if length is None else max(started_ms + length - now_ms, 1000))

    @property
    def is_over(self) -> bool:
        """Whether all wanted jobs have started, or no event is left."""
        return not self._left or self._loop.next_ms is None

    def plan(self, plugins: Plugins) -> None:
        """Plan a cycle for this moment, and note which wanted jobs it starts."""
        now_ms, jobs = self._loop.now_ms, self._jobs
        plan = self._loop.plan(self._policy, plugins)
        for start in plan.starts:
            number, row = start.job_id, self._loop.cluster.row_of[start.job_id]
            if number in self._left:
                self._left.discard(number)
                self.future.started_ms[number] = now_ms
                self.future.ends_first[number] = self._ended_first
            self._run(
                number, now_ms, self._limits_ms[row], jobs.user_id.item(row), jobs.project_id.item(row),
                likely_ms=jobs.predicted_seconds.item(row) * 1000,
            )  # fmt: skip
        if self._plan is None:
            ahead = zip(plan.waiting.job_id.tolist(), plan.waiting.ahead_jobs.tolist(), strict=True)
            self.future.ahead_jobs = dict(ahead)
        self._plan = plan

    def advance(self, cycle: int, most_cycles: int, until_ms: int) -> bool:
        """Go on by a step that grows with the cycles used so far; False after the farthest moment."""
        next_ms = self._loop.next_ms
        if next_ms is None or next_ms > min(self._begin_ms + FARTHEST_MS, until_ms):
            self.future.cut_short = True
            return False
        step = STEPS[min(3 * cycle // most_cycles, 2)]
        for number, _ in self._loop.ends(next_ms + int(step * (next_ms - self._begin_ms))):
            self._ended_first += number in self._ran_first
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
    """A sentence that says why the latest start of a job is unknown."""
    decision = future.decisions.get(number)
    if decision is None:
        return "The job is not in the scheduler's queue."
    if CATEGORY[decision.reason] is not ReasonCategory.WAIT:
        return sentence(decision.reason, decision.facts)
    if future.cut_short:
        ahead = future.ahead_jobs.get(number, 0)
        behind = f", behind {ahead:,} {'job' if ahead == 1 else 'jobs'}" if ahead else ""
        return f"The start is beyond the prediction horizon{behind}."
    if future.endless:
        one = future.endless == 1
        return (
            f"{future.endless:,} {'job' if one else 'jobs'} that may delay the start {'has' if one else 'have'} "
            "no time limit."
        )
    return f"No known end of another job frees enough resources. {sentence(decision.reason, decision.facts)}"


def points_of(values: Iterable[int], *, most: int = 40) -> tuple[int, ...]:
    """At most `most` of the values, sorted, at even distances: what `RunTimes` needs of a long history."""
    ordered = sorted(values)
    if len(ordered) <= most:
        return tuple(ordered)
    return tuple(ordered[(2 * place + 1) * len(ordered) // (2 * most)] for place in range(most))
