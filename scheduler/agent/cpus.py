"""The CPUs of this machine that a task may run on: which there are, which to choose, how to bind to them."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator


def usable_cpus() -> list[int]:
    """The CPUs that this process may run on; none where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def choose_cpus(
    limit_millis: int | None,
    among: Iterable[int],
    bound: Iterable[Iterable[int]],
    *,
    usable: Iterable[int] | None = None,
) -> tuple[int, ...]:
    """Choose as many whole CPUs as the limit needs, the CPUs with the fewest bound tasks first; () = all CPUs.

    `among` are the CPUs that the task may have, `bound` the CPUs of every task that is bound already;
    `usable` are all there are (default: the CPUs of this process).
    """
    there = set(usable_cpus() if usable is None else usable)
    allowed = sorted(there & set(among)) or sorted(there)
    count = len(allowed) if limit_millis is None else max(1, -(-limit_millis // 1000))
    if count >= len(allowed):
        return () if len(allowed) == len(there) else tuple(allowed)
    taken = Counter(cpu for cpus in bound for cpu in cpus)
    return tuple(sorted(sorted(allowed, key=lambda cpu: (taken[cpu], cpu))[:count]))


@contextlib.contextmanager
def on_cpus(cpus: tuple[int, ...]) -> Iterator[None]:
    """Bind processes that are started inside, and their descendants, to these CPUs; () binds to none."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
