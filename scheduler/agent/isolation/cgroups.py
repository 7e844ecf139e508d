"""Bounds on what a task uses, by the kernel's control groups: memory, processes, CPU, devices.

Each guard has a group of its own, which it never leaves, and with it all that its tasks start, whatever session they
move to. A group costs more to make and to enter than a short task does, so it lives as long as its guard, and a task's
amounts are written only where those of the task before it were others. Version 1 has a folder for each controller,
version 2 one for all.

Shares of CPU are a matter between tasks that run for long, but a guard in a CPU group of version 1 waits longer for
its turn, at each start and end. So there the guard stays outside, unless a task has a limit of CPU; the processes of a
task that has run for `SHARE_SECONDS` move into the CPU group then.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from scheduler.agent import processes
from scheduler.agent.isolation.means import Groups

#: Of the name of each agent's folder of groups.
PREFIX: Final = "muster-"
#: What a guard itself may take of its tasks' memory.
GUARD_MIB: Final = 8
#: The guard is in the group too, and for the moment of a start the thread in which it starts the task.
GUARD_PROCESSES: Final = 1
_LEAST_PROCESSES: Final = 3
_MIB: Final = 1024 * 1024
_PERIOD_US: Final = 100_000
#: The kernel's least quota.
_LEAST_QUOTA_US: Final = 1_000
#: Shares of a whole core in version 1, and the least that a group may have.
_CORE_SHARES: Final = 1024
_LEAST_SHARES: Final = 2
_CORE_WEIGHT: Final = 100
#: Controllers of version 1 whose groups every guard is in.
_KNOW_MEMBERS: Final = ("pids", "memory", "devices")
#: No limit.
_UNLIMITED_1, _UNLIMITED_2 = "-1", "max"
#: Devices that every job may use, in version 1's words: null, zero, full, random, urandom, tty, ptmx, pts.
_PLAIN_DEVICES: Final = (
    "c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm", "c 5:0 rwm", "c 5:2 rwm", "c 136:* rwm",
)  # fmt: skip
_EMPTY_SECONDS: Final = 0.2
#: How long a task without a limit of CPU runs before its processes move into a CPU group of version 1.
SHARE_SECONDS: Final = 1.0
#: Passes over the processes of a task that moves: the last one finds none outside, unless it forks without end.
_MOVE_PASSES: Final = 20
#: Of all groups of this process: guards keep theirs when its means change.
_NUMBERS: Final = itertools.count(1)


class GroupTree:
    """The shim's side: makes a group for each guard, and removes it."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._left: list[str] = []
        self._ours = f"{os.getpid()}-"
        for folder in set(groups.folders.values()):
            os.makedirs(folder, exist_ok=True)
        self._weigh_all()
        for folder in set(groups.folders.values()):
            with contextlib.suppress(OSError):
                names = [name for name in os.listdir(folder) if os.path.isdir(f"{folder}/{name}")]
                self._left += [n for n in names if n not in self._left and not n.startswith(self._ours)]
        self.clear()

    def _weigh_all(self) -> None:
        """Have all jobs together weigh as the machine's cores do: a group weighs as one process does, by itself."""
        if folder := self._groups.folders.get("cpu"):
            cores = os.cpu_count() or 1
            name, value = ("cpu.shares", cores * _CORE_SHARES)
            if self._groups.version == 2:
                name, value = "cpu.weight", min(10_000, cores * _CORE_WEIGHT)
            with contextlib.suppress(OSError), open(f"{folder}/{name}", "w") as file:
                file.write(str(value))

    def make(self) -> str:
        """A new group; returns its name. Raises OSError."""
        if not self._groups.version:
            return ""
        name = f"{self._ours}{next(_NUMBERS)}"
        for folder in dict.fromkeys(self._groups.folders.values()):
            os.makedirs(f"{folder}/{name}")
        return name

    def close(self) -> None:
        """Remove our folders as well, where no guard uses them any more."""
        self.clear()
        for folder in dict.fromkeys(self._groups.folders.values()):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def folders(self, name: str) -> dict[str, str]:
        """The group's folder in the hierarchy of each controller."""
        return (
            {controller: f"{folder}/{name}" for controller, folder in self._groups.folders.items()}
            if name
            else {}
        )

    def remove(self, name: str) -> None:
        """Kill what is in a group, and remove it, now or, while something cannot be killed, later."""
        if name:
            self._left.append(name)
            kill_all(self.folders(name).values(), seconds=_EMPTY_SECONDS)
            self.clear()

    def clear(self) -> None:
        """Remove the groups that have no process any more."""
        left = []
        for name in self._left:
            try:
                for folder in dict.fromkeys(self.folders(name).values()):
                    with contextlib.suppress(FileNotFoundError):
                        os.rmdir(folder)
            except OSError:
                left.append(name)
        self._left = left


