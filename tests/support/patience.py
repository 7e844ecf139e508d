"""How long a test waits before it calls something late."""

from __future__ import annotations

import os
from collections.abc import Iterator


def patience(seconds: float) -> float:
    """So many seconds on a quiet machine; more where others compute too, for being slow is not being wrong."""
    return seconds * (1 + os.getloadavg()[0] / (os.cpu_count() or 1))


#: Seconds between two looks at most: a look may take a plan, and to look all the time takes what a job needs.
LONGEST_PAUSE = 0.1


def pauses(first: float) -> Iterator[float]:
    """How long to wait between asking again and again, in seconds: what takes long is asked for less often."""
    pause, longest = first, max(first, min(5 * first, LONGEST_PAUSE))
    while True:
        yield pause
        pause = min(pause * 1.25, longest)
