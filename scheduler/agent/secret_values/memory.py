"""A folder in memory for the secrets of one state folder: on a tmpfs that its machine offers, and never on its disk.

Its name follows from the state folder, so that the next agent and the next shim find it, and remove what is left. What
is there may reach swap, as any memory may; nothing of it outlives the machine's next start.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

#: What statfs(2) says of file systems in memory.
_IN_MEMORY: Final = {0x01021994, 0x858458F6}
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108
#: Within the folder: values that are masked in output, and the folders with tasks' secrets as files.
MASKS: Final = "masks"
FILES: Final = "files"
#: A file within it that names the state folder, so that the next agent of any state folder removes what has none.
STATE: Final = "state"


def _bases() -> Iterator[str]:
    """Where such a folder may be, the best first: where no job looks comes before what all can write."""
    if os.geteuid() == 0:
        yield "/run"
    else:
        if own := os.environ.get("XDG_RUNTIME_DIR", ""):
            yield own
        yield f"/run/user/{os.geteuid()}"
    yield SHARED_MEMORY


def folders(state: Path) -> list[Path]:
    """All folders in memory that this state folder may have."""
    name = hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:16]
    return [Path(base) / f"muster-{os.geteuid()}-{name}" for base in dict.fromkeys(_bases())]


def claim(state: Path, *, jobs_see_shared_memory: bool, passable: bool) -> str:
    """Make the folder, for our account alone; "" where the machine has no place for it.

    Where jobs of several people see the machine's /dev/shm under our own account, that is no place. `passable` lets
    other accounts reach what is theirs in it.
    """
    for folder in folders(state):
        _remove_abandoned(folder.parent)
        if jobs_see_shared_memory and folder.parent == Path(SHARED_MEMORY):
            continue
        if not is_in_memory(folder.parent):
            continue
        with contextlib.suppress(OSError):
            _own(folder, 0o711 if passable else 0o700)
            _own(folder / MASKS, 0o700)
            _own(folder / FILES, 0o711 if passable else 0o700)
            (folder / STATE).write_bytes(os.fsencode(state.resolve()))
            return str(folder)
    return ""


def _remove_abandoned(base: Path) -> None:
    """Remove our folders whose state folder was deleted."""
    for folder in base.glob(f"muster-{os.geteuid()}-*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                state = (folder / STATE).read_bytes()
                if state and not os.path.lexists(state):
                    shutil.rmtree(folder, ignore_errors=True)


def is_in_memory(folder: Path) -> bool:
    """Whether what is written to this folder stays in memory; False where that cannot be found out."""
    buffer = ctypes.create_string_buffer(256)
    if _LIBC is None or _LIBC.statfs(os.fsencode(folder), buffer) != 0:
        return False
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF in _IN_MEMORY


def _own(folder: Path, mode: int) -> None:
    """Make the folder, or take our own of before; raises OSError for what somebody else has put there."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(opened).st_uid != os.geteuid():
            raise PermissionError(f"{folder} is somebody else's")
        os.fchmod(opened, mode)
    finally:
        os.close(opened)


# ---------------------------------------------------------------- secrets of tasks as files


def write_files(folder: str, files: dict[str, str], owner: tuple[int, int] | None) -> None:
    """Write secrets as files that the task's account alone can read, into an empty folder; raises OSError."""
    for name, value in files.items():
        file = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
        try:
            data = value.encode()
            while data:
                data = data[os.write(file, data) :]
            if owner is not None:
                os.fchown(file, *owner)
        finally:
            os.close(file)
    if owner is not None:
        os.chown(folder, *owner, follow_symlinks=False)


def remove_files(state: Path, name: str) -> None:
    """Remove the folder of the task whose folder has this name, wherever it is in memory."""
    for folder in folders(state):
        shutil.rmtree(folder / FILES / name, ignore_errors=True)


def remove_files_but(state: Path, known: Collection[str]) -> None:
    """Remove the folders of all tasks but those whose folders have these names."""
    for folder in folders(state):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder / FILES):
                if name not in known:
                    shutil.rmtree(folder / FILES / name, ignore_errors=True)
