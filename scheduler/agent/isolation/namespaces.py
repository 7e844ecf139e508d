"""What a guard's tasks see of the machine, where the guard has namespaces of its own.

The guard is the first process of its PID namespace: when it ends, however that happens, the kernel ends all that is
left of its tasks. In its mount namespace `/proc` shows its own processes only. `/tmp`, `/var/tmp` and `/dev/shm` are
private but for what the site lists in them. The agent's state folder, what the site hides, and folders that are closed
to the tasks' account are empty but for the way to the folder of the task that runs.
(Slurm's job_container/tmpfs and systemd's PrivateTmp and
InaccessiblePaths do parts of it.)
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from typing import Final

from scheduler.agent import processes
from scheduler.agent.isolation import kernel
from scheduler.agent.isolation.landlock import is_beneath
from scheduler.agent.isolation.means import USER_NAMESPACES, Means
from scheduler.agent.secret_values.memory import write_files

#: Where programs put files that are of no use later.
TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108

_QUIET: Final = kernel.MS_NOSUID | kernel.MS_NODEV
#: What statvfs(3) says of a mount, and the same for mount(2).
_KEPT_FLAGS: Final = {
    os.ST_NOSUID: kernel.MS_NOSUID,
    os.ST_NODEV: kernel.MS_NODEV,
    os.ST_NOEXEC: kernel.MS_NOEXEC,
    os.ST_NOATIME: kernel.MS_NOATIME,
    os.ST_NODIRATIME: kernel.MS_NODIRATIME,
    os.ST_RELATIME: kernel.MS_RELATIME,
}
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC if hasattr(os, "O_PATH") else os.O_RDONLY


class View:
    """The mounts of one guard; created in the guard, right after it was forked into its namespaces.

    Whatever is mounted is made by `make`, in the guard or in a process that it has forked: their mounts are the same.
    """

    def __init__(self, state: str) -> None:
        #: The machine's own `/proc`, with the numbers that processes have outside.
        self._outer_proc = os.open("/proc", _FOLDER)
        self.pid = int(os.readlink("/proc/self"))
        self._tasks_path = state + "/tasks"
        self._tasks = os.open(self._tasks_path, _FOLDER)
        self._clean: dict[str, list[str]] = {}
        self._mounted: list[str] = []

    def make(self, means: Means, private_tmp: str) -> None:
        """Mount everything; raises OSError where the machine does not allow it: then nothing may run in it.

        Nothing is mounted in the namespace that `remember_account` was called in: that would be the machine's own.
        """
        if not OUTER_MOUNTS or mount_namespace() in OUTER_MOUNTS:
            raise OSError(errno.EPERM, "this process has no mount namespace of its own")
        if means.namespaces == USER_NAMESPACES:
            _map_own_account()
        kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
        self._cover(means, private_tmp)
        kernel.mount("proc", "/proc", "proc", _QUIET | kernel.MS_NOEXEC)
        if os.path.isdir(SHARED_MEMORY):
            kernel.mount("tmpfs", SHARED_MEMORY, "tmpfs", _QUIET, "mode=1777")
        # All temporary folders are the same private one.
        watched = [path for path in TEMPORARY if os.path.isdir(path)][:1]
        watched += [SHARED_MEMORY] if os.path.isdir(SHARED_MEMORY) else []
        self._clean = {path: os.listdir(path) for path in watched}

    def state(self) -> tuple[dict[str, list[str]], list[str]]:
        """What another process needs to go on with these mounts, for its `resume`."""
        return self._clean, self._mounted

    def resume(self, clean: dict[str, list[str]], mounted: list[str]) -> None:
        """Take over what a process that was forked from this one has mounted."""
        self._clean, self._mounted = clean, mounted

    def _cover(self, means: Means, private_tmp: str) -> None:
        """Put something empty over all that is not to be seen, with the ways to what is."""
        needed = [self._tasks_path, *means.files.programs]
        closed = closed_to_others(needed) if means.people.accounts else []
        ours = [path for path in (means.state, means.memory) if path]
        hidden = [path for path in (*ours, *means.files.hidden, *closed) if os.path.lexists(path)]
        hidden += [path for path in TEMPORARY if os.path.isdir(path)]
        tops = [path for path in dict.fromkeys(hidden) if not any(_is_within(path, top) for top in hidden)]
        files = means.files
        listed = {path for path in (*files.programs, *files.readable, *files.writable) if os.path.isdir(path)}
        within = sorted(path for path in listed if _is_within_any(path, tops))
        shown = [(path, os.open(path, _FOLDER)) for path in within]
        private = os.open(private_tmp, _FOLDER)
        for path in tops:
            if path in TEMPORARY:
                _bind(private, path)
            elif os.path.isdir(path):
                kernel.mount("tmpfs", path, "tmpfs", _QUIET, "mode=711")
            else:
                kernel.mount("/dev/null", path, "", kernel.MS_BIND)
        for path, opened in shown:
            _make_way(path)
            _bind(opened, path)
            if not _is_within_any(path, files.writable):
                _make_readonly(path)  # the rules on files let a job write all of its private folders
            os.close(opened)
        self._make_place_of_tasks()
        os.close(private)

    def _make_place_of_tasks(self) -> None:
        """In memory where it is in the private folder, which is on a disk: each task has its own made and removed."""
        _make_way(self._tasks_path)
        if _is_within_any(self._tasks_path, TEMPORARY):
            kernel.mount("tmpfs", self._tasks_path, "tmpfs", _QUIET, "mode=711,size=1m")

    # ------------------------------------------------------------ one task

    def show(self, folder: str) -> None:
        """Have the task's folder at its place, and no other task's."""
        if os.path.dirname(folder) == self._tasks_path:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o711)
            source = f"/proc/self/fd/{self._tasks}/{os.path.basename(folder)}"
            kernel.mount(source, folder, "", kernel.MS_BIND)
            self._mounted.append(folder)

    def put_secrets(self, folder: str, files: dict[str, str], owner: tuple[int, int] | None) -> None:
        """Write secrets as files into memory that is mounted there, in this view alone; raises OSError.

        The kernel frees it with the guard, however that ends.
        """
        os.mkdir(folder, 0o700)
        kernel.mount("tmpfs", folder, "tmpfs", _QUIET | kernel.MS_NOEXEC, "mode=700,size=2m,nr_inodes=64")
        self._mounted.append(folder)
        write_files(folder, files, owner)
        _make_readonly(folder)

    def clear(self) -> bool:
        """After a task: take its mounts away; False when something is left that the next task would see."""
        while self._mounted:
            path = self._mounted.pop()
            kernel.unmount(path)
            os.rmdir(path)
        return all(os.listdir(path) == names for path, names in self._clean.items())

    def outer_pid(self, pid: int) -> int:
        """The number that a process of this namespace, which we may wait for, has outside."""
        process = os.pidfd_open(pid)
        try:
            found = processes.read_small(f"/proc/self/fd/{self._outer_proc}/{self.pid}/fdinfo/{process}")
            for line in found.split(b"\n"):
                if line.startswith(b"Pid:"):
                    return int(line.split()[1])
        finally:
            os.close(process)
        raise ProcessLookupError(pid)


def _map_own_account() -> None:
    """In a new user namespace: have our account in it, under its own number, and no other."""
    # The kernel's own way: the numbers that have no name in the new namespace are shown as an overflow.
    uid, gid = _outer_ids()
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


_OUTER_IDS: list[int] = []
OUTER_MOUNTS: list[int] = []


def mount_namespace() -> int:
    """The number of the mount namespace that the calling process is in."""
    return os.stat("/proc/self/ns/mnt").st_ino


def remember_account() -> None:
    """Before the fork: in the new namespace our own account has no number until it is mapped.

    The mount namespace too, which no guard may change.
    """
    _OUTER_IDS[:] = [os.geteuid(), os.getegid()]
    with contextlib.suppress(OSError):
        OUTER_MOUNTS[:] = [mount_namespace()]


def _outer_ids() -> tuple[int, int]:
    return _OUTER_IDS[0], _OUTER_IDS[1]


def closed_to_others(paths: Iterable[str]) -> list[str]:
    """The folders nearest to the root through which other accounts cannot reach these paths."""
    found = []
    for path in paths:
        parts = path.strip("/").split("/")
        for end in range(1, len(parts) + 1):
            folder = "/" + "/".join(parts[:end])
            if os.path.isdir(folder) and not os.stat(folder).st_mode & 0o001:
                found.append(folder)
                break
    return found


def _is_within(path: str, folder: str) -> bool:
    return path != folder and is_beneath(path, folder)


def _is_within_any(path: str, folders: Iterable[str]) -> bool:
    return any(is_beneath(path, folder) for folder in folders)


def _make_way(path: str) -> None:
    """Make this folder and those above it where there are none, open to pass through."""
    parts = path.strip("/").split("/")
    for end in range(1, len(parts) + 1):
        folder = "/" + "/".join(parts[:end])
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            os.chmod(folder, 0o711)  # noqa: S103  in a view that only this guard has


def _make_readonly(path: str) -> None:
    """Have nothing written through this mount; what else holds for it has to be said again (mount(2), MS_REMOUNT)."""
    now = os.statvfs(path).f_flag
    kept = sum(flag for said, flag in _KEPT_FLAGS.items() if now & said)
    kernel.mount("", path, "", kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kept)


def _bind(opened: int, path: str) -> None:
    """Have the folder of this descriptor also at this path."""
    kernel.mount(f"/proc/self/fd/{opened}", path, "", kernel.MS_BIND | kernel.MS_REC)
