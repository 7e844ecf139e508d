"""Whether a GPU may be used, by what its driver reports: faults take it out of service, notes are only shown."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any, Final

#: Errors after which NVIDIA asks for a reset or a repair.
FATAL_XIDS: Final = {
    46: "it has stopped working",
    48: "its memory had an error that could not be corrected",
    62: "its power controller has halted",
    64: "a bad row of its memory could not be replaced",
    74: "its link to other GPUs failed",
    79: "it has fallen off the bus",
    95: "its memory had an error that could not be contained",
    110: "its security controller failed",
    119: "its firmware does not answer",
    120: "its firmware failed",
    136: "its links could not be trained",
    140: "its memory had an error that could not be corrected",
    143: "it could not be started",
}
#: Errors that a program causes; the GPU works as before.
PROGRAM_XIDS: Final = frozenset({8, 13, 31, 32, 37, 39, 40, 41, 42, 43, 44, 45, 68, 69, 109, 126, 127})
#: Says only that the recovery action has changed, which is read from its own field.
_RECOVERY_CHANGED: Final = 154

#: What the driver itself asks for (field 230 of NVML).
_RECOVERY: Final = {
    1: "the driver asks for its reset",
    2: "the driver asks for a restart of the machine",
    3: "the driver asks that what uses its links ends",
    4: "the driver asks for its reset once nothing uses its links",
    6: "the driver asks for a reset of its bus",
    7: "the driver asks for a restart of the machine",
}
_RECOVERY_FIELD: Final = 230

#: Why its clock is held back, where that is a fault of its surroundings.
_SLOWED: Final = {0x40: "it is too hot", 0x80: "its power supply holds it back"}

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
        faults.append("its compute mode lets no program use it")
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
        faults.append("a bad row of its memory could not be replaced")
    elif pending or ask("nvmlDeviceGetRetiredPagesPendingStatus") == 1:
        faults.append("a bad part of its memory waits for a reset to be replaced")


def _fabric(ask: Ask, nvml: Any, faults: list[str], notes: list[str]) -> None:
    """GPUs that are joined by switches do not work before the fabric manager has set up their links."""
    form = getattr(nvml, "c_nvmlGpuFabricInfo_t", None)
    if form is None:
        return
    info = form()
    if ask("nvmlDeviceGetGpuFabricInfo", ctypes.byref(info)) is None:
        return
    if info.state in (nvml.NVML_GPU_FABRIC_STATE_NOT_STARTED, nvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS):
        faults.append("its fabric is not set up: is the fabric manager running?")
    elif info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status != 0:
        notes.append(f"its links to other GPUs could not be set up (error {info.status})")
