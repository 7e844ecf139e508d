"""Quota lines as Kubernetes writes them: `requests.cpu: 1500m`, `requests.memory: 500Gi`, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Final

from quotas.core.external_limits import Bound, Mapped, whole
from quotas.core.resources import MAX_AMOUNT, MIB

CPU: Final = "requests.cpu"  # kept in thousandths
MEMORY: Final = "requests.memory"  # kept in MiB
STORAGE: Final = "requests.ephemeral-storage"  # kept in MiB
GPU: Final = "requests.nvidia.com/gpu"
#: One job of ours is one Job there. Those that have ended count until they are deleted.
JOBS: Final = "count/jobs.batch"

_NAMES: Final = {"cpu_millis": CPU, "memory_mib": MEMORY, "storage_mib": STORAGE, "running_jobs": JOBS}
_IN_MIB: Final = (MEMORY, STORAGE)
_SUFFIXES: Final[dict[str, Decimal]] = {
    "": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_QUANTITY: Final = re.compile(
    r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([eE][+-]?[0-9]{1,3})|([KMGTPE]i|[numkMGTPE])?)"
)


class BadQuantity(ValueError):
    """A text that is no quantity of Kubernetes."""


def values_of(bounds: Iterable[Bound]) -> Mapped:
    """Hard limits of a ResourceQuota for these lines. It has none for one model of GPU."""
    values: dict[str, int] = {}
    left_out: list[str] = []
    for bound in bounds:
        if bound.job_type or bound.gpu_model:
            left_out.append(bound.words)
        elif bound.resource == "gpu_millis":
            values[GPU] = whole(bound.amount, 1000)
        elif bound.resource in _NAMES:
            values[_NAMES[bound.resource]] = bound.amount
        else:
            left_out.append(bound.words)
    return Mapped(values, tuple(left_out))


def is_ours(key: str) -> bool:
    """Whether we set limits of this name; others in the object are left alone."""
    return key in (CPU, MEMORY, STORAGE, GPU, JOBS)


def parse(key: str, text: str | int | float) -> int:
    """A quantity in the unit that we keep under this name, rounded up to it. Raises BadQuantity."""
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        raise BadQuantity(f"{str(text)[:40]!r} is not a quantity of Kubernetes")
    number, exponent, suffix = match.groups()
    amount = Decimal(number + (exponent or "")) * _SUFFIXES[suffix or ""]
    if key == CPU:
        amount *= 1000
    elif key in _IN_MIB:
        amount /= MIB
    if amount > MAX_AMOUNT:
        raise BadQuantity(f"{str(text)[:40]!r} is more than any cluster has")
    return int(amount.to_integral_value(rounding="ROUND_CEILING"))


def show(key: str, value: int | None) -> str:
    """The quantity as it is written there; no limit is `none`."""
    if value is None:
        return "none"
    if key == CPU:
        return str(value // 1000) if value % 1000 == 0 else f"{value}m"
    if key in _IN_MIB:
        for unit, size in (("Ti", 1024**2), ("Gi", 1024)):
            if value and value % size == 0:
                return f"{value // size}{unit}"
        return f"{value}Mi" if value else "0"
    return str(value)


def parse_all(quantities: Mapping[str, str]) -> dict[str, int]:
    """Those of a ResourceQuota's `hard` or `used` that are ours."""
    return {key: parse(key, text) for key, text in quantities.items() if is_ours(key)}
