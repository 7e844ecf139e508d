"""How much memory a web process may hold: beyond it, it finishes what it has begun, ends, and is started again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from config.up.state import StateError

DEFAULT_MIB: Final = 2048
LEAST_MIB: Final = 256
LOOK_SECONDS: Final = 0.25
#: From the ceiling until it ends in any case; what a request leaves running is not waited for.
DRAIN_SECONDS: Final = 8.0
#: Beyond this multiple of the ceiling there is no time to finish anything.
AT_ONCE: Final = 1.5
#: "Temporary failure" of sysexits.h; the supervisor's line names it.
EXIT_CODE: Final = 75


def ceiling_mib() -> int:
    """MUSTER_WEB_MEMORY_MIB, or its default; 0 is none."""
    given = os.environ.get("MUSTER_WEB_MEMORY_MIB", "").strip()
    if not given:
        return DEFAULT_MIB
    if not (given.isascii() and given.isdecimal() and len(given) < 9) or 0 < int(given) < LEAST_MIB:
        raise StateError(
            f"MUSTER_WEB_MEMORY_MIB is {given[:20]!r}; it has to be 0, for no ceiling, or at least {LEAST_MIB}."
        )
    return int(given)


def resident_mib(pid: int | str = "self") -> int:
    """Memory that a process has in use, in MiB; 0 where the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def watch_memory(*, most_mib: int, drain: Callable[[], None], say: Callable[[str], None]) -> None:
    """Look from a thread of its own: drain once above the ceiling, and end the process when that takes too long."""
    if most_mib:
        threading.Thread(target=_watch, args=(most_mib, drain, say), name="memory", daemon=True).start()


def _watch(most_mib: int, drain: Callable[[], None], say: Callable[[str], None]) -> None:
    while (used := resident_mib()) <= most_mib:
        time.sleep(LOOK_SECONDS)
    say(f"This process uses {used} MiB of memory, more than MUSTER_WEB_MEMORY_MIB = {most_mib}; it takes no "
        "new requests and is started again.")  # fmt: skip
    drain()
    until = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < until and resident_mib() <= AT_ONCE * most_mib:
        time.sleep(LOOK_SECONDS)
    # Threads that still compute would keep an orderly exit waiting, and go on taking memory meanwhile.
    os._exit(EXIT_CODE)
