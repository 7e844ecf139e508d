"""The same 500 jobs through Muster's agents and through a real Slurm beside it, in turns.

Both begin with one request for all of them (`jobs:bulk`; an array of `sbatch`), have eight nodes of sixteen CPUs
on this machine, keep accounts, start a real process for each job, and are done when the last has completed.
Slurm also writes a script and a standard output for each; Muster commits every step to PostgreSQL.

Both stay up the whole time, and the CPU time that one takes while the other has its turn is printed: it says
whether the machine belonged to the one that was measured.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.portal.cpu import CLIENT, cpu_ms, cpu_ms_by_name
from benchmarks.portal.e2e import TOGETHER, together
from benchmarks.portal.scratch_portal import CPUS, NODES, Portal, portal, until
from benchmarks.registry import Figures, NotMeasuredError, benchmark, note
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
        together(running.client(), "beside Slurm, to warm up")
        _array(slurm)
        ours, theirs, beside_us, beside_them = [], [], [], []
        for number in range(REPEATS):
            idle, began = _daemons_ms(slurm), time.perf_counter()
            ours.append(TOGETHER / together(running.client(), f"beside Slurm, {number}"))
            beside_us.append((_daemons_ms(slurm) - idle) / (time.perf_counter() - began) / 10)
            idle, began = _portal_ms(running), time.perf_counter()
            theirs.append(TOGETHER / _array(slurm))
            beside_them.append((_portal_ms(running) - idle) / (time.perf_counter() - began) / 10)
    finally:
        slurm.stop()
        shutil.rmtree(folder, ignore_errors=True)
    note(
        f"while the other had its turn: Slurm's daemons {statistics.median(beside_us):.1f} % of a core, "
        f"the portal and its agents {statistics.median(beside_them):.1f} %"
    )
    yield "muster_jobs_per_s", statistics.median(ours)
    yield "slurm_jobs_per_s", statistics.median(theirs)
    yield "e2e_vs_slurm", statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def _daemons_ms(slurm: SlurmServer) -> float:
    spent = 0.0
    for pid in slurm.daemon_pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            spent += cpu_ms(psutil.Process(pid))
    return spent


def _portal_ms(running: Portal) -> float:
    """Of all but the client: that is what asks Slurm, too."""
    return sum(spent for name, spent in cpu_ms_by_name(running).items() if name != CLIENT)


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
