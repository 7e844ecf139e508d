"""Devices: the idle and shared devices of a node, one bit each, and what a request for a model can still get."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from quotas.core.resources import GPU_MILLIS
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints


class GpuFeatures:
    """For one (model, memory) wish: what each node could still give, kept up to date by the workspace."""

    __slots__ = ("_bits", "_cluster", "_key", "_usable", "numa_best", "partial", "room", "whole")

    def __init__(self, cluster: ClusterIndex, used: Ints, *, model: str, memory_mib: int) -> None:
        usable: Bools = cluster.gpu_matches(model, memory_mib) & cluster.device_healthy
        by_domain = np.bincount(
            cluster.device_domain[usable & (used == 0)], minlength=cluster.node_count * cluster.numa_count
        ).reshape(cluster.node_count, cluster.numa_count)
        self._usable, self._cluster, self._key = usable, cluster, (model, memory_mib)
        self._bits: list[int] | None = None
        self.whole: Ints = by_domain.sum(axis=1)  # idle devices
        self.numa_best: Ints = by_domain.max(axis=1, initial=0)
        self.partial: Ints = np.zeros(cluster.node_count, dtype=np.int64)  # most left of a shared device
        shared = usable & (used > 0)
        if shared.any():
            np.maximum.at(self.partial, cluster.device_node[shared], GPU_MILLIS - used[shared])
        self.room: Ints = np.where(self.whole > 0, GPU_MILLIS, self.partial)  # most left of any device

    @property
    def bits(self) -> list[int]:
        """Of each node, its devices that count at all, working ones of the model."""
        if self._bits is None:
            self._bits = self._cluster.usable_bits(*self._key)
        return self._bits

    @property
    def usable(self) -> list[bool]:
        """Of each device, whether it counts."""
        usable: list[bool] = self._usable.tolist()
        return usable


def lowest(bits: int, count: int) -> list[int]:
    """The positions of the lowest bits that are set, ascending."""
    found: list[int] = []
    while count:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
        count -= 1
    return found


@lru_cache(maxsize=1 << 14)
def pick_whole(idle: int, domains: tuple[int, ...], wanted: int) -> tuple[int, ...]:
    """So many idle devices of a node: from the NUMA domain that they fill best, else from as few as can be.

    Ties go to the domain with the lowest device. Devices and domains are masks, the answer positions in them;
    nodes are often in the same state, so what was found is kept.
    """
    best, fewest = 0, 1 << 30
    for domain in domains:
        here = idle & domain
        count = here.bit_count()
        if wanted <= count <= fewest and (count < fewest or here & -here < best & -best):
            best, fewest = here, count
    if best:
        return tuple(lowest(best, wanted))
    picked: list[int] = []
    local = sorted((idle & domain for domain in domains), key=lambda here: (-here.bit_count(), here & -here))
    for here in local:
        picked.extend(lowest(here, min(here.bit_count(), wanted - len(picked))))
    return tuple(sorted(picked))


#: A row of `PackedFree`: free CPU in 24 bits, memory in 26, devices in 10; above each a guard bit that is set.
MEMORY_BIT: Final = 25
DEVICE_BIT: Final = 52
MOST_CPU: Final = (1 << 24) - 1
MOST_MEMORY: Final = (1 << 26) - 1
MOST_DEVICES: Final = (1 << 10) - 1
GUARDS: Final = 1 << 24 | 1 << 51 | 1 << 62


class PackedFree:
    """What each node has free of CPU, memory and devices in one number, so that one subtraction compares all.

    Subtract what is needed in the same fields: a field that is too small borrows from its guard bit, so
    everything is there where all guards are still set.
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
        """What to subtract. More than a field holds is as much as no node has."""
        return (
            min(cpu_millis, MOST_CPU)
            | min(memory_mib, MOST_MEMORY) << MEMORY_BIT
            | min(devices, MOST_DEVICES) << DEVICE_BIT
        )

    @staticmethod
    def never() -> int:
        """What no node has."""
        return MOST_CPU
