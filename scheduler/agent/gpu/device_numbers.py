"""The number of each GPU, which stays the same until the machine restarts."""

from __future__ import annotations

from collections.abc import Mapping


class DeviceNumbers:
    """Numbers by UUID.

    NVML counts anew when a GPU is lost. A running task holds its GPUs by number, so a number must never come to
    mean another GPU.
    """

    def __init__(self, known: Mapping[str, int]) -> None:
        self.known = dict(known)

    def of(self, uuid: str, preferred: int) -> int:
        """The number of this GPU; a GPU that is new gets the first free number from `preferred` on."""
        if uuid not in self.known:
            taken = set(self.known.values())
            while preferred in taken:
                preferred += 1
            self.known[uuid] = preferred
        return self.known[uuid]

    def uuid_of(self, number: int) -> str:
        """The UUID of the GPU with this number; empty without one."""
        return next((uuid for uuid, known in self.known.items() if known == number), "")
