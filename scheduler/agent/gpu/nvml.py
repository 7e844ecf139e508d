"""What NVML tells of the NVIDIA GPUs of this machine: one reading of each, and why there is none."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scheduler.agent import gpu_health

MIB: Final = 1024 * 1024
#: Slices are looked for at so many places of a device; none has more.
SLICE_PLACES: Final = 16

# Return codes of NVML.
_UNINITIALIZED, _NOT_LOADED, _NO_LIBRARY, _MISMATCH = 1, 9, 12, 18
_LOST, _RESET_REQUIRED, _NOT_THERE, _UNKNOWN = 15, 16, 28, 999
#: The whole session is void after these.
_SESSION_IS_OVER: Final = frozenset({_UNINITIALIZED, _NOT_LOADED, _MISMATCH})
#: Whatever was asked, this device is of no use after these.
_DEVICE_IS_LOST: Final = {
    _LOST: "it has fallen off the bus",
    _RESET_REQUIRED: "it needs a reset",
    _NOT_THERE: "it is not there any more",
}


class NoNvml(Exception):
    """There is nothing to read; the words say why, and are empty where there is no GPU to miss."""


@dataclass(slots=True)
class Reading:
    """One GPU, or one slice of one, as far as it tells; None is what it does not tell."""

    index: int
    uuid: str
    name: str
    bus: str
    memory_mib: int
    memory_used_mib: int | None = None
    #: Of the time since the reading before.
    utilisation_percent: int | None = None
    temperature_c: int | None = None
    power_watts: int | None = None
    #: MIB that each process holds there.
    processes: dict[int, int | None] = field(default_factory=dict)
    #: How much each process had its kernels run, where the driver says so.
    work: dict[int, int] = field(default_factory=dict)
    #: It answers nothing any more.
    lost: bool = False
    slices: list[Reading] = field(default_factory=list)
    #: Why it must not be used, and what is only worth knowing.
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Known:
    handle: Any
    index: int
    uuid: str
    name: str
    bus: str
    memory_mib: int
    sampled_at: int = 0
    worked_at: int = 0


class Session:
    """NVML from its start to its end; kept open, because errors (Xids) are only told to who listens."""

    def __init__(self) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
        except ImportError as error:
            words = "nvidia-ml-py is not installed, so its GPUs cannot be read" if driver_is_there() else ""
            raise NoNvml(words) from error
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise NoNvml(_why_not(error)) from error
        self._events: Any = None
        self._xids: dict[str, list[int]] = {}
        try:
            self._open()
        except self._nvml.NVMLError as error:
            self.close()
            raise NoNvml(_why_not(error)) from error

    def _open(self) -> None:
        nvml = self._nvml
        self.driver = _text(nvml.nvmlSystemGetDriverVersion())
        self._known: list[_Known] = []
        #: GPUs that were lost before we could learn who they are: their place, and why.
        self.nameless: list[tuple[int, str]] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                self._known.append(self._meet(index))
            except nvml.NVMLError as error:
                if error.value in _SESSION_IS_OVER:
                    raise
                self.nameless.append((index, _DEVICE_IS_LOST.get(error.value, f"NVML says: {error}")))
        self._listen()

    def _meet(self, index: int) -> _Known:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return _Known(
            handle,
            index,
            _text(nvml.nvmlDeviceGetUUID(handle)),
            _text(nvml.nvmlDeviceGetName(handle)),
            _text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower(),
            self._memory(handle)[0],
        )

    def close(self) -> None:
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError):
            if self._events is not None:
                nvml.nvmlEventSetFree(self._events)
            nvml.nvmlShutdown()

    # ------------------------------------------------------------ errors that the driver tells

    def _listen(self) -> None:
        nvml = self._nvml
        try:
            self._events = nvml.nvmlEventSetCreate()
        except (nvml.NVMLError, AttributeError):
            return
        for known in self._known:
            with contextlib.suppress(nvml.NVMLError):
                wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
                told = nvml.nvmlDeviceGetSupportedEventTypes(known.handle)
                if wanted & told:
                    nvml.nvmlDeviceRegisterEvents(known.handle, wanted & told, self._events)

    def _hear(self) -> None:
        """Take what has happened since; it is remembered until this session ends."""
        nvml = self._nvml
        for _ in range(1000 if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait(self._events, 0)
                uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
            except nvml.NVMLError:
                return  # nothing more
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                heard = self._xids.setdefault(uuid, [])
                if event.eventData not in heard:
                    heard.append(int(event.eventData))

    # ------------------------------------------------------------ a reading

    def read(self) -> list[Reading]:
        """Every GPU that was there when the session began; one that is lost says so in its faults."""
        self._hear()
        return [self._read(known) for known in self._known]

    def _read(self, known: _Known) -> Reading:
        nvml = self._nvml
        reading = Reading(known.index, known.uuid, known.name, known.bus, known.memory_mib)
        reading.faults, reading.notes = gpu_health.of_xids(self._xids.get(known.uuid, ()))
        try:
            self._sample(known, reading)
            faults, notes = gpu_health.of_device(
                lambda *asked: self._ask(known.handle, *asked),
                nvml,
                alone=len(self._known) + len(self.nameless) == 1,
            )
            reading.faults += faults
            reading.notes += notes
            self._read_slices(known, reading)
        except nvml.NVMLError as error:
            if error.value in _SESSION_IS_OVER:
                raise NoNvml(_why_not(error)) from error
            reading.lost = True
            reading.faults.insert(0, _DEVICE_IS_LOST.get(error.value, f"NVML says: {error}"))
        return reading

    def _sample(self, known: _Known, reading: Reading) -> None:
        nvml, handle = self._nvml, known.handle
        reading.memory_used_mib = self._memory(handle)[1]  # what it cannot even tell of, it is lost to
        reading.utilisation_percent = self._utilisation(known)
        temperature = self._ask(handle, "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        power_mw = self._ask(handle, "nvmlDeviceGetPowerUsage")
        reading.temperature_c = None if temperature is None else int(temperature)
        reading.power_watts = None if power_mw is None else round(power_mw / 1000)
        reading.processes = self._processes(handle)
        if reading.processes:
            reading.work = self._work(known)

    def _memory(self, handle: Any) -> tuple[int, int]:
        """MiB in all, and in use by programs; the driver keeps a little more for itself."""
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
        except (AttributeError, nvml.NVMLError) as error:
            if getattr(error, "value", None) in _DEVICE_IS_LOST:
                raise
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return memory.total // MIB, memory.used // MIB

    def _utilisation(self, known: _Known) -> int | None:
        """The mean of the driver's own samples since we asked last, so that no second is missed."""
        nvml = self._nvml
        first = known.sampled_at == 0
        asked = ("nvmlDeviceGetSamples", nvml.NVML_GPU_UTILIZATION_SAMPLES, known.sampled_at)
        _, samples = self._ask(known.handle, *asked) or (0, ())
        fresh = [s for s in samples if s.timeStamp > known.sampled_at]
        if fresh:
            known.sampled_at = max(sample.timeStamp for sample in fresh)
            if not first:
                shares = [min(100, int(sample.sampleValue.uiVal)) for sample in fresh]
                return round(sum(shares) / len(shares))
        rates = self._ask(known.handle, "nvmlDeviceGetUtilizationRates")
        return None if rates is None else int(rates.gpu)

    def _processes(self, handle: Any) -> dict[int, int | None]:
        found = self._ask(handle, "nvmlDeviceGetComputeRunningProcesses") or ()
        return {p.pid: None if p.usedGpuMemory is None else p.usedGpuMemory // MIB for p in found}

    def _work(self, known: _Known) -> dict[int, int]:
        """The driver answers "not found" where nobody has worked since."""
        samples = self._ask(known.handle, "nvmlDeviceGetProcessUtilization", known.worked_at) or ()
        work: dict[int, int] = {}
        for sample in samples:
            if sample.timeStamp > known.worked_at and sample.pid:
                work[sample.pid] = max(work.get(sample.pid, 0), min(100, sample.smUtil))
        known.worked_at = max([known.worked_at, *(sample.timeStamp for sample in samples)])
        return work

    def _read_slices(self, known: _Known, reading: Reading) -> None:
        """What it is cut into, each with the name and the UUID that programs are given."""
        now, wanted = self._ask(known.handle, "nvmlDeviceGetMigMode") or (0, 0)
        if now != wanted:
            reading.notes.append(f"cutting it is to be turned {'on' if wanted else 'off'} by its next reset")
        if not now:
            return
        places = self._ask(known.handle, "nvmlDeviceGetMaxMigDeviceCount") or 0
        for place in range(min(places, SLICE_PLACES)):
            one = self._ask(known.handle, "nvmlDeviceGetMigDeviceHandleByIndex", place)
            if one is None:
                continue  # nothing is cut there
            total, used = self._memory(one)
            name, uuid = self._ask(one, "nvmlDeviceGetName"), self._ask(one, "nvmlDeviceGetUUID")
            if name is not None and uuid is not None:
                reading.slices.append(
                    Reading(
                        place,
                        _text(uuid),
                        _text(name),
                        known.bus,
                        total,
                        used,
                        processes=self._processes(one),
                    )
                )
        if not reading.slices:
            reading.faults.append("it is set to be cut into slices (MIG) and none is made")

    def _ask(self, handle: Any, name: str, *arguments: Any) -> Any:
        """What this device says, or None where it, its driver or the library cannot tell."""
        ask: Callable[..., Any] | None = getattr(self._nvml, name, None)
        if ask is None:
            return None
        try:
            return ask(handle, *arguments)
        except self._nvml.NVMLError as error:
            if error.value in _DEVICE_IS_LOST or error.value in _SESSION_IS_OVER:
                raise
            return None


def _why_not(error: Any) -> str:
    match getattr(error, "value", None):
        case 12:
            return "the driver's library libnvidia-ml is missing" if driver_is_there() else ""
        case 9:
            return "the NVIDIA driver is not loaded" if hardware_is_there() else ""
        case 18:
            return "the NVIDIA driver and its library are of two versions: restart the machine"
    return f"NVML does not start: {error}"


def driver_is_there() -> bool:
    return Path("/proc/driver/nvidia").exists() or Path("/dev/nvidiactl").exists()


def hardware_is_there(devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Whether a GPU of NVIDIA is plugged in that is not handed on to a virtual machine."""
    for device in devices.glob("*"):
        with contextlib.suppress(OSError):
            of_nvidia = (device / "vendor").read_text().strip() == "0x10de"
            display = (device / "class").read_text().startswith("0x03")
            if of_nvidia and display and (device / "driver").resolve().name != "vfio-pci":
                return True
    return False


def numa_domain_of(bus: str) -> int:
    """The domain of the PCI slot; NVML writes 00000000:41:00.0 where Linux writes 0000:41:00.0."""
    domain, _, rest = bus.partition(":")
    try:
        slot = f"{int(domain, 16):04x}:{rest}"
        return max(0, int(Path(f"/sys/bus/pci/devices/{slot}/numa_node").read_text()))
    except (OSError, ValueError):
        return 0


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
