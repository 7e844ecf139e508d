"""Jobs whose work leaves a trace outside the portal: which attempt did what, and whether two worked at once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: A job takes the lock of its name first: a second one that finds it held is alive at the same time.
SCRIPT = """
name={name}${{MUSTER_ARRAY_INDEX:+-$MUSTER_ARRAY_INDEX}}
exec 9>>"{folder}/$name.lock"
flock -n 9 || echo "together $MUSTER_ATTEMPT" >> "{folder}/$name"
echo "begun $MUSTER_ATTEMPT $$" >> "{folder}/$name"
sleep {seconds}
echo "done $MUSTER_ATTEMPT" >> "{folder}/$name"
exit {exit_code}
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """One job to submit; an array stands for as many as it has elements."""

    name: str
    elements: int
    seconds: float
    exit_code: int
    restart_policy: str
    cpu_cores: float = 0.1

    @property
    def names(self) -> list[str]:
        return [f"{self.name}-{n}" for n in range(self.elements)] if self.elements > 1 else [self.name]

    def request(self, folder: Path) -> dict[str, Any]:
        script = SCRIPT.format(
            name=self.name, folder=folder, seconds=f"{self.seconds:.2f}", exit_code=self.exit_code
        )
        array = {"array": f"0-{self.elements - 1}"} if self.elements > 1 else {}
        return {
            "name": self.name, "command": script, "cpu_cores": self.cpu_cores,
            "memory_bytes": 64 * 2**20,
            "restart_policy": self.restart_policy, "max_restarts": 1000, **array,
        }  # fmt: skip


def pieces(jobs: int, dice: random.Random) -> list[Piece]:
    """So many jobs, arrays counted by their elements: short ones, some of 5 to 20 seconds, two policies of restart."""
    made: list[Piece] = []
    left = jobs
    while left:
        elements = min(left, dice.randint(5, 12)) if dice.random() < 0.06 else 1
        seconds = dice.uniform(5, 20) if dice.random() < 0.3 else dice.uniform(0, 1)
        policy = dice.choice(["never", "on_failure"])
        # One that fails by itself and may restart would be done again by right.
        exit_code = dice.choice([0, 0, 0, 3, 7]) if policy == "never" else 0
        made.append(Piece(f"w{len(made):04d}", elements, seconds, exit_code, policy))
        left -= elements
    return made


def short_pieces(jobs: int, dice: random.Random) -> list[Piece]:
    """The jobs of a campaign: most take less than a second, one in fifty 5 to 30 s.

    Of little CPU, so that they wait for the faults and not for the quota of a demo project.
    """
    made: list[Piece] = []
    for number in range(jobs):
        seconds = dice.uniform(5, 30) if dice.random() < 0.02 else dice.uniform(0, 0.8)
        policy = dice.choice(["never", "on_failure"])
        exit_code = dice.choice([0, 0, 0, 3, 7]) if policy == "never" else 0
        made.append(Piece(f"w{number:05d}", 1, seconds, exit_code, policy, dice.choice([0.1, 0.1, 0.2, 0.5])))
    return made


@dataclass
class Trace:
    """What one job did, as its file tells."""

    begun: list[tuple[int, int]] = field(default_factory=list)  # attempt, pid
    done: list[int] = field(default_factory=list)
    together: int = 0


def is_alive(folder: Path, name: str) -> bool:
    """Whether a process of this job has its lock: its number means something in its own PID namespace alone.

    Read from the kernel's list: to try the lock would keep a job from it that begins just then.
    """
    inode = str((folder / f"{name}.lock").stat().st_ino)
    return any(line.split()[5].rpartition(":")[2] == inode for line in held_locks() if "->" not in line)


def held_locks() -> list[str]:
    """Lines of /proc/locks (proc(5)): number, kind, advisory, access, process, major:minor:inode, range."""
    return Path("/proc/locks").read_text().splitlines()


def trace(folder: Path, name: str) -> Trace:
    found = Trace()
    try:
        lines = (folder / name).read_text().splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        match line.split():
            case ["begun", attempt, pid]:
                found.begun.append((int(attempt), int(pid)))
            case ["done", attempt]:
                found.done.append(int(attempt))
            case ["together", _]:
                found.together += 1
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """What the portal says of one job."""

    name: str
    state: str
    exit_code: int | None
    attempts: int
    text: str


def broken(folder: Path, accepted: list[Piece], rows: list[Row]) -> dict[str, list[str]]:
    """Every promise about jobs, and each job with which it was broken."""
    promise: dict[str, list[str]] = {
        name: []
        for name in ("lost", "made up", "not ended", "done twice", "live twice at once", "wrong exit code")
    }
    by_name = {row.name: row for row in rows}
    wanted = {name: piece for piece in accepted for name in piece.names}
    twins = [name for name, count in Counter(row.name for row in rows).items() if count > 1]
    promise["made up"] += [*twins, *sorted(by_name.keys() - wanted.keys())]
    for name, piece in wanted.items():
        row = by_name.get(name)
        if row is None:
            promise["lost"].append(name)
            continue
        did = trace(folder, name)
        if row.state not in ("completed", "failed"):
            promise["not ended"].append(f"{name} is {row.state}")
        elif row.exit_code != piece.exit_code:
            promise["wrong exit code"].append(
                f"{name}: {row.exit_code} and not {piece.exit_code} ({row.state}, {row.attempts} attempts, {row.text})"
            )
        if did.together:
            promise["live twice at once"].append(name)
        # A job that may restart may begin again; the work itself is done once. One that may not begins once.
        if len(did.done) > 1 or (piece.restart_policy == "never" and len(did.begun) > 1):
            promise["done twice"].append(
                f"{name} ({piece.restart_policy}): begun {did.begun}, done {did.done}"
            )
        elif row.state == "completed" and not did.done:
            promise["lost"].append(f"{name} is completed and did nothing")
    return promise
