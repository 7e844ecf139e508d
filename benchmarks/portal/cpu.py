"""What a job of `true` costs in CPU time, and which processes spend it."""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from typing import Final

import psutil

from benchmarks.portal.at_rest import processes_by_name
from benchmarks.portal.e2e import together
from benchmarks.portal.scratch_portal import CPUS, NODES, Portal, portal
from benchmarks.registry import Figures, benchmark, note

JOBS: Final = 1000
REPEATS: Final = 5
CLIENT: Final = "client"


@benchmark("e2e_cpu_ms_per_job")
def cpu() -> Figures:
    """CPU time of every process of the portal, its agents and the client for 1,000 jobs of `true`: median of five.

    User and system time, with that of children that have ended and were waited for: the tasks' own processes are in
    the figure of the keepers. On a busy machine CPU times are larger, because the cores share caches, but they
    do not have the time of other processes in them.
    """
    running = portal()
    running.start_agents(NODES, cpus=CPUS)
    client = running.client()
    together(client, "before CPU time is measured", JOBS)
    rounds: list[dict[str, float]] = []
    for number in range(REPEATS):
        before = cpu_ms_by_name(running)
        together(client, f"whose CPU time is measured, {number}", JOBS)
        after = cpu_ms_by_name(running)
        rounds.append({name: (after[name] - before.get(name, 0.0)) / JOBS for name in after})
    rounds.sort(key=lambda one: sum(one.values()))
    middle = rounds[REPEATS // 2]
    for name, spent in sorted(middle.items(), key=lambda item: -item[1]):
        note(f"{name:<20} {spent:>6.3f} ms a job")
    yield "e2e_cpu_ms_per_job", statistics.median(sum(one.values()) for one in rounds)


def cpu_ms_by_name(running: Portal) -> dict[str, float]:
    """CPU time in ms of each kind of process until now, with children that have ended; kinds as in `at_rest`."""
    spent: dict[str, float] = defaultdict(float)
    for pid, name in processes_by_name(running).items():
        with contextlib.suppress(psutil.NoSuchProcess):
            spent[name] += cpu_ms(psutil.Process(pid))
    own = psutil.Process().cpu_times()
    spent[CLIENT] = (own.user + own.system) * 1000
    return spent


def cpu_ms(process: psutil.Process) -> float:
    """CPU time in ms of a process and of the children that it has waited for."""
    times = process.cpu_times()
    ended = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return float(times.user + times.system + ended) * 1000
