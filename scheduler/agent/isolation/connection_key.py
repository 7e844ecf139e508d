"""The key that proves to a shim that an agent of its own node is connecting.

Where jobs share the agent's account and its view of the files, they could connect to the shim's socket as well:
Landlock keeps them from reading the key, not from connecting. A folder without a key is one whose jobs cannot reach it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

FILE: Final = "keeper.key"


def read_key(state: Path) -> str:
    """The key of this state folder; empty where it has none. Raises OSError where it cannot be read."""
    try:
        return (state / FILE).read_text().strip()
    except FileNotFoundError:
        return ""


def ensure_key(state: Path) -> None:
    """Have this state folder keep a key from now on."""
    with contextlib.suppress(FileExistsError):
        fresh = state / f"{FILE}.{os.getpid()}"
        fresh.write_text(os.urandom(32).hex())
        fresh.chmod(0o600)
        try:
            os.link(fresh, state / FILE)
        finally:
            fresh.unlink()
