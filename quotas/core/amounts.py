"""Amounts of a limit as people write them: cores, GPUs, GiB and jobs, by the limit's resource."""

from __future__ import annotations

from typing import Final

from quotas.core.resources import MAX_AMOUNT, BadAmount, cores_to_millis, parse_mib, show_cpus

RESOURCE_WORDS: Final = {
    "cpu_millis": "CPU cores",
    "memory_mib": "Memory",
    "gpu_millis": "GPUs",
    "storage_mib": "Storage",
    "running_jobs": "Running jobs",
    "pending_jobs": "Waiting jobs",
}
#: The same of what budgets count.
BUDGET_WORDS: Final = {
    "gpu_milli_seconds": "GPU time",
    "cpu_milli_seconds": "CPU time",
    "money_micros": "Money",
}
#: What an amount of each may look like.
EXAMPLES: Final = {
    "cpu_millis": "cores, for example 16 or 0.5",
    "memory_mib": "with its unit, for example 64 GiB",
    "gpu_millis": "GPUs, for example 4 or 0.5",
    "storage_mib": "with its unit, for example 2 TiB",
    "running_jobs": "a number of jobs",
    "pending_jobs": "a number of jobs",
}
_MOST_DIGITS: Final = len(str(MAX_AMOUNT))
_SIZES: Final = (("PiB", 1 << 30), ("TiB", 1 << 20), ("GiB", 1 << 10), ("MiB", 1))


def parse_amount(resource: str, text: str) -> int:
    """`"4"` of gpu_millis -> 4000; `"64 GiB"` of memory_mib -> 65536; raises BadAmount.

    Memory without a unit is refused: 64 could be GiB to one person and MiB to another.
    """
    text = text.strip()
    if resource.endswith("_millis"):
        return cores_to_millis(text)
    if resource.endswith("_mib"):
        if text.isdecimal() and text.strip("0"):
            raise BadAmount(f"{text[:40]!r} has no unit; write for example {text[:20]} GiB")
        return parse_mib(text)
    digits = text.lstrip("0")
    if (
        not (text.isascii() and text.isdecimal())
        or len(digits) > _MOST_DIGITS
        or int(digits or 0) > MAX_AMOUNT
    ):
        raise BadAmount(f"{text[:40]!r} is not a number of jobs")
    return int(digits or 0)


def exact_amount(resource: str, amount: int) -> str:
    """What `parse_amount` reads as exactly this: `65536` of memory_mib -> `64 GiB`, `1000` -> `1000 MiB`."""
    if resource.endswith("_millis"):
        return show_cpus(amount)
    if resource.endswith("_mib") and amount:
        return next(f"{amount // size} {unit}" for unit, size in _SIZES if amount % size == 0)
    return str(amount)
