"""What a simulated schedule was like: waits, slowdown, use, fairness, and who lost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scheduler.core.columns import Ints

Floats = npt.NDArray[np.float64]

#: Runs shorter than this count as this long, so that a second's job that waits a minute is not a disaster.
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
    #: Of all GPUs while jobs that want GPUs waited: those that stood idle, and those of no use to the usual requests.
    idle_while_waiting_percent: float
    fragmentation_percent: float
    preemptions: int
    lost_gpu_hours: float  # that stopped jobs had run for nothing
    suspensions: int = 0  # jobs that was suspended for others
    resizes: int = 0  # elastic jobs that were made smaller or larger

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(
    policy: str,
    *,
    submitted_ms: Ints,
    started_ms: Ints,
    run_ms: Ints,
    amounts: Ints,
    capacity: int,
    user_id: Ints,
    idle_while_waiting_percent: float = 0.0,
    fragmentation_percent: float = 0.0,
    preemptions: int = 0,
    lost_gpu_hours: float = 0.0,
    suspensions: int = 0,
    resizes: int = 0,
    ended_ms: Ints | None = None,
    begin_ms: int = 0,
    busy_before: float = 0.0,
) -> Report:
    """The figures of a schedule; a start of -1 is a job that never started, and counts only as such.

    `ended_ms`: where jobs be suspended or change their size, and so do not end when their run time is over. What
    they be suspended counts for the slowdown as a wait does. Jobs may have come before `begin_ms`, when the playing
    began; `busy_before` is what others, that ran by then already, held from then on (amounts times ms).
    """
    ran = started_ms >= 0
    wait, run = (started_ms - submitted_ms)[ran], run_ms[ran]
    ended = started_ms[ran] + run
    if ended_ms is not None:
        ended = np.where(ended_ms[ran] < 0, ended, ended_ms[ran])
    slowdown = bounded_slowdown(ended - submitted_ms[ran] - run, run)
    first = max(int(submitted_ms.min()), begin_ms) if len(submitted_ms) else begin_ms
    last = int(ended.max(initial=first))
    span = max(last - first, 1)
    busy = float((amounts[ran].astype(np.float64) * run).sum()) + busy_before
    return Report(
        policy=policy,
        jobs=len(submitted_ms),
        started=int(ran.sum()),
        wait_mean_seconds=_mean(wait) / 1000,
        wait_p50_seconds=_percentile(wait, 50) / 1000,
        wait_p95_seconds=_percentile(wait, 95) / 1000,
        wait_max_seconds=float(wait.max(initial=0)) / 1000,
        bounded_slowdown_mean=_mean(slowdown),
        bounded_slowdown_p95=_percentile(slowdown, 95),
        utilisation_percent=100 * busy / (span * max(capacity, 1)),
        makespan_seconds=span / 1000,
        fairness=jain(_mean_by(user_id[ran], slowdown)),
        idle_while_waiting_percent=idle_while_waiting_percent,
        fragmentation_percent=fragmentation_percent,
        preemptions=preemptions,
        lost_gpu_hours=lost_gpu_hours,
        suspensions=suspensions,
        resizes=resizes,
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
    name: str = ""  # what the user is called, where that is known

    @property
    def lost_seconds(self) -> float:
        return self.wait_after_seconds - self.wait_before_seconds


def who_lost(
    before_ms: Ints, after_ms: Ints, submitted_ms: Ints, user_id: Ints, *, most: int = 10
) -> tuple[Loser, ...]:
    """The users whose mean wait grew most from one schedule to another, the worst first."""
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