def remove_abandoned(parent: str) -> None:
    """Remove the groups that killed shims have left beside ours: those that are empty, and whose shim is gone."""
    with contextlib.suppress(OSError):
        for name in os.listdir(parent):
            if name.startswith(PREFIX):
                _remove_abandoned_in(f"{parent}/{name}")


def _remove_abandoned_in(folder: str) -> None:
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            shim = name.partition("-")[0]
            if shim.isdecimal() and not os.path.exists(f"/proc/{shim}"):
                with contextlib.suppress(OSError):
                    os.rmdir(f"{folder}/{name}")
        os.rmdir(folder)


def kill_all(folders: Iterable[str], *, seconds: float) -> None:
    """Kill every process of these groups, again and again until there is none or the time is up."""
    deadline = time.monotonic() + seconds
    folders = list(folders)
    while pids := {pid for folder in folders for pid in _processes(folder)}:
        for folder in folders:
            with contextlib.suppress(
                OSError
            ):  # Linux 5.14 in version 2: at once, also what forks without end
                _put_into(f"{folder}/cgroup.kill", "1")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, 9)
        if time.monotonic() > deadline:
            return
        time.sleep(0.002)


def _processes(folder: str) -> list[int]:
    try:
        with open(f"{folder}/cgroup.procs", "rb") as file:
            return [pid for line in file if (pid := int(line))]
    except OSError:
        return []


