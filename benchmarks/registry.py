"""The registry: a benchmark is a function that yields figures, registered by decorating it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Figures = Iterator[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One function, and the keys that it yields."""

    name: str
    keys: tuple[str, ...]
    measure: Callable[[], Figures]

    @property
    def says(self) -> str:
        """What it runs, in the sentence that the function begins with."""
        return (self.measure.__doc__ or "").strip().partition("\n")[0]


class NotMeasuredError(Exception):
    """A benchmark needs something that this machine does not have; the message says what, and how to get it."""


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(*keys: str) -> Callable[[Callable[[], Figures]], Callable[[], Figures]]:
    """Register a function that yields (key, value) for each of these keys."""

    def register(measure: Callable[[], Figures]) -> Callable[[], Figures]:
        BENCHMARKS[measure.__name__] = Benchmark(measure.__name__, keys, measure)
        return measure

    return register


def note(text: str) -> None:
    """Print a line beside the figures: what they are made of, or what was compared."""
    print(f"    {text}", flush=True)


def median_ms(work: Callable[[], object], *, repeats: int = 5) -> float:
    """The median wall time of a call, after one to warm up: for calls that wait on other processes."""
    return _median_ms(work, time.perf_counter_ns, repeats)


def median_cpu_ms(work: Callable[[], object], *, repeats: int = 5) -> float:
    """The median CPU time of a call that neither waits nor threads, after one to warm up.

    On an idle core that is the wall time; on a busy machine it excludes the time of other processes.
    """
    return _median_ms(work, time.thread_time_ns, repeats)


def _median_ms(work: Callable[[], object], clock_ns: Callable[[], int], repeats: int) -> float:
    work()
    spent: list[float] = []
    for _ in range(repeats):
        begin = clock_ns()
        work()
        spent.append((clock_ns() - begin) / 1e6)
    return statistics.median(spent)
