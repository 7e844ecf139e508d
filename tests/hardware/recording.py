"""Every answer of NVML on this machine, as it came, with how long it took."""

from __future__ import annotations

import ctypes
import importlib
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final

QUESTIONS: Final = (
    "GetUUID", "GetName", "GetPciInfo", "GetMemoryInfo", "GetUtilizationRates", "GetPowerUsage", "GetMigMode",
    "GetMaxMigDeviceCount", "GetRemappedRows", "GetRetiredPagesPendingStatus", "GetComputeMode",
    "GetCurrentClocksEventReasons", "GetComputeRunningProcesses", "GetGraphicsRunningProcesses",
    "GetSupportedEventTypes", "GetEccMode", "GetPersistenceMode", "GetTotalEnergyConsumption", "GetIndex",
    "GetMinorNumber", "GetPerformanceState", "GetEnforcedPowerLimit", "GetRepairStatus",
    "GetVirtualizationMode", "GetArchitecture",
)  # fmt: skip
COMMANDS: Final = {
    "lscpu": "lscpu",
    "system": "uname -a; id; readlink /proc/self/ns/pid; cat /proc/self/cgroup",
    "driver": "ls /dev/nvidia* /proc/driver/nvidia; cat /proc/driver/nvidia/gpus/*/information",
    "pci": "cd /sys/bus/pci/devices; for d in *; do echo $d $(cat $d/vendor $d/class $d/numa_node); done",
    "kernel": "dmesg | grep -iE 'nvrm|xid' | tail -20",
    "nvidia-smi": "nvidia-smi -q",
}


def everything() -> dict[str, Any]:
    nvml: Any = importlib.import_module("pynvml")
    found: dict[str, Any] = {}

    def ask(label: str, what: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            answer = _plain(what())
        except Exception as error:
            answer = {
                "error": type(error).__name__,
                "value": getattr(error, "value", None),
                "text": str(error),
            }
        found[label] = {"answer": answer, "ms": round((time.monotonic() - began) * 1000, 3)}

    ask("init", nvml.nvmlInit)
    ask("driver", lambda: nvml.nvmlSystemGetDriverVersion())
    ask("count", lambda: nvml.nvmlDeviceGetCount())
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for question in QUESTIONS:
        ask(question, lambda question=question: getattr(nvml, f"nvmlDevice{question}")(handle))
    ask("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2))
    ask("temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    ask("uncorrected", lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0))
    ask("samples", lambda: _ends(nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)[1]))
    ask("work", lambda: nvml.nvmlDeviceGetProcessUtilization(handle, 0))
    ask("recovery", lambda: _field(nvml.nvmlDeviceGetFieldValues(handle, [230])[0]))
    ask("fabric", lambda: _fabric(nvml, handle))
    ask("events", lambda: _events(nvml, handle))
    ask("shutdown", nvml.nvmlShutdown)
    ask("init again", nvml.nvmlInit)
    nvml.nvmlShutdown()
    for label, command in COMMANDS.items():
        done = subprocess.run(
            ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
        )
        found[label] = done.stdout
    return found


def _ends(samples: Any) -> dict[str, Any]:
    listed = [(sample.timeStamp, sample.sampleValue.uiVal) for sample in samples]
    return {"count": len(listed), "first": listed[:3], "last": listed[-3:]}


def _field(value: Any) -> dict[str, Any]:
    return {"return": value.nvmlReturn, "type": value.valueType, "value": value.value.uiVal}


def _fabric(nvml: Any, handle: Any) -> dict[str, Any]:
    info = nvml.c_nvmlGpuFabricInfo_t()
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return {"state": info.state, "status": info.status}


def _events(nvml: Any, handle: Any) -> str:
    """A wait that does not wait: nothing has happened."""
    events = nvml.nvmlEventSetCreate()
    try:
        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        nvml.nvmlEventSetWait(events, 0)
    finally:
        nvml.nvmlEventSetFree(events)
    return "an event"


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple | ctypes.Array):
        return [_plain(one) for one in value]
    if hasattr(value, "_fields_"):
        return {name: _plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, int | float | str) or value is None:
        return value
    return (
        {name: _plain(one) for name, one in vars(value).items()}
        if hasattr(value, "__dict__")
        else repr(value)
    )