def _put_into(path: str, value: str) -> None:
    """Write to a file of a group that is there; raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, value.encode())
    finally:
        os.close(file)


def _move(folder: str, pid: str) -> None:
    """Move a process into a group, "0" = the calling one; raises OSError."""
    with open(f"{folder}/cgroup.procs", "w") as file:
        file.write(pid)


class Group:
    """A guard's side of its group: `folders` by controller; without any, nothing is bounded here."""

    def __init__(self, version: int, folders: Mapping[str, str]) -> None:
        self._version = version
        self._folders = folders
        #: What was written, so that it is not written again.
        self._written: dict[tuple[str, str], str] = {}
        self._devices: tuple[str, ...] | None = None
        self._oom_kills = 0
        #: The group of another controller, which knows the processes of a task that are not in the CPU group yet.
        self._members = next((folders[name] for name in _KNOW_MEMBERS if name in folders), "")
        self._enters_late = version == 1 and "cpu" in folders and bool(self._members)
        #: Whether a task that starts now is outside the CPU group.
        self.shares_late = self._enters_late

    def enter(self) -> None:
        """Move the calling process into the group, but not yet into the CPU group of version 1; raises OSError."""
        for folder in dict.fromkeys(self._folders.values()):
            if not (self._enters_late and folder == self._folders["cpu"]):
                _move(folder, "0")

    def state(self) -> dict[str, Any]:
        """What a process in the group has written of it, for `resume` in its guard."""
        return {
            "written": [[*where, value] for where, value in self._written.items()],
            "devices": self._devices,
            "oom_kills": self._oom_kills,
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on with the group as another process has left it."""
        self._written = {(controller, name): value for controller, name, value in state["written"]}
        self._devices = None if state["devices"] is None else tuple(state["devices"])
        self._oom_kills = state["oom_kills"]

    def share_cpu(self) -> None:
        """Move the processes of the task that runs into the CPU group, where they are not in it from their start."""
        folder, guard = self._folders["cpu"], os.getpid()
        for _ in range(_MOVE_PASSES):
            outside = set(_processes(self._members)) - set(_processes(folder)) - {guard}
            if not outside:
                return
            for pid in outside:
                with contextlib.suppress(OSError):  # it has ended
                    _move(folder, str(pid))

    def bound(self, order: Mapping[str, Any], *, with_guard: bool = True) -> None:
        """Write the amounts of the task that comes next; raises OSError where the kernel refuses one.

        `with_guard`: the guard is in the group, and its memory and process count there. Without it, the least limit is
        what the process needs that becomes the task's program.
        """
        if not self._folders:
            return
        memory = order.get("memory_limit_mib")
        limit = (memory + GUARD_MIB if with_guard else max(memory, GUARD_MIB)) * _MIB if memory else None
        processes = order.get("process_limit")
        if "memory" in self._folders:
            self._bound_memory(limit)
        if "pids" in self._folders:
            guard = GUARD_PROCESSES if with_guard else 0
            most = max(processes + guard, _LEAST_PROCESSES) if processes else None
            self._write("pids", "pids.max", _UNLIMITED_2 if most is None else str(most))
        if "cpu" in self._folders:
            self._bound_cpu(order.get("cpu_millis"), order.get("cpu_limit_millis"))
            if self._enters_late:
                self._enter_cpu(bool(order.get("cpu_limit_millis")))
        if "devices" in self._folders:
            self._allow_devices(order.get("device_files", ()))

    def _enter_cpu(self, limited: bool) -> None:
        """Be in the CPU group for a task with a limit, and outside for others; raises OSError."""
        if limited == self.shares_late:
            folder = self._folders["cpu"]
            _move(folder if limited else os.path.dirname(os.path.dirname(folder)), "0")
            self.shares_late = not limited

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed a process for its memory since this was last asked: once after each task."""
        if "memory" not in self._folders:
            return False
        before, self._oom_kills = self._oom_kills, self._count_oom_kills()
        return self._oom_kills > before

    def _bound_memory(self, limit: int | None) -> None:
        if self._version == 2:
            self._write("memory", "memory.max", _UNLIMITED_2 if limit is None else str(limit))
            self._write("memory", "memory.swap.max", _UNLIMITED_2 if limit is None else "0", optional=True)
            return
        text = _UNLIMITED_1 if limit is None else str(limit)
        if self._written.get(("memory", "memory.limit_in_bytes"), _UNLIMITED_1) == text:
            return
        # The limit with swap may never be below the other one.
        self._write("memory", "memory.memsw.limit_in_bytes", _UNLIMITED_1, optional=True)
        self._write("memory", "memory.limit_in_bytes", text)
        self._write("memory", "memory.memsw.limit_in_bytes", text, optional=True)

    def _bound_cpu(self, request_millis: int | None, limit_millis: int | None) -> None:
        quota = max(_LEAST_QUOTA_US, limit_millis * _PERIOD_US // 1000) if limit_millis else None
        shares = max(
            _LEAST_SHARES, (1000 if request_millis is None else request_millis) * _CORE_SHARES // 1000
        )
        if self._version == 2:
            weight = 1 + (min(shares, 262_144) - 2) * 9999 // 262_142
            self._write("cpu", "cpu.weight", str(weight))
            self._write("cpu", "cpu.max", f"{_UNLIMITED_2 if quota is None else quota} {_PERIOD_US}")
            return
        self._write("cpu", "cpu.shares", str(shares))
        if self._written.get(("cpu", "cpu.cfs_quota_us")) is not None or quota is not None:
            self._write("cpu", "cpu.cfs_quota_us", _UNLIMITED_1 if quota is None else str(quota))

    def _allow_devices(self, files: Iterable[str]) -> None:
        """Take all devices away and allow the plain ones, and those of these files."""
        wanted = tuple(files)
        if wanted == self._devices:
            return
        self._put("devices", "devices.deny", "a")
        for line in (*_PLAIN_DEVICES, *map(_device_line, wanted)):
            if line:
                self._put("devices", "devices.allow", line)
        self._devices = wanted

    def _write(self, controller: str, name: str, value: str, *, optional: bool = False) -> None:
        if self._written.get((controller, name)) == value:
            return
        try:
            self._put(controller, name, value)
        except OSError:
            if not optional:
                raise
        self._written[controller, name] = value

    def _put(self, controller: str, name: str, value: str) -> None:
        _put_into(f"{self._folders[controller]}/{name}", value)

    def _count_oom_kills(self) -> int:
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        with contextlib.suppress(OSError):
            for line in processes.read_small(f"{self._folders['memory']}/{name}").split(b"\n"):
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
        return 0


def _device_line(path: str) -> str:
    """A device file in the words of `devices.allow`; empty for what is none."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        if found.st_rdev:
            return f"c {os.major(found.st_rdev)}:{os.minor(found.st_rdev)} rw"
    return ""
