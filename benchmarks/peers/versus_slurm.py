"""The same 500 jobs through Muster's agents and through a real Slurm beside it, in turns.

Both begin with one request for all of them (`jobs:bulk`; an array of `sbatch`), have eight nodes of sixteen CPUs
on this machine, keep accounts, start a real process for each job, and are done when the last has completed.
Slurm also writes a script and a standard output for each; Muster commits every step to PostgreSQL.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.portal.e2e import TOGETHER, together
from benchmarks.portal.scratch_portal import CPUS, NODES, portal, until
from benchmarks.registry import Figures, NotMeasuredError, benchmark
from tests.backends.slurm.server import PEOPLE, SlurmServer, SlurmUnavailable, missing

REPEATS = 5


@benchmark("e2e_vs_slurm", "slurm_jobs_per_s", "muster_jobs_per_s")
def versus_slurm() -> Figures:
    """500 jobs of `true` in one request, in turns with a real Slurm: median of five ratios."""
    if reason := missing():
        raise NotMeasuredError(f"there is no Slurm to compare with: {reason}")
    folder = Path(tempfile.mkdtemp(prefix="muster-bench-slurm-"))
    folder.chmod(0o755)
    slurm = SlurmServer(folder, nodes=NODES, cpus=CPUS)
    try:
        try:
            slurm.start()
        except SlurmUnavailable as problem:
            raise NotMeasuredError(f"there is no Slurm to compare with: {problem}") from problem
        _let_in(slurm)
        running = portal()
        running.start_agents(NODES, cpus=CPUS)
        client = running.client()
        together(client, "beside Slurm, to warm up")
        _array(slurm)
        ours, theirs = [], []
        for number in range(REPEATS):
            ours.append(TOGETHER / together(client, f"beside Slurm, {number}"))
            theirs.append(TOGETHER / _array(slurm))
    finally:
        slurm.stop()
        shutil.rmtree(folder, ignore_errors=True)
    yield "muster_jobs_per_s", statistics.median(ours)
    yield "slurm_jobs_per_s", statistics.median(theirs)
    yield "e2e_vs_slurm", statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def _let_in(slurm: SlurmServer) -> None:
    """Slurm starts jobs of people with an account only."""
    slurm.run("sacctmgr", "-i", "add", "account", "bench")
    slurm.run("sacctmgr", "-i", "add", "user", PEOPLE[0], "account=bench")
    until(lambda: PEOPLE[0] in slurm.run("scontrol", "show", "assoc_mgr", "users=" + PEOPLE[0]), seconds=30)


def _array(slurm: SlurmServer) -> float:
    """The same jobs as one array; the seconds until none is left in the queue."""
    began = time.perf_counter()
    said = slurm.run(
        "sbatch", "--parsable", f"--array=0-{TOGETHER - 1}", "--output=/dev/null", "--wrap", "true",
        user=PEOPLE[0],
    )  # fmt: skip
    until(lambda: not slurm.run("squeue", "-h", "-o", "%i").strip(), every=0.1)
    took = time.perf_counter() - began
    number = said.strip().split(";")[0]

    def completed() -> bool:
        states = slurm.run("sacct", "-X", "-n", "-j", number, "-o", "state").split()
        return states.count("COMPLETED") == TOGETHER

    until(completed, seconds=60, every=0.5)
    return took
