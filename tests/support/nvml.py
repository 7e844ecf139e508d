"""NVML as the agent meets it: the functions it calls, answering as NVIDIA documents them for an H200."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 2**30


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


NOT_SUPPORTED, TIMEOUT, NOT_FOUND, LOST, RESET_REQUIRED = 3, 10, 6, 15, 16


@dataclass
class FakeGpu:
    """One GPU; `lost` is the error that it answers everything with."""

    uuid: str
    name: str = "NVIDIA H200"
    bus: str = "00000000:00:05.0"
    total: int = 150_754_820_096
    used: int = 0
    temperature: int | None = 30
    power_mw: int | None = 76_000
    #: (microseconds, percent), and since when they were asked for.
    samples: list[tuple[int, int]] = field(default_factory=list)
    utilisation: int | None = 0
    #: pid -> bytes.
    processes: dict[int, int | None] = field(default_factory=dict)
    #: (pid, microseconds, percent)
    work: list[tuple[int, int, int]] = field(default_factory=list)
    mig: tuple[int, int] | None = (0, 0)
    slices: dict[int, FakeGpu] = field(default_factory=dict)
    uncorrected: int = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    recovery: int = 0
    compute_mode: int = 0
    fabric: tuple[int, int] = (0, 0)
    clock_reasons: int = 1
    lost: int = 0


class FakeNvml:
    """Stands in for the module `pynvml`; handles are the GPUs themselves."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_GPU_UTILIZATION_SAMPLES = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_COMPUTEMODE_PROHIBITED = 2
    NVML_GPU_FABRIC_STATE_NOT_STARTED = 1
    NVML_GPU_FABRIC_STATE_IN_PROGRESS = 2
    NVML_GPU_FABRIC_STATE_COMPLETED = 3
    nvmlEventTypeXidCriticalError = 8
    nvmlEventTypeDoubleBitEccError = 2
    nvmlMemory_v2 = 33554472

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.refuses = 0
        self.sessions = 0
        self.events: list[tuple[FakeGpu, int, int]] = []

    # ------------------------------------------------------------ the session

    def nvmlInit(self) -> None:
        if self.refuses:
            raise NVMLError(self.refuses)
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self._there(self.gpus[index])

    def _there(self, gpu: FakeGpu) -> FakeGpu:
        if self.refuses:
            raise NVMLError(self.refuses)
        if gpu.lost:
            raise NVMLError(gpu.lost)
        return gpu

    def _told(self, gpu: FakeGpu, value: Any) -> Any:
        self._there(gpu)
        if value is None:
            raise NVMLError(NOT_SUPPORTED)
        return value

    # ------------------------------------------------------------ a device

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return self._there(gpu).uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return self._there(gpu).name

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(busId=self._there(gpu).bus.encode())

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> Any:
        reserved = 0 if version else 651 * 2**20
        return SimpleNamespace(total=self._there(gpu).total, used=gpu.used + reserved)

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        return self._told(gpu, gpu.temperature)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return self._told(gpu, gpu.power_mw)

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(gpu=self._told(gpu, gpu.utilisation), memory=0)

    def nvmlDeviceGetSamples(self, gpu: FakeGpu, kind: int, since: int) -> Any:
        found = [
            SimpleNamespace(timeStamp=at, sampleValue=SimpleNamespace(uiVal=percent))
            for at, percent in self._there(gpu).samples
            if at > since
        ]
        if not found:
            raise NVMLError(NOT_FOUND)
        return 1, found

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self._there(gpu).processes.items()
        ]

    def nvmlDeviceGetProcessUtilization(self, gpu: FakeGpu, since: int) -> list[Any]:
        found = [
            SimpleNamespace(pid=pid, timeStamp=at, smUtil=percent)
            for pid, at, percent in self._there(gpu).work
            if at > since
        ]
        if not found:
            raise NVMLError(NOT_FOUND)
        return found

    # ------------------------------------------------------------ slices

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        return list(self._told(gpu, gpu.mig))

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, place: int) -> FakeGpu:
        if place not in gpu.slices:
            raise NVMLError(NOT_FOUND)
        return gpu.slices[place]

    # ------------------------------------------------------------ health

    def nvmlDeviceGetTotalEccErrors(self, gpu: FakeGpu, kind: int, counter: int) -> int:
        return self._told(gpu, gpu.uncorrected)

    def nvmlDeviceGetRemappedRows(self, gpu: FakeGpu) -> tuple[int, int, int, int]:
        return self._told(gpu, gpu.rows)

    def nvmlDeviceGetRetiredPagesPendingStatus(self, gpu: FakeGpu) -> int:
        return self._told(gpu, None)

    def nvmlDeviceGetComputeMode(self, gpu: FakeGpu) -> int:
        return self._told(gpu, gpu.compute_mode)

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, fields: list[int]) -> list[Any]:
        value = SimpleNamespace(uiVal=self._told(gpu, gpu.recovery))
        return [SimpleNamespace(nvmlReturn=0, value=value) for _ in fields]

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu) -> int:
        return self._told(gpu, gpu.clock_reasons)

    class c_nvmlGpuFabricInfo_t(ctypes.Structure):
        _fields_ = [("status", ctypes.c_uint), ("state", ctypes.c_ubyte)]

    def nvmlDeviceGetGpuFabricInfo(self, gpu: FakeGpu, info: Any) -> int:
        info._obj.state, info._obj.status = self._told(gpu, gpu.fabric)
        return 0

    # ------------------------------------------------------------ events

    def nvmlEventSetCreate(self) -> list[Any]:
        return []

    def nvmlEventSetFree(self, events: list[Any]) -> None: ...

    def nvmlDeviceGetSupportedEventTypes(self, gpu: FakeGpu) -> int:
        return self._told(gpu, 8 | 2 | 1)

    def nvmlDeviceRegisterEvents(self, gpu: FakeGpu, kinds: int, events: list[Any]) -> None:
        self._there(gpu)

    def nvmlEventSetWait(self, events: list[Any], milliseconds: int) -> Any:
        if not self.events:
            raise NVMLError(TIMEOUT)
        device, kind, data = self.events.pop(0)
        return SimpleNamespace(device=device, eventType=kind, eventData=data)


def xid(gpu: FakeGpu, number: int) -> tuple[FakeGpu, int, int]:
    return gpu, FakeNvml.nvmlEventTypeXidCriticalError, number


def some_gpus(count: int) -> Iterator[FakeGpu]:
    for number in range(count):
        yield FakeGpu(f"GPU-{number}", bus=f"00000000:{number + 5:02X}:00.0")
