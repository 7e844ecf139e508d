"""The program on a compute node: it registers, asks for work, runs it as real processes and reports (no Django)."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
#: What this agent says, and the newest that this server understands. Raised when a message changes its meaning.
PROTOCOL: Final[int] = 2
#: The oldest that this server serves: that of the release before, so that agents can be upgraded after it.
OLDEST_PROTOCOL: Final[int] = 1
