"""How fast this core is beside the reference core: bars in time are the figures of that one."""

from __future__ import annotations

import heapq
import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Final

#: What one put and one take cost the reference core (AMD EPYC, family 26, Python 3.11), in ns: a deque's append and
#: popleft, a dict's set and delete, a heap's push and pop of packed integers, each with 10,000 entries.
PUBLISHED_NS: Final = {"deque": 15 + 16, "dict": 27 + 36, "heap": 98 + 193}

_ENTRIES: Final = 10_000
_TURNS: Final = 5_000


def _deque() -> float:
    band = deque(range(_ENTRIES))
    append, popleft = band.append, band.popleft
    begin = time.thread_time_ns()
    for number in range(_TURNS):
        append(number)
    for _ in range(_TURNS):
        popleft()
    return (time.thread_time_ns() - begin) / _TURNS


def _dict() -> float:
    known = dict.fromkeys(range(_ENTRIES), 0)
    keys = list(range(_ENTRIES // 4, _ENTRIES // 4 + _TURNS))
    begin = time.thread_time_ns()
    for key in keys:
        known[key] = key
    for key in keys:
        del known[key]
    return (time.thread_time_ns() - begin) / _TURNS


def _heap() -> float:
    dice = random.Random(1)
    heap = [dice.getrandbits(60) for _ in range(_ENTRIES)]
    heapq.heapify(heap)
    more = [dice.getrandbits(60) for _ in range(_TURNS)]
    push, pop = heapq.heappush, heapq.heappop
    begin = time.thread_time_ns()
    for number in more:
        push(heap, number)
    for _ in range(_TURNS):
        pop(heap)
    return (time.thread_time_ns() - begin) / _TURNS


_MEASURED: Final[dict[str, Callable[[], float]]] = {"deque": _deque, "dict": _dict, "heap": _heap}


def core_ratio(*, repeats: int = 15) -> float:
    """How many times as long as the reference core this one takes just now; 1 = as long, 2 = twice.

    In CPU time: what others compute meanwhile must not make this core look slow, and so our figures good.
    The median of three ratios, each of medians: operations that were measured on the reference core and
    that have nothing to do with the code whose figures are divided by this.
    """
    return statistics.median(
        statistics.median(measure() for _ in range(repeats)) / PUBLISHED_NS[name]
        for name, measure in _MEASURED.items()
    )
