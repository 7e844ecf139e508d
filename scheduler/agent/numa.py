"""The NUMA domains of this machine, and how a process that is started is bound to one of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scheduler.agent.cpus import usable_cpus

_NODES: Final = Path("/sys/devices/system/node")
#: set_mempolicy(2), which the C library does not wrap, by what `uname` calls the machine.
_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
_DEFAULT: Final = 0
_BIND: Final = 2
#: More domains than any kernel numbers.
MOST_DOMAINS: Final = 1024


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain that the kernel knows (`real`), or one that is only laid out: no memory can be bound to that one."""

    number: int
    cpus: tuple[int, ...]
    memory_mib: int
    real: bool = True


def domains(
    laid_out: int | None = None, root: Path = _NODES, *, usable: Sequence[int] | None = None
) -> list[Domain]:
    """The domains of the machine, or `laid_out` even parts of its CPUs and memory where that number differs.

    `usable` are the CPUs to divide (default: the CPUs that this process may use).
    """
    cpus = usable_cpus() if usable is None else sorted(usable)
    real = _real(root, cpus)
    if laid_out is None or laid_out == len(real):
        return real
    memory = sum(domain.memory_mib for domain in real)
    return [
        Domain(
            number,
            tuple(cpus[len(cpus) * number // laid_out : len(cpus) * (number + 1) // laid_out]),
            memory // laid_out,
            real=False,
        )
        for number in range(laid_out)
    ]


def _real(root: Path, usable: Iterable[int]) -> list[Domain]:
    found = []
    for folder in root.glob("node[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            cpus = set(usable) & set(_numbers((folder / "cpulist").read_text()))
            number = int(folder.name.removeprefix("node"))
            found.append(Domain(number, tuple(sorted(cpus)), _of_meminfo(folder, ("MemTotal",))))
    return sorted(found, key=lambda domain: domain.number) or [
        Domain(0, tuple(sorted(usable)), 1, real=False)
    ]


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Divide a total into whole parts in proportion to these weights; evenly where all weights are 0."""
    parts, before, done = [], 0, 0
    whole = sum(weights)
    for place, weight in enumerate(weights, 1):
        before += weight
        upto = total * before // whole if whole else total * place // len(weights)
        parts.append(upto - done)
        done = upto
    return parts


def free_mib(number: int, root: Path = _NODES) -> int:
    """MiB of a domain that a new process can get: free memory, and file pages that the kernel can drop."""
    with contextlib.suppress(OSError, ValueError):
        return _of_meminfo(root / f"node{number}", ("MemFree", "Active(file)", "Inactive(file)"))
    return 0


@contextlib.contextmanager
def on_memory(number: int | None) -> Iterator[bool]:
    """Bind the memory of processes that are started inside, and of their descendants, to this domain; None to none.

    Yields whether the memory is bound: a kernel, or a container's filter, may refuse.
    """
    if number is None or not _set_policy(_BIND, number):
        yield False
        return
    try:
        yield True
    finally:
        _set_policy(_DEFAULT, None)


def _set_policy(mode: int, number: int | None) -> bool:
    call = _SET_MEMPOLICY.get(os.uname().machine)
    if call is None or (number is not None and not 0 <= number < MOST_DOMAINS):
        return False
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask, length = None, 0  # the kernel takes no mask of no length
    if number is not None:
        mask, length = (ctypes.c_ulong * (MOST_DOMAINS // bits))(), MOST_DOMAINS + 1
        mask[number // bits] = 1 << number % bits
    try:
        answer: int = ctypes.CDLL(None).syscall(
            ctypes.c_long(call), ctypes.c_int(mode), mask, ctypes.c_ulong(length)
        )
    except (OSError, AttributeError):
        return False
    return answer == 0


def _of_meminfo(folder: Path, names: Iterable[str]) -> int:
    """The sum, in MiB, of the lines with these names: `Node 0 MemTotal: 18966300 kB`."""
    text = (folder / "meminfo").read_text()
    found = dict(re.findall(r"^Node \d+ ([\w()]+):\s+(\d+) kB", text, re.MULTILINE))
    return sum(int(found[name]) for name in names if name in found) // 1024


def _numbers(text: str) -> Iterator[int]:
    """`0-3,8` -> 0, 1, 2, 3, 8."""
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
