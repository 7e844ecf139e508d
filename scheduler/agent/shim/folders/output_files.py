"""Output files of a task that its job names: what it prints is copied there while it runs, and whole once it has ended.

The files are opened with the rights of the task, so that no job writes where it may not. The log of the task stays as
it is, and each line goes to both. A second link keeps the log from being cut at its cap before it is copied.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Final

from scheduler.agent.protocol import TaskOrder
from scheduler.agent.secret_values.masks import Mask

if TYPE_CHECKING:
    import threading

#: How often what was printed is copied, in seconds.
COPY_SECONDS: Final = 0.2
_PIECE: Final = 1024 * 1024


class OutputRefused(ValueError):
    """An output file cannot be written; the text says which one and why."""


class OutputCopies:
    """The output of one task on its way into the files of its job."""

    def __init__(self, order: TaskOrder) -> None:
        self._folder = order["folder"]
        self._asked = order.get("output")
        self._mask = Mask(order["secrets"]["masked"]) if "secrets" in order else None
        #: Of each stream: what is read, what is written, the bytes that were copied, and the name of the file.
        self._copies: list[_Copy] = []
        self._over: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Open the files, in the folder and with the rights of the task; raises OutputRefused."""
        if self._asked is None:
            return
        opened: dict[str, int] = {}
        for stream in ("stdout", "stderr"):
            path = self._asked["stdout"] if stream == "stdout" else self._asked["stderr"]
            if not path:
                continue
            if path not in opened:
                opened[path] = _open(path, append=self._asked["append"])
            log = f"{self._folder}/{stream}"
            os.close(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
            with contextlib.suppress(OSError):
                os.link(log, log + ".whole", follow_symlinks=False)
            source = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            self._copies.append(_Copy(source, os.dup(opened[path]), path, self._mask))
        for fd in opened.values():
            os.close(fd)

    def begin(self) -> None:
        """Copy from now on, in a thread, if there is anything to copy."""
        if self._copies:
            import threading  # a guard whose tasks name no file does without

            self._over = threading.Event()
            self._thread = threading.Thread(target=self._follow, name="output", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Copy the rest: all processes of the task have ended. A file that could not be written is named in the log."""
        if self._thread is not None and self._over is not None:
            self._over.set()
            self._thread.join()
        for copy in self._copies:
            copy.run(to_the_end=True)
            copy.close()
        for copy in self._copies:
            if copy.trouble:
                self._say(f"muster: the output file {copy.path[:300]} is incomplete: {copy.trouble}\n")
        self._copies = []

    def _follow(self) -> None:
        assert self._over is not None
        while not self._over.wait(COPY_SECONDS):
            for copy in self._copies:
                copy.run(to_the_end=False)

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            log = os.open(f"{self._folder}/stderr", os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK)
            os.write(log, text.encode(errors="replace"))
            os.close(log)


class _Copy:
    """One stream of a log, and the file that it goes to."""

    def __init__(self, source: int, target: int, path: str, mask: Mask | None) -> None:
        self._source, self._target, self.path = source, target, path
        self._mask = mask
        self._done = 0
        self.trouble = ""

    def run(self, *, to_the_end: bool) -> None:
        """Copy what is new: whole lines, as another stream may go to the same file; at the end all of it."""
        while not self.trouble:
            try:
                if self._mask is None:
                    piece = os.pread(self._source, _PIECE, self._done)
                else:
                    piece = self._mask.read(self._source, self._done, _PIECE, ended=to_the_end)
                if not to_the_end and len(piece) < _PIECE:
                    piece = piece[: piece.rfind(b"\n") + 1]
                if not piece:
                    return
                view = memoryview(piece)
                while view:
                    view = view[os.write(self._target, view) :]
            except OSError as error:
                self.trouble = error.strerror or type(error).__name__
                return
            self._done += len(piece)

    def close(self) -> None:
        os.close(self._source)
        try:
            os.close(self._target)  # some file systems say only now that they are full
        except OSError as error:
            self.trouble = self.trouble or error.strerror or type(error).__name__


def _open(path: str, *, append: bool) -> int:
    """Open a file for adding to it, in the present folder and with the present rights; raises OutputRefused."""
    flags = (
        os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | (0 if append else os.O_TRUNC)
    )
    try:
        if not path.startswith("/") and (folder := os.path.dirname(path)):
            os.makedirs(folder, exist_ok=True)
        fd = os.open(path, flags, 0o644)
    except OSError as error:
        raise OutputRefused(
            f"the output file {path[:200]} cannot be written: {error.strerror}. Name one in the working folder, or one "
            "where jobs may write on this node"
        ) from error
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISCHR(mode):
        os.close(fd)
        raise OutputRefused(f"the output file {path[:200]} is not a regular file. Name another file")
    return fd
