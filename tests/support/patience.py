"""How long a test waits before it calls something late."""

from __future__ import annotations

import os


def patience(seconds: float) -> float:
    """So many seconds on a quiet machine; more where others compute too, for being slow is not being wrong."""
    return seconds * (1 + os.getloadavg()[0] / (os.cpu_count() or 1))
