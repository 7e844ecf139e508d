"""The same number of programs `true` through Muster's agents and through HyperQueue or Dask, in turns.

All begin with one request for all of them and are done when the last has completed. What is kept of a job differs
(`KEPT`, printed beside the figures), so a ratio says what Muster's records cost, not which scheduler is better.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import ROOT
from benchmarks.portal.e2e import together
from benchmarks.portal.scratch_portal import CPUS, NODES, portal
from benchmarks.registry import Figures, NotMeasuredError, benchmark, note

LOCK: Final = ROOT / "requirements-bench.txt"
#: An environment of their own: what they need must not change what Muster is tested with.
PEERS: Final = ROOT / "var" / "bench" / "peers"
PROGRAMS, REPEATS = 1000, 5
INSTALL_SECONDS = 300
OURS: Final = (
    "Muster keeps of a job: its request, each step with its time, exit code, output and ledger lines, committed to "
    "PostgreSQL before the answer; and checks rights, quotas and fair share."
)


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer, how it is laid out here, and what it keeps of a job."""

    name: str
    nodes: int
    cpus: int
    keeps: str


HYPERQUEUE: Final = Peer(
    "hyperqueue", NODES, CPUS,
    "HyperQueue keeps of a task: state and times in the memory of its server until it ends (no journal here), and two "
    "output files; no accounts, no quotas.",
)  # fmt: skip
#: As many worker processes as it takes by itself, with as many threads in all as there are CPUs of nodes.
DASK: Final = Peer(
    "dask", os.cpu_count() or 1, NODES * CPUS // (os.cpu_count() or 1),
    "Dask keeps of a task: what the function returned, in the memory of a worker, until nobody asks for it; no output, "
    "no accounts, no quotas.",
)  # fmt: skip


@benchmark("e2e_vs_hyperqueue", "hyperqueue_per_s", "muster_beside_hyperqueue_per_s")
def versus_hyperqueue() -> Figures:
    """1,000 programs `true` in one request, in turns with HyperQueue: median of five ratios."""
    ours, theirs = _in_turns(HYPERQUEUE)
    yield "muster_beside_hyperqueue_per_s", statistics.median(ours)
    yield "hyperqueue_per_s", statistics.median(theirs)
    yield "e2e_vs_hyperqueue", _ratio(ours, theirs)


@benchmark("e2e_vs_dask", "dask_per_s", "muster_beside_dask_per_s")
def versus_dask() -> Figures:
    """1,000 programs `true` in one request, in turns with Dask: median of five ratios."""
    ours, theirs = _in_turns(DASK)
    yield "muster_beside_dask_per_s", statistics.median(ours)
    yield "dask_per_s", statistics.median(theirs)
    yield "e2e_vs_dask", _ratio(ours, theirs)


def _ratio(ours: list[float], theirs: list[float]) -> float:
    ratios = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    note(f"ratios of the pairs: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    return statistics.median(ratios)


def _in_turns(peer: Peer) -> tuple[list[float], list[float]]:
    """Programs a second of Muster and of the peer, pair by pair, after one of each to warm up."""
    python = _python_with_peers()
    folder = Path(tempfile.mkdtemp(prefix=f"muster-bench-{peer.name}-"))
    try:
        with _Running(python, peer, folder) as theirs_runs:
            running = portal()
            running.start_agents(NODES, cpus=CPUS)
            together(running.client(), f"beside {peer.name}, to warm up", PROGRAMS)
            theirs_runs.seconds_for(PROGRAMS)
            ours, theirs = [], []
            for number in range(REPEATS):
                ours.append(PROGRAMS / together(running.client(), f"beside {peer.name}, {number}", PROGRAMS))
                theirs.append(PROGRAMS / theirs_runs.seconds_for(PROGRAMS))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    note(
        f"{peer.nodes} workers x {peer.cpus} of {peer.name}, {NODES} nodes x {CPUS} CPUs of Muster, one machine"
    )
    note(OURS)
    note(peer.keeps)
    return ours, theirs


class _Running:
    """The peer's processes, which read from lines how many programs to run."""

    def __init__(self, python: Path, peer: Peer, folder: Path) -> None:
        self.peer = peer
        self.log = folder / "stderr"
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    str(python), str(Path(__file__).with_name("peer_programs.py")), peer.name, str(folder),
                    str(peer.nodes), str(peer.cpus),
                ],
                cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def __enter__(self) -> _Running:
        if self._line() != "ready":
            self.__exit__()
            raise NotMeasuredError(f"{self.peer.name} did not start: {self._said()}")
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def seconds_for(self, programs: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{programs}\n")
        self.process.stdin.flush()
        line = self._line()
        if not line:
            raise RuntimeError(f"{self.peer.name} ended: {self._said()}")
        return float(line)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def _said(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _python_with_peers() -> Path:
    """The interpreter of an environment with the locked peers; made once for each lock."""
    lock = LOCK.read_bytes()
    done = PEERS / f"installed-{hashlib.sha256(lock).hexdigest()[:16]}"
    python = PEERS / "bin" / "python"
    if done.exists():
        return python
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(PEERS)],
        [str(python), "-m", "pip", "install", "-q", "--no-input", "--only-binary", ":all:", "--require-hashes",
         "-r", str(LOCK)],
    ):  # fmt: skip
        try:
            made = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise NotMeasuredError(f"there are no peers to compare with: {problem}") from problem
        if made.returncode:
            said = (made.stderr or made.stdout).strip().splitlines()
            reason = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "")
            raise NotMeasuredError(
                f"there are no peers to compare with: {' '.join(command[-4:])} says: {reason}"
            )
    done.touch()
    return python
