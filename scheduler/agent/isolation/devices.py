"""The device files of a task's GPUs, by the UUIDs of these."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_DRIVER: Final = "/proc/driver/nvidia/gpus"
#: What every program that uses a GPU opens as well.
_SHARED: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


def gpu_files(uuids: Iterable[str]) -> list[str]:
    """The files of these GPUs, and those that all share; of a slice, all that slices have, for it has no own name."""
    wanted = list(uuids)
    if not wanted:
        return []
    by_uuid = _files_by_uuid()
    if any(uuid not in by_uuid for uuid in wanted):
        own = [*by_uuid.values(), *glob.glob("/dev/nvidia-caps/*")]
    else:
        own = [by_uuid[uuid] for uuid in wanted]
    return [path for path in (*own, *_SHARED) if os.path.exists(path)]


def _files_by_uuid() -> dict[str, str]:
    """As the driver lists its GPUs: `GPU UUID` and `Device Minor`."""
    found: dict[str, str] = {}
    for path in glob.glob(f"{_DRIVER}/*/information"):
        facts = {}
        try:
            for line in Path(path).read_text().splitlines():
                name, _, value = line.partition(":")
                facts[name.strip()] = value.strip()
        except OSError:
            continue
        if "GPU UUID" in facts and facts.get("Device Minor", "").isdecimal():
            found[facts["GPU UUID"]] = f"/dev/nvidia{facts['Device Minor']}"
    return found
