"""Limits on the disk by the kernel: project quotas of ext4 and XFS, mounted with `prjquota`.

Each task with a limit has a project of its own: a number that its folder, its output and its private `/tmp` carry,
and that all files get which are made in them. The kernel counts the blocks and files of a project, and refuses more
than its limit at once (EDQUOT or ENOSPC). The number is noted in an attribute of the task's folder that only root can
write: the number on the folder itself can be changed by the owner of the folder (`chattr -p`), and must not decide
whose limit we change. What is moved so to another project escapes its limit here, and is found by the watch of the
disk, which goes on measuring.

Numbers of `WINDOW` for each state folder are given out, those that no file carries any more: the kernel says which.
Only root may change limits, and ext4 binds root by none: so this is for agents that run each person's jobs under an
account of their own. Linux 5.14 or newer (quotactl_fd).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import struct
from typing import Final, NamedTuple

from scheduler.agent.isolation import kernel

#: The numbers of all agents: above those that sites give to people's folders (`/etc/projid`), below 2^31.
FIRST: Final = 1 << 30
WINDOW: Final = 1 << 16
_WINDOWS: Final = 1 << 13
#: Attempts to find a number that no file carries.
_MOST_TRIES: Final = 64
#: A limit of disk is one of files too: as many as have a block each, and ours.
_FILES_PER_MIB: Final = 256
_OWN_FILES: Final = 64
#: A task that could write so much less than it may, or an eighth of a small limit, has filled its disk: large writes
#: and copies fail before the last block is taken.
_NEARLY_BYTES: Final = 1024 * 1024
_MIB: Final = 1024 * 1024

_NOTE: Final = "trusted.muster.project"
_GET_ATTRIBUTES: Final = 0x801C581F
_SET_ATTRIBUTES: Final = 0x401C5820
#: `struct fsxattr`: flags, extent size, extents, project, size of copied extents.
_ATTRIBUTES: Final = struct.Struct("=IIIII8x")
_INHERIT: Final = 0x200
_PROJECT_QUOTA: Final = 2
_GET_QUOTA: Final = (0x800007 << 8) | _PROJECT_QUOTA
_SET_QUOTA: Final = (0x800008 << 8) | _PROJECT_QUOTA
#: Of `struct if_dqblk`: the limits of blocks and files are to be written.
_LIMITS: Final = 1 | 4
_BLOCK_BYTES: Final = 1024
_ENTRY: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER: Final = _ENTRY | os.O_DIRECTORY


class _Quota(ctypes.Structure):
    """`struct if_dqblk`: limits in blocks of 1 KiB, use in bytes."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                "blocks", "soft_blocks", "bytes", "files", "soft_files", "used_files", "blocks_until", "files_until",
            )
        ),
        ("valid", ctypes.c_uint32),
    ]  # fmt: skip


