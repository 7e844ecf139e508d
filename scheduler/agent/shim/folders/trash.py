"""Removes the folders that jobs leave behind, whatever they hold, and nothing outside of them.

The folder of an ended task is moved into the trash of the state folder, which costs the same however much the folder
holds, and a process beside the shim removes its contents. Every name is looked up in an open folder, no link is ever
followed, and only folders are made accessible: a file may be a hard link to one elsewhere. A folder that is not empty
is moved to the top of the trash first, so depth costs neither memory nor open files. A process that is killed in
between leaves everything in the trash, where the next one finds it.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scheduler.agent.shim.guard import detach_from_shim

#: From one attempt to the next, where something could not be removed.
RETRY_SECONDS: Final = 600.0

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_O_PATH: Final = getattr(os, "O_PATH", os.O_RDONLY)
_GET_FLAGS: Final = 0x80086601
_SET_FLAGS: Final = 0x40086602
_IMMUTABLE_OR_APPEND_ONLY: Final = 0x10 | 0x20
_MNT_DETACH: Final = 2


class Trash:
    """The trash of one state folder, and the process that empties it."""

    def __init__(self, state: Path) -> None:
        self.path = state / "trash"
        self.path.mkdir(mode=0o700, exist_ok=True)
        #: The pid of the process that empties the trash; 0 without one.
        self.emptier = 0
        self._due_at = 0.0
        self._full = True  # a shim before this one may have left something
        self._number = 0

    def take(self, folder: str) -> None:
        """Remove a task's folder: at once where the job left no files, as most jobs do, else by way of the trash."""
        try:
            _remove_own_files(folder)
            return
        except OSError:
            if not os.path.lexists(folder):
                return
        self._number += 1
        into = f"{self.path}/{time.time_ns():x}-{self._number}"
        parent, name = os.path.split(folder)
        try:
            within = os.open(parent, _FOLDER)
            try:
                if not _is_folder(within, name):
                    os.unlink(name, dir_fd=within)
                    return
                _make_accessible(within, name)
                os.rename(name, into, src_dir_fd=within)
            finally:
                os.close(within)
        except OSError as error:
            print(f"the folder {folder} cannot be removed: {error}", file=sys.stderr, flush=True)
            return
        self._full, self._due_at = True, 0.0

    def empty_beside(self) -> None:
        """Start the process that empties the trash, when there is something in it and no such process."""
        if self.emptier or not self._full or time.monotonic() < self._due_at:
            return
        with contextlib.suppress(OSError):
            if not next(os.scandir(self.path), None):
                self._full = False
                return
            self._full, self._due_at = True, time.monotonic() + RETRY_SECONDS
            self.emptier = os.fork()
            if self.emptier == 0:
                try:
                    detach_from_shim()
                    os.nice(10)
                    for left in empty(str(self.path)):
                        print(f"left in the trash: {left}", file=sys.stderr, flush=True)
                finally:
                    os._exit(0)

    def is_emptied_by(self, pid: int) -> bool:
        """Whether this ended child was the process that empties the trash."""
        if pid != self.emptier:
            return False
        self.emptier = 0
        return True


