"""What this machine has: CPUs, memory, storage, GPUs and NUMA domains, measured or as the command line says."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scheduler.agent import VERSION, numa, processes
from scheduler.agent.cpus import usable_cpus
from scheduler.agent.gpu.devices import SAMPLES
from scheduler.agent.gpu.gpus import Gpus
from scheduler.agent.node.fake_gpus import parse_fake_gpus
from scheduler.agent.node.health_check import HealthCheck

MIB: Final = 1024 * 1024
#: How often the machine is measured again.
MEASURE_SECONDS: Final = 30.0

Inventory = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says; None is measured."""

    cpus: int | None = None
    memory_mib: int | None = None
    storage_mib: int | None = None
    fake_gpus: str = ""
    no_gpus: bool = False
    #: Give no job a GPU that a program which we did not start is using.
    avoid_used_gpus: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()
    numa_domains: int | None = None


class MeasuredInventory:
    """The inventory of this agent: measured now and then, and sent when the server does not have it yet."""

    def __init__(
        self,
        overrides: Overrides,
        state: Path,
        gpus: Gpus | None,
        *,
        isolation: dict[str, Any] | None = None,
        fault: Callable[[], str] = str,
        health: HealthCheck | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._overrides, self._state, self._gpus, self._clock = overrides, state, gpus, clock
        #: What keeps jobs apart here, and why no task can start now; only the fault changes while the agent runs.
        self._isolation, self._fault = isolation or {}, fault
        self._health = health
        self._measured: Inventory = {}
        self._measured_at = 0.0
        self._gpus_version = 0
        self._problem: str | None = None
        self._sent: Inventory | None = None

    def current(self) -> Inventory:
        """The inventory, measured anew when it is old or when a GPU has changed."""
        now = self._clock()
        version = self._gpus.version if self._gpus else 0
        problem = self._health.problem if self._health else None
        is_old = now - self._measured_at > MEASURE_SECONDS
        if not self._measured or is_old or version != self._gpus_version or problem != self._problem:
            self._measured = take_inventory(self._overrides, self._state, self._gpus)
            if problem is not None:
                self._measured["health_problem"] = problem
            self._measured_at, self._gpus_version, self._problem = now, version, problem
        if self._measured.get("isolation") != (isolation := {**self._isolation, **self._fault_said()}):
            self._measured = {**self._measured, "isolation": isolation}
        return self._measured

    def _fault_said(self) -> dict[str, str]:
        return {"fault": fault} if (fault := self._fault()) else {}

    def to_send(self) -> Inventory | None:
        """The inventory, where the server has another one or older samples; None where it need not be sent."""
        current = self.current()
        if self._sent is None:
            return current
        has_samples = any(name in device for device in current["devices"] for name in SAMPLES)
        if has_samples and current is not self._sent:
            return current
        return current if without_samples(current) != without_samples(self._sent) else None

    def was_sent(self, inventory: Inventory) -> None:
        self._sent = inventory

    def send_again(self) -> None:
        """The server has lost it: `to_send` returns it in any case."""
        self._sent = None


def take_inventory(overrides: Overrides, state: Path, gpus: Gpus | None = None) -> Inventory:
    """Everything that the server should know of this machine, in the server's units; `gpus` are the real ones."""
    parts = numa.domains(overrides.numa_domains)
    domains = len(parts)
    cpus, memory = overrides.cpus or cpu_count(), overrides.memory_mib or memory_mib()
    return {
        "hostname": socket.gethostname(),
        "agent_version": VERSION,
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "boot_id": processes.boot_id(),
        "cpu_millis": cpus * 1000,
        "memory_mib": memory,
        "storage_mib": overrides.storage_mib or storage_mib(state),
        "numa_domains": domains,
        "domains": _domains(parts, cpus, memory) if domains > 1 else [],
        "labels": overrides.labels,
        "partitions": list(overrides.partitions),
        "devices": _devices(overrides, parts, gpus),
        "gpu_trouble": gpus.trouble() if gpus else "",
    }


def _devices(overrides: Overrides, parts: list[numa.Domain], gpus: Gpus | None) -> list[dict[str, Any]]:
    """The GPUs, each with the NUMA domain that it is reported in."""
    if overrides.fake_gpus:
        fakes = parse_fake_gpus(overrides.fake_gpus)
        for position, device in enumerate(fakes):
            device["numa_domain"] = parts[position * len(parts) // len(fakes)].number
        return fakes
    devices = gpus.devices() if gpus else []
    for device in devices:
        if all(device["numa_domain"] != part.number for part in parts):
            device["numa_domain"] = parts[-1].number  # fewer domains are laid out than the machine has
    return devices


def cpu_count() -> int:
    """How many cores this process may use, which in a container may be fewer than the machine has."""
    return len(usable_cpus()) or os.cpu_count() or 1


def memory_mib() -> int:
    """The machine's memory, or the limit of our cgroup when that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(limit).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            total = min(total, int(text))
    return int(total // MIB)


def storage_mib(state: Path) -> int:
    return shutil.disk_usage(state).total // MIB


def _domains(parts: list[numa.Domain], cpus: int, memory: int) -> list[dict[str, int]]:
    """The offered CPUs and memory, divided over the NUMA domains in the machine's own proportions."""
    cores = numa.shares(cpus, [len(part.cpus) if part.real else 1 for part in parts])
    amounts = numa.shares(memory, [part.memory_mib for part in parts])
    return [
        {"number": part.number, "cpu_millis": count * 1000, "memory_mib": amount}
        for part, count, amount in zip(parts, cores, amounts, strict=True)
    ]


def without_samples(inventory: Inventory) -> Inventory:
    """The inventory without temperatures and other values that change all the time."""
    devices = [{k: v for k, v in device.items() if k not in SAMPLES} for device in inventory["devices"]]
    return {**inventory, "devices": devices}
