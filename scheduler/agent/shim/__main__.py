"""`python -S -m scheduler.agent.shim STATE [PID START_TICKS]`: the shim of a state folder, if there is none yet.

With PID and START_TICKS, its tasks end when that process has ended and no agent has come back.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from scheduler.agent.shim.deadlines import Owner
from scheduler.agent.shim.shim import Shim

#: How long a shim that was just killed may hold its lock: until its youngest guard has closed the file.
LOCK_SECONDS: Final = 2.0


def main(arguments: list[str]) -> int:
    state = Path(arguments[0])
    lock = os.open(state / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _lock(lock):
        return 0  # there is one already
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    owner = Owner(int(arguments[1]), int(arguments[2])) if len(arguments) > 2 else None
    Shim(state, owner=owner).run()
    return 0


def _lock(file: int) -> bool:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
