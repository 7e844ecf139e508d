"""Files and folders written from pieces that know no files, each below a new folder of the agent's."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from scheduler.agent.checkpoints.upload import Uploads
from scheduler.agent.results.names import BadPath, decode_path
from scheduler.agent.server.client import ServerClient

READ_PATH: Final = "/api/v1/agent/piece-read"
#: How long the server, or its storage, may be away before the task is given up here.
_PATIENCE_SECONDS: Final = 300.0
T = TypeVar("T")


class BadFetch(Exception):
    """What came is not what was stored, or cannot be written here; the text is for people."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """Calls for one task: `about` names it, and `is_stopped` says that it is not to be started any more."""

    client: ServerClient
    calls: Uploads
    about: dict[str, Any]
    stopping: threading.Event
    is_stopped: Callable[[], bool]

    def ask(self, what: Callable[[], T]) -> T:
        """The server's answer; raises Refused, Stopped and, after five minutes without one, ServerUnreachable."""
        return self.calls.call(what, seconds=_PATIENCE_SECONDS)

    def pieces(self, bodies: Iterable[dict[str, Any]]) -> Iterator[bytes]:
        """The pieces that these messages ask for, each asked for when it is needed; raises BadFetch as well."""
        for body in bodies:
            if self.is_stopped():
                raise BadFetch("the task was stopped while it was fetched")
            said = {**body, **self.about}
            yield self.ask(lambda: self.client.get_raw(READ_PATH, said))  # noqa: B023  called at once


class PieceReader:
    """The bytes of one file after the other."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._left = pieces, b""

    def take(self, path: str, size: int) -> Iterator[bytes]:
        """The next `size` bytes, of the file at this path; raises BadFetch where there are fewer."""
        while size:
            self._left = self._left or next(self._pieces, b"")
            if not self._left:
                raise BadFetch(f"{path} is cut short")
            part, self._left = self._left[:size], self._left[size:]
            size -= len(part)
            yield part


@contextlib.contextmanager
def new_folder(into: Path) -> Iterator[None]:
    """Make the folder anew for what is written below it; raises BadFetch where something cannot be written."""
    shutil.rmtree(into, ignore_errors=True)
    try:
        into.mkdir(parents=True, mode=0o700)
        yield
    except (OSError, BadPath) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadFetch(f"it cannot be written on the node: {why}") from error


def path_below(into: Path, text: str) -> bytes:
    """A path below the folder; raises BadPath for one that leads elsewhere."""
    return os.path.join(os.fsencode(into), *decode_path(text))
