"""Resources: what is asked for, held and limited, as integers in fixed units, and the one converter to them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal, InvalidOperation
from typing import Final

MIB: Final = 1024 * 1024
GPU_MILLIS: Final = 1000  # one whole GPU

#: Resource names with a column of their own, in the order they are shown.
NAMES: Final = ("cpu_millis", "memory_mib", "gpus", "gpu_millis", "storage_mib")

#: No single amount may reach this: 2**53 stays exact in JSON and in every float on the way.
MAX_AMOUNT: Final = 2**53 - 1

_SUFFIXES: Final[dict[str, int]] = {
    "": 1,
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40, "pi": 2**50,
}  # fmt: skip
#: Nothing between two runs of spaces may be left out, or a long run would be divided between them in every way.
_BYTES = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*(?:([kmgtp]i?)?b?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Resources:
    """An integer vector of amounts.

    Units: `cpu_millis` thousandths of a core, `memory_mib` and `storage_mib` MiB, `gpus` whole devices,
    `gpu_millis` thousandths of one device (only when `gpus == 1`; 0 means the whole of each device),
    `extras` named countable things (licences, bandwidth) in their own unit.
    """

    cpu_millis: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_millis: int = 0
    storage_mib: int = 0
    extras: tuple[tuple[str, int], ...] = field(default=())

    def __add__(self, other: Resources) -> Resources:
        return self._zip(other, 1)

    def __sub__(self, other: Resources) -> Resources:
        return self._zip(other, -1)

    def __mul__(self, times: int) -> Resources:
        return Resources(
            cpu_millis=self.cpu_millis * times,
            memory_mib=self.memory_mib * times,
            gpus=self.gpus * times,
            gpu_millis=self.gpu_millis * times,
            storage_mib=self.storage_mib * times,
            extras=tuple((name, amount * times) for name, amount in self.extras),
        )

    def _zip(self, other: Resources, sign: int) -> Resources:
        extras = dict(self.extras)
        for name, amount in other.extras:
            extras[name] = extras.get(name, 0) + sign * amount
        return Resources(
            cpu_millis=self.cpu_millis + sign * other.cpu_millis,
            memory_mib=self.memory_mib + sign * other.memory_mib,
            gpus=self.gpus + sign * other.gpus,
            gpu_millis=self.gpu_millis + sign * other.gpu_millis,
            storage_mib=self.storage_mib + sign * other.storage_mib,
            extras=tuple(sorted((name, amount) for name, amount in extras.items() if amount)),
        )

    def fits_in(self, free: Resources) -> bool:
        """Every amount is at most what is free; an extra that `free` does not have counts as 0."""
        have = dict(free.extras)
        return all(getattr(self, name) <= getattr(free, name) for name in NAMES) and all(
            amount <= have.get(name, 0) for name, amount in self.extras
        )

    def items(self) -> Iterator[tuple[str, int]]:
        """Every amount that is not 0, own columns first, then extras by name."""
        for name in NAMES:
            amount = getattr(self, name)
            if amount:
                yield name, amount
        yield from self.extras

    @property
    def gpu_millis_charged(self) -> int:
        """What the GPUs of one task count for in quotas: a share when it is a share, else whole devices."""
        return self.gpu_millis if self.gpus == 1 and self.gpu_millis else self.gpus * GPU_MILLIS

    def with_extras(self, extras: Mapping[str, int]) -> Resources:
        return replace(self, extras=tuple(sorted(extras.items())))


assert tuple(f.name for f in fields(Resources))[:-1] == NAMES


class BadAmount(ValueError):
    """An amount that cannot be read; its text says what was given and what would be understood."""


def parse_bytes(text: str | int | float, *, bare_unit: str = "") -> int:
    """Read bytes from `17179869184`, `"16Gi"`, `"16GiB"`, `"16G"`, `"1.5 GB"`; K/M/G are decimal, Ki/Mi/Gi binary.

    `bare_unit` is what a number without a unit counts in (`"mi"` for `sbatch --mem`).

    Raises BadAmount for anything else, for a negative amount and for one above 2**53 bytes.
    """
    if isinstance(text, bool):
        raise BadAmount(f"{text!r} is not an amount; write for example 16Gi")
    match = _BYTES.fullmatch(str(text).strip())
    if match is None:
        raise BadAmount(
            f"{str(text)[:40]!r} is not an amount; write for example 16Gi, 500M or a number of bytes"
        )
    number, suffix = match.groups()
    try:
        amount = Decimal(number) * _SUFFIXES[(suffix or bare_unit).lower()]
    except InvalidOperation as broken:
        raise BadAmount(f"{str(text)[:40]!r} is not a number") from broken
    if amount > MAX_AMOUNT:
        raise BadAmount(f"{str(text)[:40]} is more than any machine has")
    return int(amount)


def bytes_to_mib(amount_bytes: int) -> int:
    """Whole MiB that hold at least the given bytes: a job never gets less than it asked for."""
    return -(-amount_bytes // MIB)


def parse_mib(text: str | int | float, *, bare_unit: str = "") -> int:
    """`parse_bytes`, rounded up to MiB."""
    return bytes_to_mib(parse_bytes(text, bare_unit=bare_unit))


def cores_to_millis(cores: str | int | float) -> int:
    """Thousandths of a core from `2`, `0.5`, `"1.5"` or `"1500m"`; raises BadAmount."""
    if isinstance(cores, bool):
        raise BadAmount(f"{cores!r} is not a number of cores")
    text = str(cores).strip()
    if len(text) > 64:
        raise BadAmount(f"{text[:40]!r} is longer than any number of cores")
    scale = 1 if text.endswith("m") else 1000
    try:
        millis = Decimal(text.removesuffix("m")) * scale
    except InvalidOperation as broken:
        raise BadAmount(
            f"{text[:40]!r} is not a number of cores; write for example 4, 0.5 or 500m"
        ) from broken
    if not millis.is_finite() or millis < 0:
        raise BadAmount(f"{text[:40]!r} is not a number of cores; it cannot be negative")
    if millis > MAX_AMOUNT:
        raise BadAmount(f"{text[:40]} is more than any machine has")
    if millis != int(millis):
        raise BadAmount(f"{text[:40]!r} is finer than a thousandth of a core")
    return int(millis)


def show_mib(mib: float) -> str:
    """`1536` -> `1.5 GiB`: the shortest text that is still exact to a tenth."""
    value, unit = float(mib), "MiB"
    for bigger in ("GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def show_bytes(size: int) -> str:
    """`3000000` -> `2.9 MiB`: bytes below 1 KiB, else as `show_mib`."""
    if size < 1024:
        return f"{size} byte" if size == 1 else f"{size} bytes"
    kib = size / 1024
    return f"{kib:.1f}".removesuffix(".0") + " KiB" if kib < 1023.95 else show_mib(kib / 1024)


def show_cpus(millis: int) -> str:
    """`1500` -> `1.5`."""
    return f"{millis / 1000:.3f}".rstrip("0").rstrip(".")
