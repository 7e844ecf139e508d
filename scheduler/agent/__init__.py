"""The program on a compute node: it registers, asks for work, runs it as real processes and reports (no Django)."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
#: Raised when agent and server could no longer understand each other.
PROTOCOL: Final = 1
