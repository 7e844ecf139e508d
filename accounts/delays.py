"""How long one has to wait after wrong passwords: plain arithmetic, without rows and clocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bound:
    """So many failures cost nothing; then the wait doubles with each, up to a most."""

    free: int
    first_seconds: float
    most_seconds: float

    def delay(self, failures: int) -> float:
        """Seconds until the next try, after so many failures that are not forgotten."""
        beyond = failures - self.free
        if beyond <= 0:
            return 0.0
        # 2**40 first seconds are more than any most; a larger power would only cost memory.
        return float(min(self.most_seconds, self.first_seconds * 2 ** min(beyond - 1, 40)))
