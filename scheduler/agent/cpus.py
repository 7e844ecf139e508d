"""What a task may use at most: on which CPUs it runs, and how much memory its processes hold together."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MIB = 1024 * 1024


def usable() -> list[int]:
    """The CPUs that this process may run on; none where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def choose_cpus(
    limit_millis: int | None, among: Iterable[int], bound: Iterable[Iterable[int]]
) -> tuple[int, ...]:
    """As many whole CPUs as hold the limit, those with the fewest bound tasks first; () = all there are.

    `among` are those it may have, `bound` the CPUs of every task that is bound already.
    """
    there = set(usable())
    allowed = sorted(there & set(among)) or sorted(there)
    count = len(allowed) if limit_millis is None else max(1, -(-limit_millis // 1000))
    if count >= len(allowed):
        return () if len(allowed) == len(there) else tuple(allowed)
    taken = Counter(cpu for cpus in bound for cpu in cpus)
    return tuple(sorted(sorted(allowed, key=lambda cpu: (taken[cpu], cpu))[:count]))


@contextlib.contextmanager
def on_cpus(cpus: tuple[int, ...]) -> Iterator[None]:
    """What is started inside runs on these CPUs, as does all that it starts; () = wherever it likes."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def held_mib(pids: Iterable[int], over_mib: int) -> int:
    """MiB that these processes hold together.

    Pages that several share are divided among them, which is slow to ask: only where they would be over
    `over_mib` if each page were counted as often as it is shared.
    """
    pids = list(pids)
    held = sum(map(_resident_bytes, pids))
    if held > over_mib * _MIB:
        held = sum(map(_own_bytes, pids))
    return held // _MIB


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def _own_bytes(pid: int) -> int:
    """Its share of every page it has in memory; all of them where the system does not tell the shares."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    return _resident_bytes(pid)
