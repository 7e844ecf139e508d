"""The GPUs of this node: numbered for good, read all the time by a thread of their own, and how jobs name them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from scheduler.agent import nvml, processes
from scheduler.agent.gpu_use import Holder, Ledger, Use
from scheduler.agent.nvml import NoNvml, Reading, Session

#: How often they are read.
LOOK_SECONDS: Final = 5.0
#: A driver that hangs keeps its callers for ever; after this long its GPUs count as broken.
SILENT_SECONDS: Final = 60.0
#: After this long without NVML it is started anew.
RETRY_SECONDS: Final = 30.0
#: Slices are numbered from here on, sixteen for each GPU.
FIRST_SLICE: Final = 100
#: Read anew each time, and never worth a message of their own.
SAMPLES: Final = ("utilisation_percent", "memory_used_mib", "temperature_c", "power_watts")

Device = dict[str, Any]


class Numbers:
    """The number of each GPU, which it keeps until the machine restarts: NVML counts anew when one is lost.

    What runs holds its GPUs by number, so a number must never come to mean another one.
    """

    def __init__(self, known: dict[str, int]) -> None:
        self.known = known

    def of(self, uuid: str, wish: int) -> int:
        if uuid not in self.known:
            taken = set(self.known.values())
            while wish in taken:
                wish += 1
            self.known[uuid] = wish
        return self.known[uuid]

    def name(self, number: int) -> str:
        return next((uuid for uuid, known in self.known.items() if known == number), "")


class Gpus:
    """What the agent knows of them; `look` is called by one thread, the rest by any."""

    def __init__(self, state: Path | None, *, avoid_used: bool = False) -> None:
        self._file = state / "gpus.json" if state else None
        self._avoid_used = avoid_used
        self._session: Session | None = None
        self._failed_at = 0.0
        self._failure = self._why = ""
        self._devices: dict[str, Device] = {}
        self._place: dict[str, int] = {}
        self._plain = True
        self._asked_at = self._looked_at = 0.0
        self._ledger = Ledger()
        self._saved = ""
        self._lock = threading.Lock()
        self._first = threading.Event()
        #: Rises whenever something but a sample has changed.
        self.version = 0
        self.numbers = Numbers(self._recall())

    # ------------------------------------------------------------ looking

    def look(self, holders: Sequence[Holder] = (), *, now: float | None = None) -> None:
        now = time.monotonic() if now is None else now
        self._asked_at = now
        readings, why = self._read(now)
        with self._lock:
            elapsed_ms = (now - self._looked_at) * 1000 if self._looked_at else 0.0
            self._take(readings, why, holders, min(elapsed_ms, 4000 * LOOK_SECONDS))
            self._looked_at = now
            self._save()
        self._first.set()

    def _read(self, now: float) -> tuple[list[Reading], str]:
        if self._session is None and self._failed_at and now - self._failed_at < RETRY_SECONDS:
            return [], self._failure
        try:
            if self._session is None:
                self._session = Session()
            return self._session.read(), self._nameless(self._session)
        except NoNvml as error:
            self.close()
            self._failed_at, self._failure = now, str(error)
            return [], self._failure

    def _nameless(self, session: Session) -> str:
        """Those that we met before keep their name: they are missing among the readings."""
        return "; ".join(f"GPU {place}: {why}" for place, why in session.nameless)

    def _take(self, readings: list[Reading], why: str, holders: Sequence[Holder], elapsed_ms: float) -> None:
        found: dict[int, Reading] = {}
        devices: dict[str, Device] = {}
        self._place = {reading.uuid: reading.index for reading in readings}
        for reading in readings:
            if slices := self._slices_of(reading) if reading.lost else ():
                why_lost = "; ".join(reading.faults)
                devices |= {device["uuid"]: _silent(device, why_lost) for device in slices}
                continue
            for one in reading.slices or [reading]:
                number = self._number(one, reading)
                found[number] = one
                devices[one.uuid] = _describe(number, one, reading)
        strangers = self._ledger.add(found, holders, elapsed_ms)
        held = {number for holder in holders for number in holder.devices}
        for device in devices.values():
            words = strangers.get(device["index"], "")
            if words and self._avoid_used and device["index"] not in held:
                device["healthy"] = False
            device["trouble"] = "; ".join(filter(None, [device["trouble"], words]))
        for uuid, known in self._devices.items():
            # One that is there and was cut otherwise took its slices with it; one that is not there is missed.
            if uuid not in devices and known["of"] not in self._place:
                devices[uuid] = _silent(known, why or "it does not answer any more")
        whole = all(device["healthy"] and device["of"] == uuid for uuid, device in devices.items())
        self._plain = whole and not why
        if self._facts(devices) != self._facts(self._devices) or why != self._why:
            self.version += 1
        self._devices, self._why = devices, why

    def _slices_of(self, whole: Reading) -> list[Device]:
        """What it was cut into when it was read last."""
        return [device for uuid, device in self._devices.items() if device["of"] == whole.uuid != uuid]

    def _number(self, one: Reading, whole: Reading) -> int:
        if one is whole:
            return self.numbers.of(one.uuid, one.index)
        parent = self.numbers.of(whole.uuid, whole.index)
        return self.numbers.of(one.uuid, FIRST_SLICE + nvml.SLICE_PLACES * parent + one.index)

    def _facts(self, devices: dict[str, Device]) -> list[Device]:
        return [{k: v for k, v in device.items() if k not in SAMPLES} for device in devices.values()]

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    # ------------------------------------------------------------ the thread

    def watch(self, holders: Callable[[], Sequence[Holder]], keys: Callable[[], Iterable[str]]) -> None:
        """Look for ever; `holders` are the tasks that run, `keys` those that are not forgotten."""
        while True:
            self.look(holders())
            kept = list(keys())  # not under our lock: who asks us how a task used its GPUs holds the table's
            with self._lock:
                self._ledger.forget_all_but(kept)
            time.sleep(LOOK_SECONDS)

    def wait(self, seconds: float) -> bool:
        """For the first look to be done."""
        return self._first.wait(seconds)

    # ------------------------------------------------------------ what the agent says

    def devices(self, *, now: float | None = None) -> list[Device]:
        now = time.monotonic() if now is None else now
        with self._lock:
            found = list(self._devices.values())
            if self._silent(now):
                found = [_silent(device, "the driver does not answer") for device in found]
        found.sort(key=lambda device: int(device["index"]))
        return [{key: value for key, value in device.items() if key != "of"} for device in found]

    def trouble(self, *, now: float | None = None) -> str:
        """What is wrong with all of them, or with some that we cannot even name."""
        now = time.monotonic() if now is None else now
        with self._lock:
            silent = self._silent(now)
            return "the NVIDIA driver does not answer" if silent else self._why

    def _silent(self, now: float) -> bool:
        return self._asked_at > self._looked_at and now - self._asked_at > SILENT_SECONDS

    def use_of(self, key: str) -> Use | None:
        with self._lock:
            return self._ledger.uses.get(key)

    def faults_of(self, numbers: Sequence[int]) -> str:
        """What is wrong with these, for a task that held them; empty when nothing is."""
        return "; ".join(
            f"GPU {device['index']}, which it held, is not healthy: {device['trouble']}."
            for device in self.devices()
            if device["index"] in numbers and not device["healthy"]
        )

    def names(self, numbers: Sequence[int]) -> tuple[list[str], list[str]]:
        """(what CUDA_VISIBLE_DEVICES is to say, the UUIDs) of these GPUs.

        Numbers are what most programs can read; where CUDA may count otherwise, because a GPU is broken or
        lost or cut into slices, only UUIDs are safe.
        """
        with self._lock:
            uuids = [self.numbers.name(number) for number in numbers]
            places = [self._place.get(uuid) for uuid in uuids]
            if "" in uuids:
                return [str(number) for number in numbers], []
            plain = self._plain and places == list(numbers)
            return [str(number) for number in numbers] if plain else uuids, uuids

    # ------------------------------------------------------------ what outlives this process

    def _recall(self) -> dict[str, int]:
        """Of this boot only: nothing that runs has outlived the one before."""
        if self._file is None:
            return {}
        try:
            kept = json.loads(self._file.read_text())
            if kept["boot_id"] != processes.boot_id():
                return {}
            self._ledger.uses = {str(key): Use(**use) for key, use in kept["uses"].items()}
            return {str(uuid): int(number) for uuid, number in kept["numbers"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _save(self) -> None:
        if self._file is None or not self.numbers.known:
            return
        uses = {key: asdict(use) for key, use in self._ledger.uses.items()}
        text = json.dumps({"boot_id": processes.boot_id(), "numbers": self.numbers.known, "uses": uses})
        if text == self._saved:
            return
        fresh = self._file.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk must not end the watch
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(text)
            fresh.replace(self._file)
            self._saved = text


def _describe(number: int, one: Reading, whole: Reading) -> Device:
    sliced = one is not whole
    model = short_model(whole.name)
    device: Device = {
        "index": number,
        "uuid": one.uuid,
        "model": f"{model} MIG {one.name.rpartition(' MIG ')[2]}" if sliced else model,
        "memory_mib": one.memory_mib,
        "numa_domain": nvml.numa_domain_of(whole.bus),
        "healthy": not whole.faults,
        "fake": False,
        "of": whole.uuid,
        "trouble": "; ".join([*whole.faults, *whole.notes]),
    }
    for name in SAMPLES:
        if (value := getattr(one, name)) is not None:
            device[name] = value
    return device


def _silent(device: Device, why: str) -> Device:
    told = {key: value for key, value in device.items() if key not in SAMPLES}
    return {**told, "healthy": False, "trouble": why}


def short_model(name: str) -> str:
    """`NVIDIA H100 80GB HBM3` -> `H100`: the word people ask for."""
    for word in name.replace("-", " ").split():
        if re.fullmatch(r"[A-Z]{1,3}\d{1,4}[A-Za-z]?", word):
            return word
    return name.removeprefix("NVIDIA ").strip()
