"""Work that loads more than the supervisor should keep, done in a child that ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from config.up.state import StateError

_FAILED = 2


def aside(work: Callable[[], bool]) -> bool:
    """What `work` says, from a child that did it; a StateError of it is raised here.

    A process that has psycopg anyway does it itself.
    """
    if "psycopg" in sys.modules:
        return work()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _end_with(work, write)
    os.close(write)
    with os.fdopen(read) as problem:
        text = problem.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == _FAILED:
        raise StateError(text)
    return code == 0


def _end_with(work: Callable[[], bool], write: int) -> None:
    code = 1
    try:
        code = 0 if work() else 1
    except StateError as problem:
        os.write(write, str(problem).encode()[:4000])
        code = _FAILED
    finally:
        os._exit(code)
