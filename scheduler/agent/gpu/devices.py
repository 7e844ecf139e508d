"""From readings of GPUs to the devices that the agent reports: which there are, and which may be used."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scheduler.agent.gpu import nvml
from scheduler.agent.gpu.device_numbers import DeviceNumbers
from scheduler.agent.gpu.nvml import Reading

#: Slices are numbered from here on, sixteen for each GPU.
FIRST_SLICE: Final = 100
#: Values that change with every reading; a change of them alone is not worth a message to the server.
SAMPLES: Final = ("utilisation_percent", "memory_used_mib", "temperature_c", "power_watts")

#: As the inventory has it, and with `of`: the UUID of the GPU that it is, or is a slice of.
Device = dict[str, Any]


@dataclass(slots=True)
class Observation:
    """All GPUs at one time."""

    #: By UUID.
    devices: dict[str, Device] = field(default_factory=dict)
    #: By the number of the device; devices that do not answer have none.
    readings: dict[int, Reading] = field(default_factory=dict)
    #: Where NVML counts each whole GPU, by UUID.
    nvml_index: dict[str, int] = field(default_factory=dict)

    def all_whole_and_healthy(self) -> bool:
        return all(device["healthy"] and device["of"] == uuid for uuid, device in self.devices.items())


def observe(readings: Sequence[Reading], numbers: DeviceNumbers, before: Mapping[str, Device]) -> Observation:
    """The devices of these readings; a lost GPU keeps the slices that it had `before`, as unhealthy ones."""
    found = Observation(nvml_index={reading.uuid: reading.index for reading in readings})
    for reading in readings:
        if reading.lost and (slices := _slices_of(reading, before)):
            why = "; ".join(reading.faults)
            found.devices |= {device["uuid"]: unhealthy(device, why) for device in slices}
            continue
        for one in reading.slices or [reading]:
            number = _number_of(one, reading, numbers)
            found.readings[number] = one
            found.devices[one.uuid] = _describe(number, one, reading)
    return found


def add_missing(found: Observation, before: Mapping[str, Device], why: str) -> None:
    """Add, as unhealthy, the devices that were there `before` and whose GPU has no reading.

    A GPU that has a reading but other slices than before has been cut anew: its old slices are gone.
    """
    for uuid, device in before.items():
        if uuid not in found.devices and device["of"] not in found.nvml_index:
            found.devices[uuid] = unhealthy(device, why or "the GPU no longer responds")


def mark_foreign_use(
    found: Observation, foreign_use: Mapping[int, str], *, held: set[int], avoid_used: bool
) -> None:
    """Note which devices other programs use; with `avoid_used` no new job gets one, so it counts as unhealthy.

    A device that a task of ours holds stays healthy.
    """
    for device in found.devices.values():
        text = foreign_use.get(device["index"], "")
        if text and avoid_used and device["index"] not in held:
            device["healthy"] = False
        device["trouble"] = "; ".join(filter(None, [device["trouble"], text]))


def unhealthy(device: Device, why: str) -> Device:
    """The same device, without samples and not to be used."""
    facts = without_samples(device)
    return {**facts, "healthy": False, "trouble": why}


def without_samples(device: Device) -> Device:
    return {key: value for key, value in device.items() if key not in SAMPLES}


def short_model(name: str) -> str:
    """`NVIDIA H100 80GB HBM3` -> `H100`: the word people ask for."""
    for word in name.replace("-", " ").split():
        if re.fullmatch(r"[A-Z]{1,3}\d{1,4}[A-Za-z]?", word):
            return word
    return name.removeprefix("NVIDIA ").strip()


def _slices_of(whole: Reading, before: Mapping[str, Device]) -> list[Device]:
    """The slices that this GPU had when it was read last."""
    return [device for uuid, device in before.items() if device["of"] == whole.uuid != uuid]


def _number_of(one: Reading, whole: Reading, numbers: DeviceNumbers) -> int:
    if one is whole:
        return numbers.of(one.uuid, one.index)
    parent = numbers.of(whole.uuid, whole.index)
    return numbers.of(one.uuid, FIRST_SLICE + nvml.SLICE_PLACES * parent + one.index)


def _describe(number: int, one: Reading, whole: Reading) -> Device:
    is_slice = one is not whole
    model = short_model(whole.name)
    device: Device = {
        "index": number,
        "uuid": one.uuid,
        "model": f"{model} MIG {one.name.rpartition(' MIG ')[2]}" if is_slice else model,
        "memory_mib": one.memory_mib,
        "numa_domain": nvml.numa_domain_of(whole.bus),
        "healthy": not whole.faults,
        "fake": False,
        "of": whole.uuid,
        "trouble": "; ".join([*whole.faults, *whole.notes]),
    }
    for name in SAMPLES:
        if (value := getattr(one, name)) is not None:
            device[name] = value
    return device
