"""Whose processes use a GPU, and how long each task had its GPUs busy, out of the time that it held them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from scheduler.agent import processes
from scheduler.agent.gpu.nvml import Reading
from scheduler.agent.protocol import KEY_VARIABLE

#: The inode of the machine's own PID namespace; in a container NVML reports process numbers that mean others here.
_FIRST_NAMESPACE: Final = 4026531836


class Holder(NamedTuple):
    """A running task and the GPUs that were assigned to it."""

    key: str
    leader: int
    devices: tuple[int, ...]
    #: How long it has run.
    ran_ms: int


@dataclass(slots=True)
class Use:
    """One task's use of all its GPUs together: the time that was measured, and the part in which they were busy."""

    watched_ms: float = 0.0
    busy_ms: float = 0.0
    peak_memory_mib: int = 0
    #: Of the last reading.
    memory_mib: int = 0


def sees_all_processes() -> bool:
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_NAMESPACE
    except OSError:
        return False


class UsageMeter:
    """The use of every task that has not been forgotten yet; `uses` is what was measured before."""

    def __init__(self, uses: Mapping[str, Use]) -> None:
        self.uses = dict(uses)
        self._sees_all = sees_all_processes()
        #: Foreign processes of the reading before, by GPU: only a process that stays is reported.
        self._before: dict[int, set[int]] = {}

    def add(
        self, readings: Mapping[int, Reading], holders: Sequence[Holder], elapsed_ms: float
    ) -> dict[int, str]:
        """Add the time since the last reading; returns, for GPUs with foreign processes, a sentence about these."""
        peaks: dict[str, int] = {}
        foreign_use: dict[int, str] = {}
        owners = self._owners(readings.values(), holders)
        seen: dict[int, set[int]] = {}
        for number, reading in readings.items():
            holding = [holder for holder in holders if number in holder.devices]
            for holder in holding:
                mine = [pid for pid in reading.processes if owners.get(pid) == holder.key]
                held = sum(reading.processes[pid] or 0 for pid in mine)
                peaks[holder.key] = peaks.get(holder.key, 0) + held
            self._charge(reading, holding, owners, elapsed_ms)
            keys = {holder.key for holder in holding}
            foreign = {pid for pid in reading.processes if owners.get(pid, "") not in keys}
            if foreign and holding and not self._sees_all:
                foreign = set()  # these may be processes of the holder
            seen[number] = foreign
            if lasting := sorted(foreign & self._before.get(number, set())):
                foreign_use[number] = "used by " + ", ".join(
                    self._describe(pid, owners) for pid in lasting[:3]
                )
        self._before = seen
        for key, mib in peaks.items():
            use = self.uses.setdefault(key, Use())
            use.peak_memory_mib, use.memory_mib = max(use.peak_memory_mib, mib), mib
        return foreign_use

    def forget_all_but(self, keys: Iterable[str]) -> None:
        kept = set(keys)
        self.uses = {key: use for key, use in self.uses.items() if key in kept}

    def _owners(self, readings: Iterable[Reading], holders: Sequence[Holder]) -> dict[int, str]:
        """The task key of each process on a GPU that belongs to one of these tasks."""
        if not self._sees_all:
            return {}
        leaders = {holder.leader: holder.key for holder in holders}
        keys = {holder.key for holder in holders}
        owners = {}
        for pid in {pid for reading in readings for pid in reading.processes}:
            key = leaders.get(processes.session_of(pid)) or processes.environment_value(pid, KEY_VARIABLE)
            if key in keys:
                owners[pid] = key
        return owners

    def _charge(
        self, reading: Reading, holding: Sequence[Holder], owners: Mapping[int, str], elapsed_ms: float
    ) -> None:
        """Divide the time in which the GPU was busy among the tasks that kept it busy."""
        if reading.utilisation_percent is None or not holding:
            return  # NVML has no utilisation of a slice
        shares = self._shares(reading, holding, owners)
        for holder in holding:
            watched = min(elapsed_ms, float(holder.ran_ms))
            busy = elapsed_ms * reading.utilisation_percent / 100 * shares.get(holder.key, 0.0)
            use = self.uses.setdefault(holder.key, Use())
            use.watched_ms += watched
            use.busy_ms += min(busy, watched)

    def _shares(
        self, reading: Reading, holding: Sequence[Holder], owners: Mapping[int, str]
    ) -> dict[str, float]:
        """The part of the GPU's work that each task did, by key; equal parts where their processes are not visible."""
        if not self._sees_all:
            return {holder.key: 1 / len(holding) for holder in holding} if reading.processes else {}
        weights = {pid: reading.work.get(pid, 0) for pid in reading.processes}
        if not any(weights.values()):
            weights = dict.fromkeys(reading.processes, 1)
        total = sum(weights.values())
        shares: dict[str, float] = {}
        for pid, weight in weights.items():
            key = owners.get(pid, "")
            shares[key] = shares.get(key, 0.0) + weight / total
        return shares

    def _describe(self, pid: int, owners: Mapping[int, str]) -> str:
        if pid in owners:  # not every reader may know whose job it is
            return f"a job that was not given it (process {pid})"
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip() if self._sees_all else ""
        except OSError:
            name = ""
        return f"{name or 'a program'} (process {pid}), which Muster did not start"
