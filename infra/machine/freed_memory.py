"""What a process does with memory that it has freed."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

#: Of glibc's <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MIB: Final = 1024 * 1024


def keep_freed_memory(*, block_mib: int = 64, free_mib: int = 128) -> bool:
    """Keep freed memory for the next allocation; whether this C library can be asked to.

    glibc gives blocks of more than 128 KiB, and the free end of its heap, back to the kernel, which has to zero each
    page before the process may write to it again. A loop that allocates the same arrays in each round spends a third
    of its time there. Blocks of up to `block_mib` MiB then come from the heap, whose free end may grow to `free_mib`
    MiB: the process keeps at most this amount of memory that it does not use.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, block_mib * _MIB)) and bool(
        mallopt(_M_TRIM_THRESHOLD, free_mib * _MIB)
    )
