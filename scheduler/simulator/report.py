"""The figures of a simulated schedule: waits, slowdown, utilisation, fairness, and the users who wait longer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scheduler.core.columns import Bools, Ints

Floats = npt.NDArray[np.float64]

#: Shorter runs count as this long, so that a job of one second that waits a minute does not dominate the mean.
_SHORTEST_RUN_MS: Final = 10_000


def bounded_slowdown(wait_ms: Ints, run_ms: Ints) -> Floats:
    """max(1, (wait + run) / max(run, 10 s)) of each job."""
    slowdown: Floats = np.maximum(1.0, (wait_ms + run_ms) / np.maximum(run_ms, _SHORTEST_RUN_MS))
    return slowdown


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one policy on one workload. Times in seconds."""

    policy: str
    jobs: int
    started: int
    wait_mean_seconds: float
    wait_p50_seconds: float
    wait_p95_seconds: float
    wait_max_seconds: float
    bounded_slowdown_mean: float
    bounded_slowdown_p95: float
    utilisation_percent: float  # of the machine, from the first arrival (or the beginning) to the last end
    makespan_seconds: float
    fairness: float  # Jain's index of the users' mean slowdown: 1 = all alike, 1/n = one has it all
    idle_while_waiting_percent: float  # these are explained at `Interventions`
    fragmentation_percent: float
    preemptions: int
    lost_gpu_hours: float
    suspensions: int = 0
    resizes: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PlayedSchedule:
    """Jobs and when each started: one entry of each array for each job. A start of -1 = it never started."""

    submitted_ms: Ints
    started_ms: Ints
    run_ms: Ints  # how long the job runs when nothing interrupts it and its size does not change
    amounts: Ints  # what it holds, in the unit of `capacity`
    capacity: int
    user_id: Ints
    users: Mapping[int, str] = field(default_factory=dict)  # user id -> name, where names are known
    #: Where jobs are suspended or resized, and so do not end when their run time is over; -1 = not ended.
    ended_ms: Ints | None = None
    #: When the simulation began, where jobs may have been submitted before it.
    begin_ms: int = 0
    #: What the jobs that ran at that moment held from then on: `amounts` times ms.
    busy_before: float = 0.0

    __hash__ = None  # type: ignore[assignment]

    @property
    def ran(self) -> Bools:
        """Which jobs started."""
        return self.started_ms >= 0

    @property
    def last_ms(self) -> Ints:
        """When each job that started ended, or would have with its run time."""
        ran = self.ran
        ended: Ints = self.started_ms[ran] + self.run_ms[ran]
        return ended if self.ended_ms is None else np.where(self.ended_ms[ran] < 0, ended, self.ended_ms[ran])


@dataclass(frozen=True, slots=True)
class Interventions:
    """How often running jobs were interrupted, and which part of the GPUs was of no use meanwhile."""

    #: Of all GPUs while jobs that ask for GPUs waited: the idle ones, and those of no use to the usual requests.
    idle_while_waiting_percent: float = 0.0
    fragmentation_percent: float = 0.0
    preemptions: int = 0
    lost_gpu_hours: float = 0.0  # of work that preempted jobs have to do again
    suspensions: int = 0
    resizes: int = 0


def summarise(policy: str, schedule: PlayedSchedule, counted: Interventions = Interventions()) -> Report:
    """The figures of a schedule. A job that never started counts only as such; a suspension counts as a wait."""
    ran = schedule.ran
    submitted, run = schedule.submitted_ms[ran], schedule.run_ms[ran]
    wait, ended = schedule.started_ms[ran] - submitted, schedule.last_ms
    slowdown = bounded_slowdown(ended - submitted - run, run)
    jobs = len(schedule.submitted_ms)
    first = max(int(schedule.submitted_ms.min()), schedule.begin_ms) if jobs else schedule.begin_ms
    span = max(int(ended.max(initial=first)) - first, 1)
    busy = float((schedule.amounts[ran].astype(np.float64) * run).sum()) + schedule.busy_before
    return Report(
        policy=policy,
        jobs=jobs,
        started=int(ran.sum()),
        wait_mean_seconds=_mean(wait) / 1000,
        wait_p50_seconds=_percentile(wait, 50) / 1000,
        wait_p95_seconds=_percentile(wait, 95) / 1000,
        wait_max_seconds=float(wait.max(initial=0)) / 1000,
        bounded_slowdown_mean=_mean(slowdown),
        bounded_slowdown_p95=_percentile(slowdown, 95),
        utilisation_percent=100 * busy / (span * max(schedule.capacity, 1)),
        makespan_seconds=span / 1000,
        fairness=jain(_mean_by(schedule.user_id[ran], slowdown)),
        **asdict(counted),
    )


def jain(values: Floats) -> float:
    """How evenly values are spread: 1 = all equal, 1/n = one of n has everything."""
    squares = float((values**2).sum())
    return float(values.sum() ** 2 / (len(values) * squares)) if squares else 1.0


@dataclass(frozen=True, slots=True)
class Loser:
    """A user whose jobs waited longer under the second policy than under the first."""

    user_id: int
    jobs: int
    wait_before_seconds: float
    wait_after_seconds: float
    name: str = ""  # of the user, where it is known

    @property
    def lost_seconds(self) -> float:
        return self.wait_after_seconds - self.wait_before_seconds


def who_lost(
    before_ms: Ints, after_ms: Ints, submitted_ms: Ints, user_id: Ints, *, most: int = 10
) -> tuple[Loser, ...]:
    """At most `most` users whose mean wait grew from one schedule to the other, the largest growth first."""
    both = (before_ms >= 0) & (after_ms >= 0)
    users, place = np.unique(user_id[both], return_inverse=True)
    if not len(users):
        return ()
    counts = np.bincount(place)
    before = np.bincount(place, weights=(before_ms - submitted_ms)[both]) / counts / 1000
    after = np.bincount(place, weights=(after_ms - submitted_ms)[both]) / counts / 1000
    order = np.lexsort((users, before - after))
    return tuple(
        Loser(int(users[row]), int(counts[row]), float(before[row]), float(after[row]))
        for row in order[:most].tolist()
        if after[row] > before[row]
    )


def _mean(values: Ints | Floats) -> float:
    return float(values.mean()) if len(values) else 0.0


def _percentile(values: Ints | Floats, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else 0.0


def _mean_by(keys: Ints, values: Floats) -> Floats:
    place = np.unique(keys, return_inverse=True)[1]
    counts = np.bincount(place)
    means: Floats = np.bincount(place, weights=values) / np.maximum(counts, 1)
    return means
