"""System calls that Python has no names for, each raising OSError where the kernel refuses.

All of them are prepared when the module is imported: right after a fork, every step costs several times as much.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import sys
from collections.abc import Iterable
from typing import Any, Final

CLONE_FS: Final = 0x00000200
CLONE_PARENT: Final = 0x00008000
CLONE_NEWNS: Final = 0x00020000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_NOATIME: Final = 1024
MS_NODIRATIME: Final = 2048
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MS_RELATIME: Final = 1 << 21
MNT_DETACH: Final = 2

_PR_SET_NO_NEW_PRIVS: Final = 38

#: The same on all machines.
_CLONE3, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 435, 444, 445, 446
_QUOTACTL_FD: Final = 443
#: By machine: setgroups, setresgid, setresuid. Newer machines share one table.
_CREDENTIAL_CALLS: Final = {"x86_64": (116, 119, 117)}.get(platform.machine(), (159, 149, 147))
_KNOWN_MACHINES: Final = ("x86_64", "aarch64", "riscv64", "loongarch64")

#: Whether the calls of this module exist at all.
AVAILABLE: Final = sys.platform == "linux" and platform.machine() in _KNOWN_MACHINES

# With the interpreter's lock held: none of these calls waits for anything.
_LIBC: Final[Any] = ctypes.PyDLL(None, use_errno=True) if AVAILABLE else None


def _checked(result: int, path: str | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return result


class _CloneArguments(ctypes.Structure):
    """`struct clone_args` of the kernel, as far as version 2 of it goes."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls", "set_tid",
            "set_tid_size", "cgroup",
        )
    ]  # fmt: skip


_CLONE: Final = _CloneArguments()
_CLONE_REFERENCE: Final = ctypes.byref(_CLONE)
_CLONE_BYTES: Final = ctypes.sizeof(_CLONE)
_SYSCALL: Final[Any] = _LIBC.syscall if AVAILABLE else None
_BEFORE_FORK: Final = ctypes.pythonapi.PyOS_BeforeFork
_AFTER_FORK_CHILD: Final = ctypes.pythonapi.PyOS_AfterFork_Child
_AFTER_FORK_PARENT: Final = ctypes.pythonapi.PyOS_AfterFork_Parent
_SIGCHLD: Final = int(signal.SIGCHLD)


def fork_into(flags: int) -> int:
    """`os.fork`, with the child in new namespaces (CLONE_NEW…) or of our parent (CLONE_PARENT).

    For a process with one thread. A child of our parent ends with the signal that we end with, to its parent.
    """
    if not flags:
        return os.fork()
    _CLONE.flags, _CLONE.exit_signal = flags, 0 if flags & CLONE_PARENT else _SIGCHLD
    _BEFORE_FORK()
    pid: int = _SYSCALL(_CLONE3, _CLONE_REFERENCE, _CLONE_BYTES)
    if pid == 0:
        _AFTER_FORK_CHILD()
        return 0
    number = ctypes.get_errno()
    _AFTER_FORK_PARENT()
    if pid < 0:
        raise OSError(number, os.strerror(number))
    return pid


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount something; empty texts are left out."""
    words = [text.encode() if text else None for text in (source, target, kind)]
    _checked(_LIBC.mount(*words, ctypes.c_ulong(flags), options.encode() if options else None), target)


def unmount(target: str) -> None:
    """Take away what is mounted there, also while it is in use."""
    _checked(_LIBC.umount2(target.encode(), MNT_DETACH), target)


def quotactl(folder: int, command: int, identifier: int, data: ctypes.Structure) -> None:
    """Ask or change quotas of the file system that this descriptor is on (quotactl_fd(2), Linux 5.14)."""
    if not AVAILABLE:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    _checked(
        _LIBC.syscall(
            _QUOTACTL_FD, folder, ctypes.c_uint(command), ctypes.c_int(identifier), ctypes.byref(data)
        )
    )


# ---------------------------------------------------------------- of the calling thread alone


def forbid_new_privileges() -> None:
    """From now on no program that this thread starts gains rights by its file: no set-user-id, no capabilities."""
    _checked(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def own_working_directory() -> None:
    """Give this thread a working directory and a umask of its own."""
    _checked(_LIBC.unshare(CLONE_FS))


def become(uid: int, gid: int) -> None:
    """Take the rights of this account, in this thread only: glibc's own calls would change the whole process."""
    setgroups, setresgid, setresuid = _CREDENTIAL_CALLS
    _checked(_LIBC.syscall(setgroups, 0, None))
    _checked(_LIBC.syscall(setresgid, gid, gid, gid))
    _checked(_LIBC.syscall(setresuid, uid, uid, uid))


# ---------------------------------------------------------------- Landlock


class _RulesetAttributes(ctypes.Structure):
    """`struct landlock_ruleset_attr`; earlier versions know a part of it."""

    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    """`struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def landlock_abi() -> int:
    """The version of Landlock that the kernel speaks; 0 where it has none."""
    if not AVAILABLE:
        return 0
    return max(0, int(_LIBC.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


def landlock_ruleset(files: int, scoped: int, abi: int) -> int:
    """A ruleset that refuses these accesses to files, and what is `scoped` to the outside; a descriptor."""
    attributes = _RulesetAttributes(files, 0, scoped)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    return _checked(_LIBC.syscall(_LANDLOCK_CREATE, ctypes.byref(attributes), ctypes.c_size_t(size), 0))


#: The accesses that are allowed to the file or folder of a descriptor, and to all beneath it.
LandlockRule = tuple[_PathBeneath, Any]


def landlock_rule(path: int, allowed: int) -> LandlockRule:
    """Allow these accesses to the file or folder of this descriptor, and to all beneath it."""
    rule = _PathBeneath(allowed, path)
    return rule, ctypes.byref(rule)


def landlock_allow(ruleset: int, rules: Iterable[LandlockRule]) -> None:
    """Add these rules to a ruleset."""
    for _, reference in rules:
        if _SYSCALL(_LANDLOCK_ADD, ruleset, 1, reference, 0) < 0:
            _checked(-1)


def landlock_enforce(ruleset: int) -> None:
    """Put this thread, and all that it starts, under the ruleset for ever."""
    _checked(_LIBC.syscall(_LANDLOCK_RESTRICT, ruleset, 0))
