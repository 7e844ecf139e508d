"""The local nodes that `manage.py up` runs: each is an agent on this machine in the role of a machine of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One agent. Made-up GPUs say so in its labels; real ones belong to one agent of a machine only."""

    name: str
    cpus: int
    memory_mib: int
    fake_gpus: str = ""
    has_real_gpus: bool = False
    labels: str = ""
    numa_domains: int = 1

    def agent_arguments(self) -> list[str]:
        arguments = ["--name", self.name, "--cpus", str(self.cpus), "--memory-mib", str(self.memory_mib)]
        if self.fake_gpus:
            arguments += ["--fake-gpus", self.fake_gpus]
        elif not self.has_real_gpus:
            arguments += ["--no-gpus"]
        if self.numa_domains > 1:
            arguments += ["--numa-domains", str(self.numa_domains)]
        if self.labels:
            arguments += ["--labels", self.labels]
        return arguments


PLAIN = "demo=true"
SIMULATED = "demo=true,gpus=simulated"
# A small cluster with something to decide: two plain machines, and two kinds of GPU.
DEMO = (
    LocalNode("node-1", cpus=8, memory_mib=32 * 1024, labels=PLAIN, has_real_gpus=True),
    LocalNode("node-2", cpus=8, memory_mib=32 * 1024, labels=PLAIN),
    LocalNode(
        "node-3", cpus=32, memory_mib=256 * 1024, fake_gpus="4xA100-80GB", labels=SIMULATED, numa_domains=2
    ),
    LocalNode(
        "node-4", cpus=64, memory_mib=512 * 1024, fake_gpus="8xH100-80GB", labels=SIMULATED, numa_domains=2
    ),
)


def demo_nodes(count: int) -> list[LocalNode]:
    """The first nodes of the demo cluster; further ones repeat its kinds."""
    kinds = [DEMO[index % len(DEMO)] for index in range(count)]
    return [
        replace(kind, name=f"node-{index}", has_real_gpus=index == 1)
        for index, kind in enumerate(kinds, start=1)
    ]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def this_machine(count: int) -> list[LocalNode]:
    """This machine's own cores and memory, shared out evenly, so that nothing is promised twice."""
    if count == 0:
        return []
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return [
        LocalNode(
            f"node-{index}",
            cpus=max(1, cores() // count),
            memory_mib=memory_mib // count,
            has_real_gpus=index == 1,
        )
        for index in range(1, count + 1)
    ]


def remember(file: Path, nodes: Iterable[LocalNode]) -> None:
    """Write down what these nodes are, for a start that finds their jobs running."""
    file.write_text(json.dumps([asdict(node) for node in nodes]))


def remembered(file: Path) -> dict[str, LocalNode]:
    """The nodes of the start before this one, by name; none where nothing readable was kept."""
    try:
        return {each["name"]: LocalNode(**each) for each in json.loads(file.read_text())}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
