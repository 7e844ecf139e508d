"""The checks behind probes: each says whether all is well, and in a few words what was found.

`http` and `file` run in a process with the task's rights; `output` is of files that belong to the agent.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from scheduler.agent.protocol import PROBE_TEXT_BYTES
from scheduler.agent.times import in_words

#: No guard has more files open than this.
_MOST_FILES: Final = 1024
#: Of an answer, as far as its first line can reach.
_ANSWER_BYTES: Final = 4096


class Found(NamedTuple):
    """The result of a check."""

    ok: bool
    text: str


def output(folder: str, limit: float, since: float) -> Found:
    """Whether the task printed something within `limit` seconds; it began, or was resumed, at `since`."""
    latest = max([since, *(_written(f"{folder}/{name}") for name in ("stdout", "stderr"))])
    age = max(0.0, time.time() - latest)
    return Found(age <= limit, f"no output for {in_words(age)}")


def _written(path: str) -> float:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def heartbeat(path: str, limit: float, since: float) -> Found:
    """Whether this file was written within `limit` seconds; one that is missing was due since `since`."""
    try:
        written = os.stat(path).st_mtime
    except OSError as error:
        age = max(0.0, time.time() - since)
        return Found(age <= limit, f"{path} cannot be read: {error.strerror}")
    age = max(0.0, time.time() - max(written, since))
    return Found(age <= limit, f"{path} was written {in_words(max(0.0, time.time() - written))} ago")


def http(port: int, path: str, timeout: float) -> Found:
    """Whether GET of this path on the node's loopback address answers with a status from 200 to 399."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
            request = f"GET {path} HTTP/1.0\r\nHost: localhost:{port}\r\nUser-Agent: muster-probe\r\n\r\n"
            connection.sendall(request.encode())
            answer = b""
            while b"\n" not in answer and len(answer) < _ANSWER_BYTES:
                if not (part := connection.recv(_ANSWER_BYTES)):
                    break
                answer += part
    except OSError as error:
        return Found(False, f"port {port} does not answer: {error.strerror or error}")
    words = answer.split(b"\n", 1)[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return Found(False, f"port {port} does not speak HTTP")
    status = int(words[1])
    return Found(200 <= status < 400, f"HTTP status {status}")


def in_a_process(check: Callable[[], Found]) -> tuple[int, int]:
    """Run a check in a process of its own; (its pid, the descriptor that `result_of` reads when it has ended)."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    pid = os.fork()
    if pid == 0:
        _report(check, write_end)
    os.close(write_end)
    return pid, read_end


def _report(check: Callable[[], Found], write_end: int) -> NoReturn:
    try:
        os.closerange(3, write_end)
        os.closerange(write_end + 1, _MOST_FILES)
        found = check()
        os.write(write_end, found.text.encode(errors="replace")[:PROBE_TEXT_BYTES])
        os._exit(0 if found.ok else 1)
    except BaseException:
        os._exit(2)


def result_of(code: int, read_end: int | None) -> Found:
    """What a process has found that ended with this code; one of a command has nothing to read."""
    if read_end is None:
        words = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
        return Found(code == 0, words)
    try:
        text = os.read(read_end, PROBE_TEXT_BYTES).decode(errors="replace")
    except BlockingIOError:
        text = "the check could not run"
    return Found(code == 0, text)


def described(probe: Mapping[str, Any]) -> str:
    """What people call this probe."""
    name: str = probe.get("name") or probe["kind"]
    return name
