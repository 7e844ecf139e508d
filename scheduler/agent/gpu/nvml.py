"""One reading of each NVIDIA GPU of this machine, through NVML, and why there is none."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scheduler.agent.gpu import health

MIB: Final = 1024 * 1024
#: The places of a device at which slices (MIG) are looked for; no device has more.
SLICE_PLACES: Final = 16

# Return codes of NVML.
_UNINITIALIZED, _NOT_LOADED, _NO_LIBRARY, _MISMATCH = 1, 9, 12, 18
_LOST, _RESET_REQUIRED, _NOT_THERE, _UNKNOWN = 15, 16, 28, 999
#: After these, nothing more can be read in this session.
_SESSION_IS_OVER: Final = frozenset({_UNINITIALIZED, _NOT_LOADED, _MISMATCH})
#: After these, the device cannot be used, whatever was asked.
_DEVICE_IS_LOST: Final = {
    _LOST: "the GPU has fallen off the bus",
    _RESET_REQUIRED: "a reset is needed",
    _NOT_THERE: "the GPU is no longer present",
}


class NoNvml(Exception):
    """No GPU can be read; the text says why, and is empty where the machine has none."""


@dataclass(slots=True)
class Reading:
    """One GPU, or one slice of one; None is what the driver does not report."""

    index: int
    uuid: str
    name: str
    bus: str
    memory_mib: int
    memory_used_mib: int | None = None
    #: Over the time since the reading before.
    utilisation_percent: int | None = None
    temperature_c: int | None = None
    power_watts: int | None = None
    #: MiB that each process holds there.
    processes: dict[int, int | None] = field(default_factory=dict)
    #: Utilisation in percent by each process, where the driver reports it.
    work: dict[int, int] = field(default_factory=dict)
    #: It does not answer any more.
    lost: bool = False
    slices: list[Reading] = field(default_factory=list)
    #: Why it must not be used, and what is only shown.
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Gpu:
    """A GPU of the session: its NVML handle, what never changes, and when its samples were last read."""

    handle: Any
    index: int
    uuid: str
    name: str
    bus: str
    memory_mib: int
    sampled_at: int = 0
    worked_at: int = 0


class NvmlSession:
    """NVML from its start to its end; kept open, because errors (Xids) reach only a session that is open."""

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
        self._gpus: list[_Gpu] = []
        #: GPUs that were lost before their UUID was read: their index, and why.
        self.unnamed: list[tuple[int, str]] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                self._gpus.append(self._identify(index))
            except nvml.NVMLError as error:
                if error.value in _SESSION_IS_OVER:
                    raise
                self.unnamed.append((index, _DEVICE_IS_LOST.get(error.value, f"NVML says: {error}")))
        self._subscribe()

    def _identify(self, index: int) -> _Gpu:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return _Gpu(
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

    # ------------------------------------------------------------ errors that the driver reports

    def _subscribe(self) -> None:
        nvml = self._nvml
        try:
            self._events = nvml.nvmlEventSetCreate()
        except (nvml.NVMLError, AttributeError):
            return
        for gpu in self._gpus:
            with contextlib.suppress(nvml.NVMLError):
                wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
                supported = nvml.nvmlDeviceGetSupportedEventTypes(gpu.handle)
                if wanted & supported:
                    nvml.nvmlDeviceRegisterEvents(gpu.handle, wanted & supported, self._events)

    def _collect_xids(self) -> None:
        """Read the errors since the last call; they are kept until this session ends."""
        nvml = self._nvml
        for _ in range(1000 if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait(self._events, 0)
                uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
            except nvml.NVMLError:
                return  # nothing more
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                seen = self._xids.setdefault(uuid, [])
                if event.eventData not in seen:
                    seen.append(int(event.eventData))

    # ------------------------------------------------------------ a reading

    def read(self) -> list[Reading]:
        """Read every GPU that was there when the session began; a lost one says so in its faults. Raises NoNvml."""
        self._collect_xids()
        return [self._read(gpu) for gpu in self._gpus]

    def _read(self, gpu: _Gpu) -> Reading:
        nvml = self._nvml
        reading = Reading(gpu.index, gpu.uuid, gpu.name, gpu.bus, gpu.memory_mib)
        reading.faults, reading.notes = health.of_xids(self._xids.get(gpu.uuid, ()))
        try:
            self._sample(gpu, reading)
            faults, notes = health.of_device(
                lambda *asked: self._ask(gpu.handle, *asked),
                nvml,
                alone=len(self._gpus) + len(self.unnamed) == 1,
            )
            reading.faults += faults
            reading.notes += notes
            self._read_slices(gpu, reading)
        except nvml.NVMLError as error:
            if error.value in _SESSION_IS_OVER:
                raise NoNvml(_why_not(error)) from error
            reading.lost = True
            reading.faults.insert(0, _DEVICE_IS_LOST.get(error.value, f"NVML says: {error}"))
        return reading

    def _sample(self, gpu: _Gpu, reading: Reading) -> None:
        nvml, handle = self._nvml, gpu.handle
        reading.memory_used_mib = self._memory(handle)[1]  # raises where the GPU is lost
        reading.utilisation_percent = self._utilisation(gpu)
        temperature = self._ask(handle, "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        power_mw = self._ask(handle, "nvmlDeviceGetPowerUsage")
        reading.temperature_c = None if temperature is None else int(temperature)
        reading.power_watts = None if power_mw is None else round(power_mw / 1000)
        reading.processes = self._processes(handle)
        if reading.processes:
            reading.work = self._work(gpu)

    def _memory(self, handle: Any) -> tuple[int, int]:
        """MiB in total, and in use by programs; the driver uses a little more for itself."""
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
        except (AttributeError, nvml.NVMLError) as error:
            if getattr(error, "value", None) in _DEVICE_IS_LOST:
                raise
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return memory.total // MIB, memory.used // MIB

    def _utilisation(self, gpu: _Gpu) -> int | None:
        """The mean of the driver's own samples since the last reading, so that no second is missed."""
        nvml = self._nvml
        first = gpu.sampled_at == 0
        asked = ("nvmlDeviceGetSamples", nvml.NVML_GPU_UTILIZATION_SAMPLES, gpu.sampled_at)
        _, samples = self._ask(gpu.handle, *asked) or (0, ())
        fresh = [s for s in samples if s.timeStamp > gpu.sampled_at]
        if fresh:
            gpu.sampled_at = max(sample.timeStamp for sample in fresh)
            if not first:
                shares = [min(100, int(sample.sampleValue.uiVal)) for sample in fresh]
                return round(sum(shares) / len(shares))
        rates = self._ask(gpu.handle, "nvmlDeviceGetUtilizationRates")
        return None if rates is None else int(rates.gpu)

    def _processes(self, handle: Any) -> dict[int, int | None]:
        found = self._ask(handle, "nvmlDeviceGetComputeRunningProcesses") or ()
        return {p.pid: None if p.usedGpuMemory is None else p.usedGpuMemory // MIB for p in found}

    def _work(self, gpu: _Gpu) -> dict[int, int]:
        """Utilisation by process since the last reading; the driver answers "not found" where there was none."""
        samples = self._ask(gpu.handle, "nvmlDeviceGetProcessUtilization", gpu.worked_at) or ()
        work: dict[int, int] = {}
        for sample in samples:
            if sample.timeStamp > gpu.worked_at and sample.pid:
                work[sample.pid] = max(work.get(sample.pid, 0), min(100, sample.smUtil))
        gpu.worked_at = max([gpu.worked_at, *(sample.timeStamp for sample in samples)])
        return work

    def _read_slices(self, gpu: _Gpu, reading: Reading) -> None:
        """The slices of the GPU, each with the name and the UUID that programs use."""
        now, wanted = self._ask(gpu.handle, "nvmlDeviceGetMigMode") or (0, 0)
        if now != wanted:
            reading.notes.append(f"cutting it is to be turned {'on' if wanted else 'off'} by its next reset")
        if not now:
            return
        places = self._ask(gpu.handle, "nvmlDeviceGetMaxMigDeviceCount") or 0
        for place in range(min(places, SLICE_PLACES)):
            one = self._ask(gpu.handle, "nvmlDeviceGetMigDeviceHandleByIndex", place)
            if one is None:
                continue  # no slice there
            total, used = self._memory(one)
            name, uuid = self._ask(one, "nvmlDeviceGetName"), self._ask(one, "nvmlDeviceGetUUID")
            if name is not None and uuid is not None:
                reading.slices.append(
                    Reading(
                        place,
                        _text(uuid),
                        _text(name),
                        gpu.bus,
                        total,
                        used,
                        processes=self._processes(one),
                    )
                )
        if not reading.slices:
            reading.faults.append("it is set to be cut into slices (MIG) and none is made")

    def _ask(self, handle: Any, name: str, *arguments: Any) -> Any:
        """The answer of this device, or None where it, its driver or the library has none."""
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
    """Whether there is a GPU of NVIDIA that is not passed through to a virtual machine."""
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
