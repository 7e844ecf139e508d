"""A guard's status file: where the guard of a task writes down what it started and how the task ended.

The file holds a few lines of JSON. Its space is reserved before the task starts, so that a full disk loses no exit
code. The guard holds the file's lock for as long as it has the task: a process number, which another process may have
by now, need not be trusted, and a file that is unlocked and empty is of a task that was never started. The file of a
forgotten task is kept for a later one, as its folder is (`folders.task_folders`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scheduler.agent.protocol import ProbeResult
from scheduler.agent.shim.wire import as_line

#: Space that is reserved for a status file.
STATUS_BYTES: Final = 4096
#: Where in it the last results of probes are: each time written anew.
PROBES_AT: Final = 2560
#: Status files that are kept for later tasks.
MOST_SPARE: Final = 256


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """What a guard has written; `alive` says whether the guard still runs."""

    alive: bool
    lines: tuple[dict[str, Any], ...] = ()

    def line(self, name: str) -> dict[str, Any] | None:
        """The line that has this field: `guard`, `error`, `pid`, `ended`, `unhealthy` or `probes`.

        None while it is not written.
        """
        return next((line for line in self.lines if name in line), None)

    @property
    def began(self) -> bool:
        """Whether the task may have started: its guard writes a line before it starts anything."""
        return self.line("guard") is not None

    @property
    def is_final(self) -> bool:
        """Whether the guard has written how the task ended, or why it could not be started."""
        return self.line("ended") is not None or self.line("error") is not None


class StatusFiles:
    """The status files of one state folder, each named by the key of its task."""

    def __init__(self, state: Path) -> None:
        self._folder, self._spare_folder = state / "guards", state / "guards-spare"
        for folder in (self._folder, self._spare_folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        self._spare = os.listdir(self._spare_folder)
        self._number = max((int(name) for name in self._spare if name.isdecimal()), default=0)

    def path(self, key: str) -> str:
        return f"{self._folder}/{key}"

    def read(self, key: str) -> GuardStatus:
        return read_status(self.path(key), key)

    def create(self, key: str) -> int:
        """An empty file for this task, locked and with its space reserved; returns its descriptor. Raises OSError.

        A file that has the name is replaced: another journal left it.
        """
        while self._spare:
            path = f"{self._spare_folder}/{self._spare.pop()}"
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.pwrite(file, bytes(STATUS_BYTES), 0)
                    os.rename(path, self.path(key))
                except BaseException:
                    os.close(file)
                    raise
                return file
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(key))
        return _create_status_file(self.path(key))

    def drop(self, key: str, *, reusable: bool) -> None:
        """Remove the file of a task that is forgotten, or keep it for a later one."""
        with contextlib.suppress(FileNotFoundError):
            if not reusable or len(self._spare) >= MOST_SPARE:
                os.unlink(self.path(key))
                return
            self._number += 1
            os.rename(self.path(key), f"{self._spare_folder}/{self._number}")
            self._spare.append(str(self._number))

    def drop_unknown(self, known: Container[str]) -> None:
        """Remove the files of forgotten tasks, but not of a guard that is alive."""
        for name in os.listdir(self._folder):
            if name not in known and not self.read(name).alive:
                os.unlink(self.path(name))


def read_status(path: str, key: str) -> GuardStatus:
    """What the guard of this task wrote, and whether it lives; when it does not, nothing will be added to the lines."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return GuardStatus(alive=False)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return GuardStatus(alive=True, lines=_lines(file, key))
        return GuardStatus(alive=False, lines=_lines(file, key))  # read under the lock: the guard has ended
    finally:
        os.close(file)


def _lines(file: int, key: str) -> tuple[dict[str, Any], ...]:
    """The lines of this task's guard: after a loss of power, the file may still have those of a task before it."""
    found: list[dict[str, Any]] = []
    data = os.pread(file, STATUS_BYTES, 0)
    for line in data[:PROBES_AT].rstrip(b"\0").split(b"\n"):
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    if found and found[0].get("key", key) != key:
        return ()
    if results := data[PROBES_AT:].strip(b"\0"):
        with contextlib.suppress(ValueError):
            line_of_probes = json.loads(results)
            if line_of_probes["key"] == key:
                found.append(line_of_probes)
    return tuple(found)


def _create_status_file(path: str) -> int:
    """Make the file, locked and with its space reserved; returns its descriptor. Raises OSError where it exists."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, STATUS_BYTES)
    except BaseException:
        os.close(file)
        raise
    return file


class StatusWriter:
    """Writes a guard's lines into the reserved space, and announces them on the shim's pipe by the task's key."""

    def __init__(self, file: int, announce_fd: int, key: str) -> None:
        self._file, self._announce_fd, self.key = file, announce_fd, key
        #: Where the next line goes.
        self.offset = 0

    def write(self, line: dict[str, Any], *, announce: bool = True) -> None:
        text = as_line(line)
        self.offset += os.pwrite(self._file, text, self.offset)
        if announce:
            self.announce()

    def write_probes(self, results: list[ProbeResult]) -> None:
        """Write the last results of all probes in the place of those before, and announce them."""
        line = {"key": self.key, "probes": results}
        text = json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode()
        room = STATUS_BYTES - PROBES_AT
        if len(text) <= room:
            os.pwrite(self._file, text.ljust(room, b"\0"), PROBES_AT)
            self.announce()

    def announce(self) -> None:
        """Say that there are new lines; lost where no shim reads it or the pipe is full: the shim polls as well."""
        with contextlib.suppress(OSError):
            os.write(self._announce_fd, self.key.encode() + b"\n")
