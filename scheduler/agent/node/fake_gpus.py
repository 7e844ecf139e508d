"""GPUs that a demo pretends to have: `--fake-gpus 4xH100-80GB`."""

from __future__ import annotations

import re
from typing import Any, Final

#: `4xH100-80GB` or `2xA100-40GB,2xT4-16GB`: count, model, memory; `1xH100-80GB:3x1g.10gb+2x2g.20gb` has slices.
_GPUS: Final = re.compile(r"(\d{1,3})x([A-Za-z0-9][A-Za-z0-9 ._/-]*?)-(\d{1,5})(?:GB|GiB|G)(?::(.+))?")
_SLICES: Final = re.compile(r"(\d)x([1-7])g\.(\d{1,3})gb")
#: The compute slices of a device that MIG can divide.
_COMPUTE_SLICES: Final = 7


class BadFakeGpus(ValueError):
    """`--fake-gpus` cannot be read."""


def parse_fake_gpus(text: str) -> list[dict[str, Any]]:
    """Devices to pretend: marked as fake everywhere, and nothing ever computes on them. Raises BadFakeGpus."""
    devices: list[dict[str, Any]] = []
    for part in text.split(","):
        match = _GPUS.fullmatch(part.strip())
        if match is None:
            raise BadFakeGpus(f"{part!r} is not COUNTxMODEL-MEMORYGB; write for example 4xH100-80GB")
        count, model, gigabytes, slices = match.groups()
        for _ in range(int(count)):
            for name, memory in _parse_slices(slices, part, int(gigabytes)) or [("", int(gigabytes))]:
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


def _parse_slices(text: str | None, part: str, gigabytes: int) -> list[tuple[str, int]]:
    """(name, GiB) of every slice of one device; raises BadFakeGpus where they exceed the device."""
    slices: list[tuple[str, int]] = []
    used = 0
    for piece in text.split("+") if text else []:
        match = _SLICES.fullmatch(piece.strip())
        if match is None:
            raise BadFakeGpus(
                f"{piece!r} is not COUNTxSLICE; write for example 1xH100-80GB:3x1g.10gb+2x2g.20gb"
            )
        count, size, memory = map(int, match.groups())
        slices += [(f"{size}g.{memory}gb", memory)] * count
        used += count * size
    if used > _COMPUTE_SLICES or sum(memory for _, memory in slices) > gigabytes:
        raise BadFakeGpus(
            f"{part!r} cuts a device into more than its {_COMPUTE_SLICES} parts or {gigabytes} GB"
        )
    return slices
