"""Free devices: what is held of each device in a workspace, and which devices a task is given."""

from __future__ import annotations

from functools import cached_property, lru_cache

from quotas.core.resources import GPU_MILLIS
from scheduler.core.cluster.device_index import DeviceIndex
from scheduler.core.columns import Ints, cells
from scheduler.core.snapshot.request_classes import RequestClass


class FreeDevices:
    """The thousandths of each device that are held, and of each node its idle and its shared devices as masks.

    Only the workspace that owns it calls `hold` and `hold_just`.
    """

    def __init__(self, index: DeviceIndex, used: Ints) -> None:
        self.index = index
        #: A live column: thousandths of each device that are held.
        self.used: Ints = used.copy()
        self._used = cells(self.used)

    # The two lists are made when the first is asked for: from then on they change with the column.

    @cached_property
    def idle(self) -> list[int]:
        """Of each node, its devices that no job holds."""
        return self.index.bits(self.used == 0)

    @cached_property
    def shared(self) -> list[int]:
        """Of each node, its devices that are held in part."""
        return self.index.bits((self.used != 0) & (self.used < GPU_MILLIS))

    def held_on(self, row: int) -> list[int]:
        """What is held of each device of a node."""
        return self._used[self.index.first[row] : self.index.first[row + 1]].tolist()

    def has_free(self, device: int, millis: int) -> bool:
        return self._used[device] + millis <= GPU_MILLIS

    def most_left(self, row: int, devices: int) -> int:
        """The most that is left of one of these devices, a mask, of a node; 0 for none."""
        used, first, most = self._used, self.index.first[row], 0
        while devices:
            low = devices & -devices
            left = GPU_MILLIS - used[first + low.bit_length() - 1]
            if left > most:
                most = left
            devices ^= low
        return most

    def pick(self, row: int, request: RequestClass, among: int) -> list[int]:
        """Rows of the devices for one task on a node that all filters have passed; `among` masks those it may have.

        Whole devices come from the NUMA domain that they fill best, else from as few domains as can be;
        a share goes to the device that is used most and still has room. Ties go to the lowest position.
        """
        per_task = request.per_task
        wanted = per_task.gpus
        if not wanted:
            return []
        if per_task.gpu_millis and request.shares_gpu:
            return [self._fullest_with(row, per_task.gpu_millis, among)]
        first = self.index.first[row]
        picked = pick_whole(among & self.idle[row], self.index.node_domains[row], wanted)
        return [first + picked[0]] if wanted == 1 else [first + place for place in picked]

    def _fullest_with(self, row: int, share: int, among: int) -> int:
        """The device of which most is held and `share` thousandths are free; -1 when there is none."""
        first, used = self.index.first[row], self._used
        fullest, most = -1, -1
        while among:
            low = among & -among
            device = first + low.bit_length() - 1
            if most < used[device] <= GPU_MILLIS - share:
                fullest, most = device, used[device]
            among ^= low
        return fullest

    def hold(self, row: int, devices: list[int], millis: int) -> None:
        """Hold `millis` more of each of these devices of a node; below 0 to release them."""
        first, held, idle_on, shared_on = self.index.first[row], self._used, self.idle, self.shared
        if millis == GPU_MILLIS:
            bits = 0
            for device in devices:
                held[device] += GPU_MILLIS
                bits |= 1 << device - first
            idle_on[row] &= ~bits
            shared_on[row] &= ~bits
            return
        idle, shared = idle_on[row], shared_on[row]
        for device in devices:
            used = held[device] = held[device] + millis
            bit = 1 << (device - first)
            idle = idle & ~bit if used else idle | bit
            shared = shared | bit if 0 != used < GPU_MILLIS else shared & ~bit
        idle_on[row], shared_on[row] = idle, shared

    def hold_just(self, row: int, held: list[int]) -> None:
        """Let the devices of a node be held by exactly these amounts."""
        for device, millis in enumerate(held, self.index.first[row]):
            if millis != self._used[device]:
                self.hold(row, [device], millis - self._used[device])


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
    """`wanted` idle devices of a node: from the NUMA domain that they fill best, else from as few as can be.

    Ties go to the domain with the lowest device. Devices and domains are masks, the answer positions in them;
    nodes are often in the same state, so answers are kept.
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
