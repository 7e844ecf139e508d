"""What of GPUs outlives the agent: their numbers, and how tasks have used them. Valid until the machine restarts."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scheduler.agent import processes
from scheduler.agent.gpu.usage import Use


@dataclass(frozen=True, slots=True)
class GpuState:
    """Numbers by UUID, uses by task key."""

    numbers: Mapping[str, int] = field(default_factory=dict)
    uses: Mapping[str, Use] = field(default_factory=dict)


class GpuStateFile:
    """`gpus.json` of the state folder; without a folder nothing is kept."""

    def __init__(self, state: Path | None) -> None:
        self._path = state / "gpus.json" if state else None
        self._saved = ""

    def load(self) -> GpuState:
        """What was saved since the machine started; nothing that ran before it does so now."""
        if self._path is None:
            return GpuState()
        try:
            saved = json.loads(self._path.read_text())
            if saved["boot_id"] != processes.boot_id():
                return GpuState()
            return GpuState(
                numbers={str(uuid): int(number) for uuid, number in saved["numbers"].items()},
                uses={str(key): Use(**use) for key, use in saved["uses"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return GpuState()

    def save(self, numbers: Mapping[str, int], uses: Mapping[str, Use]) -> None:
        """Write what has changed, once there is a GPU; a full disk is ignored, so that the GPUs stay watched."""
        if self._path is None or not numbers:
            return
        plain = {key: asdict(use) for key, use in uses.items()}
        text = json.dumps({"boot_id": processes.boot_id(), "numbers": dict(numbers), "uses": plain})
        if text == self._saved:
            return
        fresh = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(text)
            fresh.replace(self._path)
            self._saved = text
