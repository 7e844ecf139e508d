"""Memory of a portal and eight nodes that have nothing to do."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import psutil

from benchmarks.portal.scratch_portal import CPUS, NODES, Portal, portal
from benchmarks.registry import Figures, NotMeasuredError, benchmark, note

#: From the start of the last agent until everything that begins late has begun.
REST_SECONDS: Final = 30.0
LOOKS: Final = 3


@benchmark("pss_mib_at_rest", "pss_mib_web_worker")
def at_rest() -> Figures:
    """PSS of every process of a portal with eight agents, 30 s after the last one came: median of three looks.

    PSS divides a page by the number of processes that map it, so the sum is what the machine gives up. It is smaller
    where a second portal runs beside, and larger after other benchmarks used this one: it is meant to come first.
    """
    running = portal()
    running.start_agents(NODES, cpus=CPUS)
    try:
        time.sleep(REST_SECONDS)
        looks = []
        for _ in range(LOOKS):
            looks.append(pss_by_name(running))
            time.sleep(1)
    finally:
        running.stop_agents()
    looks.sort(key=lambda look: sum(map(sum, look.values())))
    middle = looks[LOOKS // 2]
    for name, sizes in sorted(middle.items(), key=lambda item: -sum(item[1])):
        note(f"{name:<20} {len(sizes):>2} processes {sum(sizes):>7.1f} MiB")
    yield "pss_mib_at_rest", sum(map(sum, middle.values()))
    yield "pss_mib_web_worker", max(middle["web"])


def pss_by_name(running: Portal) -> dict[str, list[float]]:
    """MiB of each process, under the name of the file in run/ that has its number."""
    found: dict[str, list[float]] = defaultdict(list)
    for pid, name in processes_by_name(running).items():
        with contextlib.suppress(psutil.NoSuchProcess):
            try:
                size = psutil.Process(pid).memory_full_info().pss
            except (psutil.AccessDenied, AttributeError) as problem:
                raise NotMeasuredError(f"the memory of {name} cannot be read here: {problem!r}") from problem
            found[name].append(size / 2**20)
    return found


def processes_by_name(running: Portal) -> dict[int, str]:
    """Number and name of the supervisor, of all below it, of the agents and of their keepers."""
    state, stack = running.stack.state, running.stack
    assert stack.popen is not None
    found = {stack.popen.pid: "supervisor"}
    for file in (state / "run").glob("*.pid"):
        name = file.stem.removesuffix("-spare").split("-")[0] if file.stem.startswith("web") else file.stem
        _add(found, _number(file), name)
    for agent in running.agents:
        _add(found, agent.pid, "agents")
    for lock in (state / "bench-agents").glob("*/keeper.lock"):
        _add(found, _number(lock), "keepers")
    for process in stack.descendants():
        found.setdefault(process.pid, "other")
    return found


def _add(found: dict[int, str], pid: int, name: str) -> None:
    """A process and those below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            found[process.pid] = name


def _number(file: Path) -> int:
    return int(file.read_text().split()[0])