class Use(NamedTuple):
    """What a project has of the disk; limits 0 = none."""

    used_bytes: int
    used_files: int
    limit_bytes: int
    limit_files: int

    @property
    def is_full(self) -> bool:
        if not self.limit_bytes:
            return False
        nearly = min(_NEARLY_BYTES, self.limit_bytes // 8)
        return self.used_bytes >= self.limit_bytes - nearly or self.used_files >= self.limit_files


def use_of(project: int, within: str) -> Use:
    """The use and limits of a project on the file system of this folder; raises OSError where it has no quotas."""
    quota = _Quota()
    try:
        _call(_GET_QUOTA, project, within, quota)
    except FileNotFoundError:  # XFS, of a number that was never used
        return Use(0, 0, 0, 0)
    return Use(quota.bytes, quota.used_files, quota.blocks * _BLOCK_BYTES, quota.files)


def set_limit(project: int, within: str, mib: int) -> None:
    """Set the limit of a project, in MiB and by that in files, on the file system of this folder; 0 = none.

    Raises OSError.
    """
    quota = _Quota(blocks=mib * _MIB // _BLOCK_BYTES, valid=_LIMITS)
    quota.files = mib * _FILES_PER_MIB + _OWN_FILES if mib else 0
    _call(_SET_QUOTA, project, within, quota)


def _call(command: int, project: int, within: str, quota: _Quota) -> None:
    folder = os.open(within, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        kernel.quotactl(folder, command, project, quota)
    finally:
        os.close(folder)


# ---------------------------------------------------------------- folders of tasks


def limit_folder(folder: str, mib: int, *, state: str, earlier: int = 0, trees: tuple[str, ...] = ()) -> int:
    """Limit what is in a task's folder, and return its project; raises OSError.

    The folder, what is in it and all of the folders `trees` in it are ours and no process of a job works there.
    `earlier` is the project that the folder of the job's attempt before this one has been noted with, 0 = none: what
    the job has left there is not looked through, and goes on with that.
    """
    project = earlier or _free_project(state)
    note(folder, project)
    set_limit(project, folder, mib)
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    opened = os.open(folder, _FOLDER)
    try:
        for name in names:
            _mark(name, project, opened, whole=name in trees)
        _mark_opened(opened, project)
    finally:
        os.close(opened)
    return project


def note(folder: str, project: int) -> None:
    """Write down the project of what is in a task's folder, where only root can change it; raises OSError."""
    os.setxattr(folder, _NOTE, str(project).encode())


def project_of(folder: str) -> int:
    """The project that was noted on this folder of a task; 0 = the kernel has never limited what is in it."""
    try:
        return int(os.getxattr(folder, _NOTE))
    except (OSError, ValueError, AttributeError):
        return 0


def end_limit(folder: str) -> int:
    """Take the limit away, as the task has ended, and return its project; what it has left stays counted."""
    project = project_of(folder)
    if project:
        with contextlib.suppress(OSError):
            set_limit(project, folder, 0)
    return project


def take_project(folder: str) -> int:
    """End the limit of a folder whose contents move to another one, and return the project, which moves along."""
    project = end_limit(folder)
    if project:
        with contextlib.suppress(OSError):
            os.removexattr(folder, _NOTE)  # else the end of this folder would end the limit of the other one
    return project


def unmark(folder: str) -> None:
    """Have a folder that its job has left as it was carry no project any more; raises OSError."""
    opened = os.open(folder, _FOLDER)
    try:
        _mark_opened(opened, 0)
        for name in os.listdir(opened):
            _mark(name, 0, opened)
    finally:
        os.close(opened)
    os.removexattr(folder, _NOTE)


def charge(folder: str, project: int) -> None:
    """Have what is made in this empty folder from now on count for the project; 0 = for none. Raises OSError."""
    opened = os.open(folder, _FOLDER)
    try:
        _mark_opened(opened, project)
    finally:
        os.close(opened)


def _free_project(state: str) -> int:
    """A number of this state folder's window that no file carries and that has no limit; raises OSError."""
    digest = hashlib.sha256(state.encode()).digest()
    first = FIRST + int.from_bytes(digest[:4], "big") % _WINDOWS * WINDOW
    for _ in range(_MOST_TRIES):
        # Not the next one: a job that knows its own must not know whose is beside it.
        project = first + secrets.randbelow(WINDOW)
        use = use_of(project, state)
        if not (use.used_bytes or use.used_files or use.limit_bytes):
            return project
    raise OSError(errno.EBUSY, "all project numbers that were tried for its disk limit are in use")


def _mark(name: str, project: int, within: int, *, whole: bool = False) -> None:
    """Have an entry carry a project, and all beneath it where that is to be looked through."""
    found = os.stat(name, dir_fd=within, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) and not (stat.S_ISREG(found.st_mode) and found.st_nlink == 1):
        return  # a link, or a file that is somewhere else too
    opened = os.open(name, _ENTRY, dir_fd=within)
    try:
        _mark_opened(opened, project)
        if whole and stat.S_ISDIR(found.st_mode):
            for inner in os.listdir(opened):
                _mark(inner, project, opened, whole=True)
    finally:
        os.close(opened)


def _mark_opened(entry: int, project: int) -> None:
    found = fcntl.ioctl(entry, _GET_ATTRIBUTES, bytes(_ATTRIBUTES.size))
    flags, size, extents, carried, copied = _ATTRIBUTES.unpack(found)
    wanted = flags & ~_INHERIT
    if project and stat.S_ISDIR(os.fstat(entry).st_mode):
        wanted |= _INHERIT
    if (wanted, project) != (flags, carried):
        fcntl.ioctl(entry, _SET_ATTRIBUTES, _ATTRIBUTES.pack(wanted, size, extents, project, copied))


# ---------------------------------------------------------------- is it there?


def prepare_trial(folder: str, state: str) -> int:
    """Limit this new folder to 1 MiB, and return a file in it that is open for writing; raises OSError."""
    limit_folder(folder, 1, state=state)
    return os.open(f"{folder}/file", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def try_to_exceed(file: int) -> None:
    """Under an account that is not root: raises OSError where the kernel lets it write beyond the limit."""
    block = bytes(64 * 1024)
    try:
        for _ in range(2 * _MIB // len(block)):
            os.write(file, block)
    except OSError as error:
        if error.errno in (errno.EDQUOT, errno.ENOSPC):
            return
        raise
    raise OSError(
        errno.ENOTSUP, "the file system counts projects and enforces no limit (mount it with prjquota)"
    )
