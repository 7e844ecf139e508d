"""The registry: a benchmark is a function that yields figures, registered by decorating it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Figures = Iterator[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One function, and the keys it promises to yield."""

    name: str
    keys: tuple[str, ...]
    measure: Callable[[], Figures]


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(*keys: str) -> Callable[[Callable[[], Figures]], Callable[[], Figures]]:
    """Register a function that yields (key, value) for each of these keys."""

    def register(measure: Callable[[], Figures]) -> Callable[[], Figures]:
        BENCHMARKS[measure.__name__] = Benchmark(measure.__name__, keys, measure)
        return measure

    return register


def median_ms(work: Callable[[], object], *, repeats: int = 5) -> float:
    """The median wall time of a call, after one to warm up."""
    work()
    return statistics.median(_timed_ms(work) for _ in range(repeats))


def _timed_ms(work: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - begin) / 1e6
