"""The file that tells a running task that its job has become smaller: how many tasks are left, and which."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Final

from scheduler.agent.console import say
from scheduler.agent.protocol import WORLD
from scheduler.agent.tasks.local_task import LocalTask

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE: Final = 0o600


def write_world(entry: LocalTask, size: int, ranks: str) -> bool:
    """Put the file in the place of an earlier one, whole or not at all; answers whether it is there.

    The folder is the job's: no link in it is followed, and the file belongs to the owner of the folder.
    """
    text = json.dumps({"size": size, "ranks": ranks, "attempt": entry.epoch}) + "\n"
    try:
        folder = os.open(entry.folder, _FOLDER)
    except OSError:
        return False  # the task has not begun, or is gone
    try:
        temporary = f".{WORLD}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        file = os.open(temporary, _NEW, _MODE, dir_fd=folder)
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            opened.write(text)
            owner = os.fstat(folder)
            if os.geteuid() == 0:
                os.fchown(file, owner.st_uid, owner.st_gid)
        os.rename(temporary, WORLD, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        say(f"the world file of task {entry.key} cannot be written: {error}")
        return False
    finally:
        os.close(folder)
    return True
