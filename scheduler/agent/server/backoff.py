"""How long the agent waits for a server that does not answer."""

from __future__ import annotations

import random
import threading
from typing import Final

#: The longest wait after each of the first failures, and how many failures these are.
PATIENT_SECONDS: Final = 1.0
PATIENT_FAILURES: Final = 40


class Backoff:
    """Waits longer after each failure, with jitter so that a fleet does not come back in step.

    For half a minute the waits stay within a second: that long a restart of a web server or of a database takes, and
    new jobs wait for us as long as we wait.
    """

    def __init__(self, first_seconds: float = 0.2, most_seconds: float = 5.0) -> None:
        self.first_seconds, self.most_seconds = first_seconds, most_seconds
        self.failures = 0

    def succeeded(self) -> None:
        self.failures = 0

    def wait(self, stopping: threading.Event) -> None:
        """Count a failure, and wait; return at once when the agent stops."""
        most = (
            self.most_seconds if self.failures > PATIENT_FAILURES else min(PATIENT_SECONDS, self.most_seconds)
        )
        seconds = min(most, self.first_seconds * 2 ** min(self.failures, 10))
        self.failures += 1
        stopping.wait(seconds * (0.5 + random.random() / 2))
