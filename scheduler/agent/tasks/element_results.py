"""What the elements of a task have come to, as their runner has written it down: from the file to a report."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from scheduler.agent.elements import RESULTS

#: The most elements in one message, over all tasks.
MOST_RESULTS: Final = 5000
_MOST_BYTES: Final = 1024 * 1024


def has_results(folder: str, at: int) -> bool:
    """Whether the file is longer than `at`."""
    try:
        return os.stat(f"{folder}/{RESULTS}", follow_symlinks=False).st_size > at
    except OSError:
        return False


def read_results(
    folder: str, at: int, *, now_ms: int, most: int = MOST_RESULTS
) -> tuple[list[list[Any]], int]:
    """At most `most` results from this offset of the file on, as reports have them, and the offset after them.

    Times become ages, as in every report; a line that is not whole yet is left for the next call.
    """
    try:
        file = os.open(f"{folder}/{RESULTS}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return [], at
    try:
        lines = os.pread(file, _MOST_BYTES, at).split(b"\n")[:-1][:most]
    except OSError:
        return [], at
    finally:
        os.close(file)
    results: list[list[Any]] = []
    for line in lines:
        at += len(line) + 1
        try:
            index, code, number, began_ms, ended_ms, *rest = json.loads(line)
            results.append([index, code, number, max(0, now_ms - began_ms), max(0, now_ms - ended_ms), *rest])
        except (ValueError, TypeError):
            continue  # the file is in the job's reach
    return results, at
