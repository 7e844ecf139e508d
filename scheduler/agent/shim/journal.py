"""An append-only file of JSON lines that survives the process that writes it, torn last line included."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from scheduler.agent.shim.wire import as_line

#: Rewritten with only what still matters once it has grown by this much.
COMPACT_BYTES: Final = 1024 * 1024


class Journal:
    """Not synced to the disk: a machine that loses power has lost the processes of its records as well."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")  # ends a line that a kill has torn
        self._grown = size

    def append(self, *records: dict[str, Any]) -> None:
        """Write these records; raises OSError where they cannot be written whole, and then writes none of them."""
        if not records:
            return
        data = _lines(records)
        written = os.write(self._fd, data)
        if written < len(data):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._grown += written

    def replay(self) -> Iterator[dict[str, Any]]:
        """Every whole record, in order; torn lines are skipped."""
        with self.path.open("rb") as lines:
            for line in lines:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict):
                    yield record

    def compact(self, live: Callable[[], Iterable[dict[str, Any]]], *, now: bool = False) -> None:
        """Rewrite the file with the `live` records only, when it has grown enough or `now`; on a full disk, later."""
        if self._grown < COMPACT_BYTES and not now:
            return
        fresh = self.path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        data = _lines(live())
        try:
            whole = os.write(fd, data) == len(data)
        except OSError:
            whole = False
        if not whole:
            os.close(fd)
            os.unlink(fresh)
            self._grown = 0
            return
        os.replace(fresh, self.path)
        os.close(self._fd)
        self._fd = fd
        self._grown = 0

    def close(self) -> None:
        os.close(self._fd)


def _lines(records: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(as_line(record) for record in records)
