"""When a delivery that failed is tried again, and when an endpoint has failed for too long."""

from __future__ import annotations

from typing import Final

_MINUTE, _HOUR = 60.0, 3600.0
#: Seconds from one try to the next, as Standard Webhooks advises: soon, then rarely, for about four days.
STEPS: Final = (
    5.0, 30.0, 2 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE, _HOUR, 2 * _HOUR, 4 * _HOUR, 8 * _HOUR, 12 * _HOUR,
    24 * _HOUR, 24 * _HOUR, 24 * _HOUR,
)  # fmt: skip
#: Each wait is up to this part longer, so that all that failed together does not come back together.
JITTER: Final = 0.25
MAX_TRIES: Final = len(STEPS) + 1


def wait_seconds(tries: int, chance: float) -> float | None:
    """Seconds until the next try after `tries` of them (1 or more); None when there is none. `chance` is 0 to 1."""
    if tries >= MAX_TRIES:
        return None
    return STEPS[tries - 1] * (1 + JITTER * chance)
