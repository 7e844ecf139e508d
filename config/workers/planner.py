"""The planner's process: one plans, and a second waits with everything loaded to go on where the first was killed.

Loading Django, Celery and the scheduler takes seconds on a busy machine, and nothing starts meanwhile. So
`manage.py up` runs two of these. Which of them plans is decided by a lock on a file, which the kernel takes from
a process the moment it ends, however it ends. The lock is for speed alone: that no two plan at once is held by
the lease in the database, here as everywhere.
"""

from __future__ import annotations

import fcntl
import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from celery.signals import worker_ready

from config.celery import app, tell_the_supervisor
from config.workers.preload import load_planning

WORKER = [
    *("worker", "-n", "scheduling@%h", "-Q", "scheduling", "-P", "solo"),
    *("--without-gossip", "--without-mingle", "-l", "INFO"),
]


def main(arguments: list[str]) -> int:
    parser = ArgumentParser(prog="python -m config.workers.planner")
    parser.add_argument(
        "--lock", type=Path, required=True, help="file whose lock only the one that plans holds"
    )
    given = parser.parse_args(arguments)
    load_planning()
    lock = wait_for_turn(given.lock)
    try:
        plan_before_the_worker_begins()
        app.worker_main(WORKER)
    finally:
        os.close(lock)
    return 0


def plan_before_the_worker_begins() -> None:
    """One cycle of every cluster at once: a worker takes a second to begin, and longer without its broker.

    Without a broker this plans by its clock until there is one.
    """
    from scheduler.services.planning import planner  # not before the apps are there

    planner.stay(seconds=0.0)


def wait_for_turn(file: Path) -> int:
    """Return once no other process plans; the descriptor that says that we do, with our number in the file."""
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        tell_the_supervisor()  # a spare is ready when it is loaded
        fcntl.flock(lock, fcntl.LOCK_EX)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


@worker_ready.connect
def plan_at_once(**_: Any) -> None:
    """What was asked of the planner before us went with it, and would be asked again only by the clock."""
    app.send_task("scheduler.tasks.plan_all", queue="scheduling", expires=10, ignore_result=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
