"""The files that a task may use, as Landlock enforces them; what is not allowed here is refused.

A ruleset is made for each task, because each has folders of its own; what all have in common is opened once. Rights
for a folder hold for everything beneath it, wherever that is mounted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final

from scheduler.agent.isolation import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_REFER, _TRUNCATE = 1 << 13, 1 << 14
#: Everything that version 1 of Landlock can refuse.
_VERSION_1: Final = (1 << 13) - 1
#: To make devices stays refused everywhere.
_MAKE_DEVICES: Final = (1 << 6) | (1 << 11)
_READ: Final = _EXECUTE | _READ_FILE | _READ_FOLDER
#: What a rule on a file, not a folder, may have.
_ON_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
#: Abstract sockets, and signals to processes outside.
_SCOPED: Final = 3
_SCOPING_ABI: Final = 6

#: Devices that every program expects.
DEVICES: Final = (
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts",
    "/dev/shm",  # noqa: S108
)  # fmt: skip
#: What programs need of the system; `probe` leaves out what is hidden in it.
SYSTEM: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/sys", "/nix", "/cvmfs",
    "/run/systemd/resolve", "/run/resolvconf", "/var/lib/ca-certificates",
)  # fmt: skip


class FileRules:
    """The rules that all tasks of a guard have in common; `abi` is the version of Landlock that the kernel speaks."""

    def __init__(self, abi: int, *, readable: Iterable[str], writable: Iterable[str]) -> None:
        self._abi = abi
        self._handled = _VERSION_1 | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
        self._write = self._handled & ~_MAKE_DEVICES
        self._scoped = _SCOPED if abi >= _SCOPING_ABI else 0
        self._rules: list[kernel.LandlockRule] = []
        for path in readable:
            self._open(path, _READ)
        for path in (*writable, *DEVICES):
            self._open(path, self._write)
        # A program names its threads there; what is another's, the kernel keeps from it by other rules.
        self._open("/proc", _READ | _WRITE_FILE)

    def _open(self, path: str, allowed: int) -> None:
        """Add a rule; a path that is not there is left out."""
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
            self._rules.append(kernel.landlock_rule(file, self._allowed_on(file, allowed)))

    def _allowed_on(self, file: int, allowed: int) -> int:
        allowed &= self._handled
        return allowed if stat.S_ISDIR(os.fstat(file).st_mode) else allowed & _ON_FILES

    def enforce(self, own: Iterable[str], *, readable: Iterable[str] = ()) -> None:
        """Confine the calling thread, and all that it starts: the common rules, and its `own` folders and files.

        Those that are `readable` it may read alone.

        Raises OSError; then the thread must start nothing.
        """
        ruleset = kernel.landlock_ruleset(self._handled, self._scoped, self._abi)
        try:
            kernel.landlock_allow(ruleset, self._rules)
            for path, allowed in (*((one, self._write) for one in own), *((one, _READ) for one in readable)):
                file = os.open(path, os.O_PATH | os.O_CLOEXEC)
                try:
                    rule = kernel.landlock_rule(file, self._allowed_on(file, allowed))
                    kernel.landlock_allow(ruleset, [rule])
                finally:
                    os.close(file)
            kernel.landlock_enforce(ruleset)
        finally:
            os.close(ruleset)


def around(root: str, hidden: Iterable[str]) -> Iterator[str]:
    """`root`, or where something hidden is beneath it, all that is beside the way there.

    What is made beside that way later is not among it. Nothing where the root itself is hidden.
    """
    beneath = [path for path in hidden if is_beneath(path, root)]
    if any(is_beneath(root, path) for path in hidden):
        return
    if not beneath:
        yield root
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(root):
            path = os.path.join(root, name)
            if not os.path.islink(path):
                yield from around(path, beneath)


def is_beneath(path: str, folder: str) -> bool:
    """Whether the path is this folder or within it; both are absolute and without links."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
