"""The GPUs of this node as the agent knows them: read by a thread of their own, asked about by all others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from scheduler.agent.gpu.device_numbers import DeviceNumbers
from scheduler.agent.gpu.devices import (
    Device,
    Observation,
    add_missing,
    mark_foreign_use,
    observe,
    unhealthy,
    without_samples,
)
from scheduler.agent.gpu.nvml import Reading
from scheduler.agent.gpu.reader import GpuReader
from scheduler.agent.gpu.state_file import GpuStateFile
from scheduler.agent.gpu.usage import Holder, UsageMeter, Use

#: How often the GPUs are read.
POLL_SECONDS: Final = 5.0
#: A driver that hangs never returns to its callers; after this long its GPUs count as broken.
HUNG_SECONDS: Final = 60.0


class Gpus:
    """Devices by number and their use; one thread calls `poll`, any thread the rest."""

    def __init__(self, state: Path | None, *, avoid_used: bool = False) -> None:
        self._file = GpuStateFile(state)
        saved = self._file.load()
        self.numbers = DeviceNumbers(saved.numbers)
        self._meter = UsageMeter(saved.uses)
        self._avoid_used = avoid_used
        self._reader = GpuReader()
        self._seen = Observation()
        self._trouble = ""
        self._poll_began_at = self._poll_ended_at = 0.0
        self._lock = threading.Lock()
        self._first_poll = threading.Event()
        #: Rises whenever a device changes in something but its samples.
        self.version = 0

    # ------------------------------------------------------------ the thread

    def watch(self, holders: Callable[[], Sequence[Holder]], keys: Callable[[], Iterable[str]]) -> None:
        """Poll as long as the agent runs. `holders`: running tasks; `keys`: the tasks that the agent remembers."""
        while True:
            self.poll(holders())
            kept = list(keys())  # not under our lock: a thread that asks for a task's use holds the table's
            with self._lock:
                self._meter.forget_all_but(kept)
            time.sleep(POLL_SECONDS)

    def poll(self, holders: Sequence[Holder] = (), *, now: float | None = None) -> None:
        """Read every GPU once; `now` is on the monotonic clock."""
        now = time.monotonic() if now is None else now
        self._poll_began_at = now
        readings, why = self._reader.read(now)
        with self._lock:
            elapsed_ms = (now - self._poll_ended_at) * 1000 if self._poll_ended_at else 0.0
            self._update(readings, why, holders, min(elapsed_ms, 4000 * POLL_SECONDS))
            self._poll_ended_at = now
            self._file.save(self.numbers.known, self._meter.uses)
        self._first_poll.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the first poll to end; False when the time is up before."""
        return self._first_poll.wait(seconds)

    def close(self) -> None:
        self._reader.close()

    def _update(
        self, readings: list[Reading], why: str, holders: Sequence[Holder], elapsed_ms: float
    ) -> None:
        before = self._seen.devices
        seen = observe(readings, self.numbers, before)
        foreign_use = self._meter.add(seen.readings, holders, elapsed_ms)
        held = {number for holder in holders for number in holder.devices}
        mark_foreign_use(seen, foreign_use, held=held, avoid_used=self._avoid_used)
        add_missing(seen, before, why)
        if _facts(seen) != _facts(self._seen) or why != self._trouble:
            self.version += 1
        self._seen, self._trouble = seen, why

    # ------------------------------------------------------------ questions

    def devices(self, *, now: float | None = None) -> list[Device]:
        """All devices by number, also the ones that are lost, as the inventory has them."""
        now = time.monotonic() if now is None else now
        with self._lock:
            found = list(self._seen.devices.values())
            if self._is_hung(now):
                found = [unhealthy(device, "the driver does not answer") for device in found]
        found.sort(key=lambda device: int(device["index"]))
        return [{key: value for key, value in device.items() if key != "of"} for device in found]

    def trouble(self, *, now: float | None = None) -> str:
        """What is wrong with all GPUs, or with GPUs whose UUID is unknown; empty when nothing is."""
        now = time.monotonic() if now is None else now
        with self._lock:
            return "the NVIDIA driver does not answer" if self._is_hung(now) else self._trouble

    def _is_hung(self, now: float) -> bool:
        return self._poll_began_at > self._poll_ended_at and now - self._poll_began_at > HUNG_SECONDS

    def use_of(self, key: str) -> Use | None:
        """How a task has used its GPUs; None where nothing was measured."""
        with self._lock:
            return self._meter.uses.get(key)

    def faults_of(self, numbers: Sequence[int]) -> str:
        """What is wrong with these GPUs, in sentences for a task that held them; empty when nothing is."""
        return "; ".join(
            f"GPU {device['index']}, allocated to the task, is not healthy: {device['trouble']}."
            for device in self.devices()
            if device["index"] in numbers and not device["healthy"]
        )

    def names(self, numbers: Sequence[int]) -> tuple[list[str], list[str]]:
        """(what CUDA_VISIBLE_DEVICES is to say, the UUIDs) of these GPUs.

        Most programs can read numbers. Where a GPU is broken, lost or cut into slices, CUDA may count otherwise, and
        only UUIDs are safe.
        """
        with self._lock:
            uuids = [self.numbers.uuid_of(number) for number in numbers]
            if "" in uuids:
                return [str(number) for number in numbers], []
            counts_alike = (
                not self._trouble
                and self._seen.all_whole_and_healthy()
                and [self._seen.nvml_index.get(uuid) for uuid in uuids] == list(numbers)
            )
            return [str(number) for number in numbers] if counts_alike else uuids, uuids


def _facts(seen: Observation) -> list[Device]:
    return [without_samples(device) for device in seen.devices.values()]
