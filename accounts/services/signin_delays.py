"""How long one has to wait after wrong passwords: plain arithmetic, without rows and clocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bound:
    """A number of failures without delay; after that the delay doubles with each failure, up to a maximum."""

    free: int
    first_seconds: float
    most_seconds: float

    def delay(self, failures: int) -> float:
        """Seconds until the next try, after this number of recent failures."""
        beyond = failures - self.free
        if beyond <= 0:
            return 0.0
        # 2**40 first seconds are more than any most; a larger power would only cost memory.
        return float(min(self.most_seconds, self.first_seconds * 2 ** min(beyond - 1, 40)))
