"""What this machine has: CPUs, memory, storage, GPUs and NUMA domains, measured or as the command line says."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import re
import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scheduler.agent import VERSION, processes

MIB: Final = 1024 * 1024
#: `4xH100-80GB` or `2xA100-40GB,2xT4-16GB`: count, model, memory; `1xH100-80GB:3x1g.10gb+2x2g.20gb` is cut.
_FAKE: Final = re.compile(r"(\d{1,3})x([A-Za-z0-9][A-Za-z0-9 ._/-]*?)-(\d{1,5})(?:GB|GiB|G)(?::(.+))?")
_FAKE_SLICE: Final = re.compile(r"(\d)x([1-7])g\.(\d{1,3})gb")
#: The parts that a device may be cut into.
_PARTS: Final = 7
#: Slices of real devices are numbered from here on, sixteen for each device.
FIRST_SLICE: Final = 100


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says; None is measured."""

    cpus: int | None = None
    memory_mib: int | None = None
    storage_mib: int | None = None
    fake_gpus: str = ""
    no_gpus: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()
    numa_domains: int | None = None


class BadFakeGpus(ValueError):
    """`--fake-gpus` cannot be read."""


def take_inventory(overrides: Overrides, state: Path) -> dict[str, Any]:
    """Everything the server should know of this machine, in its units."""
    devices = _devices(overrides)
    domains = overrides.numa_domains or numa_domains()
    if overrides.fake_gpus:
        for position, device in enumerate(devices):
            device["numa_domain"] = position * domains // len(devices)
    return {
        "hostname": socket.gethostname(),
        "agent_version": VERSION,
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "boot_id": processes.boot_id(),
        "cpu_millis": (overrides.cpus or usable_cpus()) * 1000,
        "memory_mib": overrides.memory_mib or memory_mib(),
        "storage_mib": overrides.storage_mib or storage_mib(state),
        "numa_domains": domains,
        "labels": overrides.labels,
        "partitions": list(overrides.partitions),
        "devices": devices,
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


def numa_domains() -> int:
    return max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))))


def _devices(overrides: Overrides) -> list[dict[str, Any]]:
    if overrides.fake_gpus:
        return parse_fake_gpus(overrides.fake_gpus)
    return [] if overrides.no_gpus else real_gpus()


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


def real_gpus() -> list[dict[str, Any]]:
    """The GPUs that NVML finds; none when there is no NVIDIA driver or no nvidia-ml-py."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        found = [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        return [one for device in found for one in (_slices(nvml, device) or [device])]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def _device(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    device: dict[str, Any] = {
        "index": index,
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "model": short_model(_text(nvml.nvmlDeviceGetName(handle))),
        "memory_mib": memory.total // MIB,
        "numa_domain": _numa_of(nvml, handle),
        "healthy": True,
        "fake": False,
        "memory_used_mib": memory.used // MIB,
    }
    # Not every device tells.
    with contextlib.suppress(nvml.NVMLError):
        device["utilisation_percent"] = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    with contextlib.suppress(nvml.NVMLError):
        device["temperature_c"] = int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    return device


def _slices(nvml: Any, device: dict[str, Any]) -> list[dict[str, Any]]:
    """What a device is cut into, each with the name and the UUID that programs are given; [] = it is whole."""
    handle = nvml.nvmlDeviceGetHandleByIndex(device["index"])
    try:
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return []
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except (nvml.NVMLError, AttributeError):
        return []  # it cannot be cut, or the library is too old to tell
    found = []
    for place in range(most):
        try:
            one = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            memory = nvml.nvmlDeviceGetMemoryInfo(one)
            name = _text(nvml.nvmlDeviceGetName(one)).rpartition(" MIG ")[2]
            uuid = _text(nvml.nvmlDeviceGetUUID(one))
        except nvml.NVMLError:
            continue  # nothing is cut there
        found.append(
            {
                "index": FIRST_SLICE + 16 * device["index"] + place,
                "uuid": uuid,
                "model": f"{device['model']} MIG {name}",
                "memory_mib": memory.total // MIB,
                "numa_domain": device["numa_domain"],
                "healthy": True,
                "fake": False,
            }
        )
    return found


def _numa_of(nvml: Any, handle: Any) -> int:
    """The domain of the PCI slot the device sits in."""
    try:
        bus = _text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()
        domain, _, rest = bus.partition(":")
        return max(0, int(Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text()))
    except (nvml.NVMLError, OSError, ValueError):
        return 0


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def short_model(name: str) -> str:
    """`NVIDIA H100 80GB HBM3` -> `H100`: the word people ask for."""
    for word in name.replace("-", " ").split():
        if re.fullmatch(r"[A-Z]{1,3}\d{1,4}[A-Za-z]?", word):
            return word
    return name.removeprefix("NVIDIA ").strip()


#: Read anew each time, and never worth a message of their own.
SAMPLES: Final = ("utilisation_percent", "memory_used_mib", "temperature_c")


def without_samples(inventory: dict[str, Any]) -> dict[str, Any]:
    devices = [{k: v for k, v in device.items() if k not in SAMPLES} for device in inventory["devices"]]
    return {**inventory, "devices": devices}
