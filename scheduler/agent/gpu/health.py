"""Whether a GPU may be used, by what its driver reports: faults take it out of service, notes are only shown."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any, Final

#: Errors after which NVIDIA asks for a reset or a repair.
FATAL_XIDS: Final = {
    46: "the GPU stopped working",
    48: "uncorrectable memory error",
    62: "the power controller halted",
    64: "row remapping of the memory failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    110: "the security controller failed",
    119: "the firmware (GSP) does not respond",
    120: "the firmware (GSP) failed",
    136: "NVLink training failed",
    140: "uncorrectable memory error",
    143: "the GPU could not be initialized",
}
#: Errors that a program causes; the GPU works as before.
PROGRAM_XIDS: Final = frozenset({8, 13, 31, 32, 37, 39, 40, 41, 42, 43, 44, 45, 68, 69, 109, 126, 127})
#: Says only that the recovery action has changed, which is read from its own field.
_RECOVERY_CHANGED: Final = 154

#: What the driver itself asks for (field 230 of NVML).
_RECOVERY: Final = {
    1: "the driver requests a GPU reset",
    2: "the driver requests a reboot",
    3: "the driver requests the end of all jobs on its NVLinks",
    4: "the driver requests a GPU reset once its NVLinks are idle",
    6: "the driver requests a reset of the bus",
    7: "the driver requests a reboot",
}
_RECOVERY_FIELD: Final = 230

#: Why its clock is held back, where that is a fault of its surroundings.
_SLOWED: Final = {0x40: "temperature too high", 0x80: "power brake"}

Ask = Callable[..., Any]


def of_xids(xids: Iterable[int]) -> tuple[list[str], list[str]]:
    """(faults, notes) of the errors of this session."""
    faults, notes = [], []
    for xid in xids:
        if xid in FATAL_XIDS:
            faults.append(f"{FATAL_XIDS[xid]} (Xid {xid})")
        elif xid not in PROGRAM_XIDS and xid != _RECOVERY_CHANGED:
            notes.append(f"the driver reported Xid {xid}")
    return faults, notes


def of_device(ask: Ask, nvml: Any, *, alone: bool = False) -> tuple[list[str], list[str]]:
    """(faults, notes) of a GPU as it answers now; a question without an answer counts as sound.

    `alone`: it is the only GPU of its machine, so it needs no links to others.
    """
    faults: list[str] = []
    notes: list[str] = []
    _recovery(ask, faults)
    _memory(ask, nvml, faults)
    if ask("nvmlDeviceGetComputeMode") == nvml.NVML_COMPUTEMODE_PROHIBITED:
        faults.append("the compute mode is prohibited")
    _fabric(ask, nvml, notes if alone else faults, notes)
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    notes += [f"slowed: {why}" for bit, why in _SLOWED.items() if reasons & bit]
    return faults, notes


def _recovery(ask: Ask, faults: list[str]) -> None:
    answers = ask("nvmlDeviceGetFieldValues", [_RECOVERY_FIELD])
    if answers is not None and answers[0].nvmlReturn == 0:
        wanted = _RECOVERY.get(int(answers[0].value.uiVal))
        if wanted:
            faults.append(wanted)


def _memory(ask: Ask, nvml: Any, faults: list[str]) -> None:
    """Errors that ECC could not correct since the driver was loaded; rows or pages that only a reset replaces."""
    asked = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    if errors := ask("nvmlDeviceGetTotalEccErrors", *asked):
        faults.append(f"{errors} memory error{'' if errors == 1 else 's'} that ECC could not correct")
    _, _, pending, failed = ask("nvmlDeviceGetRemappedRows") or (0, 0, 0, 0)
    if failed:
        faults.append("row remapping of the memory failed")
    elif pending or ask("nvmlDeviceGetRetiredPagesPendingStatus") == 1:
        faults.append("row remapping is pending: reset the GPU")


def _fabric(ask: Ask, nvml: Any, faults: list[str], notes: list[str]) -> None:
    """GPUs that are joined by switches do not work before the fabric manager has set up their links."""
    form = getattr(nvml, "c_nvmlGpuFabricInfo_t", None)
    if form is None:
        return
    info = form()
    if ask("nvmlDeviceGetGpuFabricInfo", ctypes.byref(info)) is None:
        return
    if info.state in (nvml.NVML_GPU_FABRIC_STATE_NOT_STARTED, nvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS):
        faults.append("the fabric is not set up: is the fabric manager running?")
    elif info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status != 0:
        notes.append(f"NVLink setup failed (error {info.status})")
