"""Packed free capacity: free CPU, memory and devices of a node in one number, compared at once."""

from __future__ import annotations

from typing import Final

import numpy as np

from scheduler.core.columns import Ints

#: A row of `PackedFree`: free CPU in 24 bits, memory in 26, devices in 10; above each a guard bit that is set.
MEMORY_BIT: Final = 25
DEVICE_BIT: Final = 52
MOST_CPU: Final = (1 << 24) - 1
MOST_MEMORY: Final = (1 << 26) - 1
MOST_DEVICES: Final = (1 << 10) - 1
GUARDS: Final = 1 << 24 | 1 << 51 | 1 << 62


def fits_packed(cpu_millis: int, memory_mib: int, devices: int) -> bool:
    """Whether amounts up to these fit into the fields: 16,000 cores, 64 TiB and 1,000 devices a node do."""
    return cpu_millis < MOST_CPU and memory_mib < MOST_MEMORY and devices < MOST_DEVICES


class PackedFree:
    """What each node has free of CPU, memory and devices in one number, so that one subtraction compares all.

    Subtract what is needed in the same fields: a field that is too small borrows from its guard bit, so a node has
    enough of everything where all guards are still set.
    """

    __slots__ = ("column",)

    def __init__(self, cpu_millis: Ints, memory_mib: Ints, devices: Ints | None) -> None:
        #: `devices` is what counts of them: idle ones, or most left of one; None = they do not matter.
        self.column: Ints = (
            np.maximum(cpu_millis, 0)
            | np.maximum(memory_mib, 0) << MEMORY_BIT
            | (0 if devices is None else devices << DEVICE_BIT)
            | GUARDS
        )

    @staticmethod
    def need(cpu_millis: int, memory_mib: int, devices: int) -> int:
        """The amounts to subtract. More than a field holds counts as the most that it holds, which no node has."""
        return (
            min(cpu_millis, MOST_CPU)
            | min(memory_mib, MOST_MEMORY) << MEMORY_BIT
            | min(devices, MOST_DEVICES) << DEVICE_BIT
        )

    @staticmethod
    def never() -> int:
        """A need that no node meets."""
        return MOST_CPU
