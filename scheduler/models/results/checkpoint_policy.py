"""How a job is asked for checkpoints, as its request says: read from what the job's row keeps."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Signals that a program can handle and that mean nothing else to Muster.
SIGNALS: Final = ("USR1", "USR2", "HUP", "INT", "WINCH", "URG")
#: All processes of a task that handle the signal, or its first one alone.
RECEIVERS: Final = ("all", "shell")
DEFAULT_GRACE: Final = 60
DEFAULT_KEEP: Final = 2


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """What a job asked for; sizes in MiB, times in seconds."""

    signal: str = SIGNALS[0]
    to: str = RECEIVERS[0]
    #: How long before its time limit it is asked, and how long others wait for a checkpoint then.
    grace: int = DEFAULT_GRACE
    #: From one request to the next; None = only when there is a reason.
    every: int | None = None
    #: The newest checkpoints of each task that stay.
    keep: int = DEFAULT_KEEP
    #: What one task's checkpoint may be at most; None = what the site allows.
    max_size_mib: int | None = None

    @property
    def signal_number(self) -> int:
        return int(getattr(signal, f"SIG{self.signal}"))


def policy_of(kept: Mapping[str, Any]) -> CheckpointPolicy | None:
    """What the job's row says; None for a job that makes no checkpoints."""
    return CheckpointPolicy(**kept) if kept else None
