"""A peer that runs the program `true` N times for each line of standard input that says N; prints the seconds.

    python peer_programs.py hyperqueue|dask FOLDER NODES CPUS

It runs in an environment that has the peer and nothing of Muster (see `versus_peers.py`), and prints `ready` first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: As often as the benchmark asks Muster's database.
ASK_SECONDS = 0.05
Run = Callable[[int], None]


@contextmanager
def hyperqueue(folder: str, nodes: int, cpus: int) -> Iterator[Run]:
    """Server and workers of the wheel, each task with the two output files that it writes by default."""
    from hyperqueue import Job, LocalCluster
    from hyperqueue.cluster import WorkerConfig

    with LocalCluster(os.path.join(folder, "server")) as cluster:
        for _ in range(nodes):
            cluster.start_worker(WorkerConfig(cores=cpus))
        client = cluster.client()

        def run(count: int) -> None:
            job = Job(default_workdir=tempfile.mkdtemp(dir=folder))
            for _ in range(count):
                job.program(["true"])
            submitted = client.submit(job)
            # Its own wait looks once a second; a look that raises comes back at once.
            while not _completed(client, submitted.id):
                time.sleep(ASK_SECONDS)

        yield run


class _NotYet(Exception):
    """Some tasks have not ended."""


def _completed(client: Any, job: int) -> bool:
    def look(jobs: dict[int, dict[str, Any]]) -> None:
        if not jobs[job]["completed"]:
            raise _NotYet

    try:
        failed = client.connection.wait_for_jobs((job,), look)
    except _NotYet:
        return False
    assert not failed, failed
    return True


def the_program(_: int) -> int:
    """A task of Dask is a function: this one runs the program."""
    return subprocess.run(["true"], check=True).returncode


@contextmanager
def dask(folder: str, nodes: int, cpus: int) -> Iterator[Run]:
    """Scheduler and worker processes on this machine; each task is a function that runs the program."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=nodes, threads_per_worker=cpus, dashboard_address=None, local_directory=folder
        ) as cluster,
        Client(cluster) as client,
    ):

        def run(count: int) -> None:
            assert not any(client.gather(client.map(the_program, range(count), pure=False)))

        yield run


def main(name: str, folder: str, nodes: str, cpus: str) -> None:
    # What a peer prints of itself must not be taken for an answer.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        with {"hyperqueue": hyperqueue, "dask": dask}[name](folder, int(nodes), int(cpus)) as run:
            print("ready", file=answers, flush=True)
            for line in sys.stdin:
                began = time.perf_counter()
                run(int(line))
                print(time.perf_counter() - began, file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
