"""What the agent prints."""

from __future__ import annotations

from datetime import UTC, datetime


def say(text: str) -> None:
    """One line with the time, in UTC, on standard output."""
    print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + f"Z {text}", flush=True)