def empty(trash: str) -> list[str]:
    """Remove everything in the trash; returns what cannot be removed, and why.

    One process at a time does this; in a second one the function returns at once.
    """
    try:
        within = os.open(trash, _FOLDER)
    except OSError:
        return []
    try:
        fcntl.flock(within, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _Emptier(within).run()
    except BlockingIOError:
        return []
    finally:
        os.close(within)


class _Emptier:
    """One round after another over an open trash folder, until a round removes nothing."""

    def __init__(self, trash: int) -> None:
        self.trash = trash
        self.mount = _mount_of(trash)
        self.moved = 0
        self.left: dict[str, str] = {}

    def run(self) -> list[str]:
        while True:
            self.left.clear()
            gone = sum(self._remove_entry(name) for name in _names(self.trash))
            if not gone:
                return [f"{name!r}: {why}" for name, why in self.left.items()]

    def _remove_entry(self, name: str) -> bool:
        """Remove one entry of the trash; False when it, or something in it, stays."""
        moved = self.moved
        try:
            if self._try_remove(self.trash, name):
                return True
            folder = os.open(name, _FOLDER, dir_fd=self.trash)
        except FileNotFoundError:
            return False
        except OSError as error:
            self.left[name] = str(error)
            return False
        try:
            for inner in _names(folder):
                self._move_up(name, folder, inner)
        finally:
            os.close(folder)
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=self.trash)
            return True
        return self.moved > moved

    def _move_up(self, name: str, folder: int, inner: str) -> None:
        """Remove one entry of a folder in the trash, or make it one of the trash."""
        try:
            if not self._try_remove(folder, inner):
                self.moved += 1
                os.rename(inner, f"{time.time_ns():x}.{self.moved}", src_dir_fd=folder, dst_dir_fd=self.trash)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.left[name] = f"{inner!r}: {error}"

    def _try_remove(self, within: int, name: str) -> bool:
        """Whether the entry is removed now; False for a folder that is not empty, which we may open then."""
        for attempt in range(3):
            try:
                os.unlink(name, dir_fd=within)
                return True
            except OSError as error:
                if error.errno in (errno.EISDIR, errno.EPERM) and _is_folder(within, name):
                    break
                if attempt == 2 or not self._remove_obstacle(within, name, error):
                    raise
        for attempt in range(3):
            try:
                os.rmdir(name, dir_fd=within)
                return True
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    if self._is_mount(within, name):
                        self._unmount(within, name)
                        continue
                    _make_accessible(within, name)
                    return False
                if attempt == 2 or not self._remove_obstacle(within, name, error):
                    raise
        return False

    def _remove_obstacle(self, within: int, name: str, error: OSError) -> bool:
        """Take away a mount, a mode or an attribute that prevents removal; False when there is nothing to take away."""
        if error.errno == errno.EBUSY:
            return self._unmount(within, name)
        if error.errno in (errno.EPERM, errno.EACCES):
            # Either the entry or the folder that it is in may be immutable, or the folder closed.
            _make_mutable_fd(within)
            with contextlib.suppress(OSError):
                os.fchmod(within, 0o700)
            _make_mutable(within, name)
            return True
        return False

    def _is_mount(self, within: int, name: str) -> bool:
        entry = os.open(name, _O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
        try:
            return _mount_of(entry) != self.mount
        finally:
            os.close(entry)

    def _unmount(self, within: int, name: str) -> bool:
        """Unmount what is mounted on the entry, without removing what is in it; raises OSError when we may not."""
        entry = os.open(name, _O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
        try:
            if _mount_of(entry) == self.mount:
                return False
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.umount2(f"/proc/self/fd/{entry}".encode(), _MNT_DETACH) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"something is mounted there: {os.strerror(number)}")
            return True
        finally:
            os.close(entry)


def _names(folder: int) -> Iterator[str]:
    """The names in an open folder, read one by one: a million need no more memory than ten."""
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name


def _is_folder(within: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _make_accessible(within: int, name: str) -> None:
    """Set our rights to read, write and search this folder; raises OSError where it is no folder."""
    entry = os.open(name, _O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        mode = stat.S_IMODE(os.fstat(entry).st_mode)
        if mode & 0o700 != 0o700:
            # By the descriptor: the name could mean another entry by now.
            os.chmod(f"/proc/self/fd/{entry}" if sys.platform == "linux" else name, 0o700)
    except PermissionError:
        _make_mutable(within, name)
        os.chmod(f"/proc/self/fd/{entry}", 0o700)
    finally:
        os.close(entry)
    _make_mutable(within, name)


def _make_mutable(within: int, name: str) -> None:
    """Clear the attributes that prevent removal (`chattr +i`, `+a`); of a file only without other hard links."""
    try:
        entry = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=within)
    except OSError:
        return
    try:
        _make_mutable_fd(entry)
    finally:
        os.close(entry)


def _make_mutable_fd(entry: int) -> None:
    found = os.fstat(entry)
    if not stat.S_ISDIR(found.st_mode) and not (stat.S_ISREG(found.st_mode) and found.st_nlink == 1):
        return
    with contextlib.suppress(OSError):
        flags = array.array("l", [0])
        fcntl.ioctl(entry, _GET_FLAGS, flags, True)
        if flags[0] & _IMMUTABLE_OR_APPEND_ONLY:
            flags[0] &= ~_IMMUTABLE_OR_APPEND_ONLY
            fcntl.ioctl(entry, _SET_FLAGS, flags, True)


def _mount_of(entry: int) -> str:
    """The id of the mount that an open file is on, bind mounts included; empty where the system does not say."""
    try:
        with open(f"/proc/self/fdinfo/{entry}") as file:
            return next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")
    except OSError:
        return ""


def _remove_own_files(folder: str) -> None:
    """Remove a task's folder that holds only files which we made; raises OSError where the job left others."""
    opened = os.open(folder, _FOLDER)
    try:
        for name in ("stdout", "stderr", "script"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=opened)
        os.rmdir("work", dir_fd=opened)
    finally:
        os.close(opened)
    os.rmdir(folder)
