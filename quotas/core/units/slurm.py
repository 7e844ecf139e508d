"""Quota lines as Slurm writes them: trackable resources (`cpu=100,mem=500G,gres/gpu=10`) and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Final

from quotas.core.external_limits import MEMBER, Bound, Mapped, whole

CPU: Final = "cpu"
MEMORY: Final = "mem"  # MiB: what Slurm calls M is 1,048,576 bytes, and G is 1,024 of those
GPU: Final = "gres/gpu"
JOBS: Final = "jobs"  # GrpJobs, which is no trackable resource but a limit beside them

#: Slurm's own suffixes, in MiB.
_MEMORY_MIB: Final[dict[str, int | Decimal]] = {
    "": 1, "K": Decimal(1) / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3,
}  # fmt: skip
_COUNT: Final[dict[str, int | Decimal]] = {
    "": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5,
}  # fmt: skip
_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)")


class BadTres(ValueError):
    """A text of Slurm's that cannot be read."""


def gpu_type(model: str) -> str:
    """`NVIDIA H100` -> `nvidia_h100`: as types of GPUs are written in gres.conf."""
    return re.sub(r"[^a-z0-9.]+", "_", model.lower()).strip("_")


def values_of(bounds: Iterable[Bound]) -> Mapped:
    """Group limits of a QOS for these lines."""
    values: dict[str, int] = {}
    left_out: list[str] = []
    for bound in bounds:
        if bound.job_type:
            left_out.append(bound.words)
        elif bound.resource == "cpu_millis":
            values[CPU] = whole(bound.amount, 1000)
        elif bound.resource == "memory_mib":
            values[MEMORY] = bound.amount
        elif bound.resource == "gpu_millis":
            key = f"{GPU}:{gpu_type(bound.gpu_model)}" if bound.gpu_model else GPU
            values[key] = whole(bound.amount, 1000)
        elif bound.resource == "running_jobs":
            values[JOBS] = bound.amount
        else:
            left_out.append(bound.words)
    return Mapped(values, tuple(left_out))


def is_ours(key: str) -> bool:
    """Whether we set limits of this name; others that somebody has put on the QOS are left alone."""
    return key in (CPU, MEMORY, GPU, JOBS) or key.startswith((GPU + ":", MEMBER))


def parse_tres(text: str) -> dict[str, int]:
    """`cpu=8,mem=62.50G,gres/gpu:a100=2` -> numbers; memory in MiB. Raises BadTres."""
    values: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, amount = part.rpartition("=")
        match = _AMOUNT.fullmatch(amount)
        if not equals or match is None:
            raise BadTres(f"{part[:60]!r} is not a resource as Slurm writes it")
        units = _MEMORY_MIB if name == MEMORY else _COUNT
        values[name] = int(Decimal(match[1]) * units[match[2]])
    return values


def format_tres(changes: Mapping[str, int | None]) -> str:
    """The same for `sacctmgr modify ... set GrpTRES=`; -1 takes a limit away."""
    parts = []
    for name, amount in sorted(changes.items()):
        unit = "M" if name == MEMORY and amount is not None else ""
        parts.append(f"{name}={-1 if amount is None else amount}{unit}")
    return ",".join(parts)


def show(key: str, value: int | None) -> str:
    """One value in Slurm's words: `500G` of memory, `8`; no limit is `none`."""
    if value is None:
        return "none" if not key.startswith(MEMBER) else "not a member"
    if key.startswith(MEMBER):
        return "a member"
    if key == MEMORY:
        return f"{value // 1024}G" if value % 1024 == 0 and value else f"{value}M"
    return str(value)
