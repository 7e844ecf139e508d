"""What this machine has: CPUs, memory, storage, GPUs and NUMA domains, measured or as the command line says."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scheduler.agent import VERSION, numa, processes
from scheduler.agent.gpus import SAMPLES, Gpus

MIB: Final = 1024 * 1024
#: `4xH100-80GB` or `2xA100-40GB,2xT4-16GB`: count, model, memory; `1xH100-80GB:3x1g.10gb+2x2g.20gb` is cut.
_FAKE: Final = re.compile(r"(\d{1,3})x([A-Za-z0-9][A-Za-z0-9 ._/-]*?)-(\d{1,5})(?:GB|GiB|G)(?::(.+))?")
_FAKE_SLICE: Final = re.compile(r"(\d)x([1-7])g\.(\d{1,3})gb")
#: The parts that a device may be cut into.
_PARTS: Final = 7


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


class BadFakeGpus(ValueError):
    """`--fake-gpus` cannot be read."""


def take_inventory(overrides: Overrides, state: Path, gpus: Gpus | None = None) -> dict[str, Any]:
    """Everything the server should know of this machine, in its units; `gpus` are those that are really there."""
    devices = parse_fake_gpus(overrides.fake_gpus) if overrides.fake_gpus else gpus.devices() if gpus else []
    parts = numa.domains(overrides.numa_domains)
    domains = len(parts)
    cpus, memory = overrides.cpus or usable_cpus(), overrides.memory_mib or memory_mib()
    for position, device in enumerate(devices):
        if overrides.fake_gpus:
            device["numa_domain"] = parts[position * domains // len(devices)].number
        elif all(device["numa_domain"] != part.number for part in parts):
            device["numa_domain"] = parts[-1].number  # fewer are laid out than there are
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
        "devices": devices,
        "gpu_trouble": gpus.trouble() if gpus else "",
    }


def usable_cpus() -> int:
    """The cores this process may use, which in a container may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_mib() -> int:
    """The machine's memory, or the limit of the cgroup we are in when that is lower."""
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
    """What is offered, divided over the NUMA domains as the machine divides what it has."""
    cores = numa.shares(cpus, [len(part.cpus) if part.real else 1 for part in parts])
    amounts = numa.shares(memory, [part.memory_mib for part in parts])
    return [
        {"number": part.number, "cpu_millis": count * 1000, "memory_mib": amount}
        for part, count, amount in zip(parts, cores, amounts, strict=True)
    ]


def parse_fake_gpus(text: str) -> list[dict[str, Any]]:
    """Devices to pretend: marked as fake everywhere, and nothing ever computes on them."""
    devices: list[dict[str, Any]] = []
    for part in text.split(","):
        match = _FAKE.fullmatch(part.strip())
        if match is None:
            raise BadFakeGpus(f"{part!r} is not COUNTxMODEL-MEMORYGB; write for example 4xH100-80GB")
        count, model, gigabytes, cut = match.groups()
        for _ in range(int(count)):
            for name, memory in _fake_slices(cut, part, int(gigabytes)) or [("", int(gigabytes))]:
                index = len(devices)
                devices.append(
                    {
                        "index": index,
                        "uuid": f"FAKE-{index}",
                        "model": f"{model} MIG {name}" if name else model,
                        "memory_mib": memory * 1024,
                        "numa_domain": 0,
                        "healthy": True,
                        "fake": True,
                    }
                )
    if not devices:
        raise BadFakeGpus("0 GPUs are none; leave --fake-gpus out")
    return devices


def _fake_slices(cut: str | None, part: str, gigabytes: int) -> list[tuple[str, int]]:
    """(name, GiB) of every slice that one device is cut into; it cannot be cut into more than it has."""
    slices: list[tuple[str, int]] = []
    parts = 0
    for piece in cut.split("+") if cut else []:
        match = _FAKE_SLICE.fullmatch(piece.strip())
        if match is None:
            raise BadFakeGpus(
                f"{piece!r} is not COUNTxSLICE; write for example 1xH100-80GB:3x1g.10gb+2x2g.20gb"
            )
        count, size, memory = map(int, match.groups())
        slices += [(f"{size}g.{memory}gb", memory)] * count
        parts += count * size
    if parts > _PARTS or sum(memory for _, memory in slices) > gigabytes:
        raise BadFakeGpus(f"{part!r} cuts a device into more than its {_PARTS} parts or {gigabytes} GB")
    return slices


def without_samples(inventory: dict[str, Any]) -> dict[str, Any]:
    devices = [{k: v for k, v in device.items() if k not in SAMPLES} for device in inventory["devices"]]
    return {**inventory, "devices": devices}
