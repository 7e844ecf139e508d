"""Where the server is: fixed by the command line, or read from a file that the portal of this node keeps."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from scheduler.agent.server.client import ServerUnreachable

Address = Callable[[], str]


def fixed(url: str) -> Address:
    """An address that does not change while the agent runs."""
    return lambda: url


class AddressFile:
    """The address in a file that the portal writes and keeps locked for as long as it lives.

    A portal that was killed leaves its file behind, and another program may have its port by then. So the address
    counts only while the file is locked: no node's key is sent to another program.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._seen_at = clock()

    def __call__(self) -> str:
        """The server's address; raises ServerUnreachable while no portal runs."""
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ServerUnreachable(f"{self.path} cannot be read: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            self._seen_at = self._clock()
            if url := os.pread(file, 4096, 0).decode(errors="replace").strip():
                return url
        finally:
            os.close(file)
        raise ServerUnreachable("the portal of this node does not run")

    def away_seconds(self) -> float:
        """How long ago the portal was last seen to run."""
        return self._clock() - self._seen_at
