"""The values of tasks' secrets on the node, for a next agent that has to mask what an adopted task goes on printing.

One file for each task, for the agent's account alone, in memory (`memory.claim`), or in the state folder where the
machine has no place in memory; no job can see either. A file is written before its task starts and removed when the
task is forgotten: when the server has its output to the end.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from scheduler.agent.secret_values.masks import Mask
from scheduler.agent.secret_values.memory import MASKS, folders

_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class SecretStore:
    """The values of one state folder's tasks, and the masks of those that are known; None keeps nothing.

    `memory` is its folder in memory, "" for none. What is in any other place where one may have been is found as well.
    """

    def __init__(self, state: Path | None, memory: str = "") -> None:
        on_disk = (state or Path(os.devnull)) / "secrets"
        self._folder = Path(memory) / MASKS if memory else on_disk
        self._others = [one / MASKS for one in folders(state)] if state else []
        self._others = [one for one in (on_disk, *self._others) if one != self._folder]
        self.masks: dict[str, Mask] = {}

    def keep(self, key: str, values: Sequence[str]) -> None:
        """Write down what is masked in the output of a task; raises OSError, and then the task must not start."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._folder / key, _WRITE, 0o600)
        try:
            data = json.dumps(list(values)).encode()
            while data:
                data = data[os.write(file, data) :]
        finally:
            os.close(file)
        self.masks[key] = Mask(values)

    def load(self, key: str) -> None:
        """What an agent before this one has kept; where that is gone or broken, all output is masked."""
        values = None
        for folder in (*self._others, self._folder):
            with contextlib.suppress(OSError, ValueError):
                values = json.loads((folder / key).read_bytes())
        known = isinstance(values, list) and all(isinstance(value, str) for value in values)
        self.masks[key] = Mask(values if known else None)

    def forget(self, keys: Iterable[str]) -> None:
        """Remove the values of these tasks, where they had any."""
        for key in keys:
            self.masks.pop(key, None)
            for folder in (self._folder, *self._others):
                with contextlib.suppress(OSError):
                    os.unlink(folder / key)

    def forget_all_but(self, known: Collection[str]) -> None:
        """Remove what an agent before this one has left of tasks that nobody knows."""
        for folder in (self._folder, *self._others):
            with contextlib.suppress(OSError):
                self.forget([name for name in os.listdir(folder) if name not in known])
