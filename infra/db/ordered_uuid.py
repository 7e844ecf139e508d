"""UUIDs that begin with the time (version 7 of RFC 9562): new rows go to one end of an index, not everywhere in it."""

from __future__ import annotations

import os
import time
import uuid
from typing import Final

_VERSION_AND_VARIANT: Final = 7 << 76 | 2 << 62
_RANDOM: Final = (1 << 80) - 1 & ~(0xF << 76 | 3 << 62)


def ordered_uuid() -> uuid.UUID:
    """48 bits of milliseconds since 1970, then 74 random bits: not to be guessed, and its time is no secret."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10)) & _RANDOM
    return uuid.UUID(int=milliseconds << 80 | _VERSION_AND_VARIANT | random)
