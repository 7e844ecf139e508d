"""The same scripts for a real Slurm and for this portal with a real agent: output, files, exit codes, order, limits."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from infra.errors import InvalidInput
from scheduler.models import Job
from scheduler.services.changes.change import change_job
from scheduler.services.jobs.submit import submit_job
from scheduler.services.jobs.verbs import requeue_job
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from tests.backends.slurm.server import SlurmServer
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import World, wait_for
from tests.support.factories import OperatorFactory

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.root]

PERSON: Final = "mustertest1"


@pytest.fixture
def isolation() -> str:
    """Jobs here write files outside their own folders."""
    return "off"


@dataclass(frozen=True, slots=True)
class Script:
    """A script; `@NAME@` is the number that an earlier one got. `at` is what its folder is looked at for, too."""

    name: str
    lines: str
    body: str
    args: tuple[str, ...] = ()

    def text(self, numbers: dict[str, str]) -> str:
        lines = "".join(f"#SBATCH {line}\n" for line in self.lines.splitlines())
        script = f"#!/bin/bash\n{lines}{self.body}\n"
        return re.sub(r"@(\w+)@", lambda found: numbers[found[1]], script)


#: Not those of a task: each task runs the script here, with the variables that srun sets.
_READ: Final = "JOB_NAME NNODES JOB_NUM_NODES CPUS_PER_TASK MEM_PER_NODE MEM_PER_CPU"
_ENV: Final = f'for n in {_READ}; do v=SLURM_$n; echo "$n=${{!v-unset}}"; done'
SCRIPTS: Final = (
    Script("plain", "-J plain\n-c 2\n--mem=200M", _ENV),
    Script("array", "-J sweep\n-a 3-7:2%2\n--mem-per-cpu=100M", _ENV),
    Script("code", "-o %x-%j.out\n-e err\n-J files", "echo out; echo err >&2; exit 7"),
    Script("killed", "-J killed", "echo before; kill -9 $$"),
    Script("append", "-o all.txt\n--open-mode=append", "echo again"),
    Script("names", "-a 1-2\n-o r-%A_%a.txt", "echo $SLURM_ARRAY_TASK_ID"),
    Script("exported", "--export=NONE,MINE=a", 'echo "${MINE-none}"; exit 0'),
    Script("function", "-J function", "f() { return 3; }\nf"),
    Script("trap", "-J trap", "trap 'exit 12' EXIT\nexit 3"),
    Script("good", "-J good", "sleep 1; echo good"),
    Script("bad", "-J bad", "sleep 1; exit 1"),
    Script("after-good", "-d afterok:@good@", "echo after"),
    Script("after-bad", "-d afternotok:@bad@", "echo after"),
    Script("after-any", "-d afterany:@bad@:@good@", "echo after"),
    Script("after-array", "-d afterok:@names@", "echo after"),
    Script("never", "-d afterok:@bad@", "echo never"),
)


@dataclass(slots=True)
class Fate:
    """How a script ended: state, exit code and signal of each element, what each printed, and files."""

    ends: list[tuple[str, int, int]] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------- there


@dataclass(slots=True)
class There:
    """A real Slurm; each script has a folder of its own."""

    slurm: SlurmServer
    root: Path
    numbers: dict[str, str] = field(default_factory=dict)

    def folder(self, name: str) -> Path:
        made = self.root / name
        made.mkdir(mode=0o777, exist_ok=True)
        made.chmod(0o777)
        return made

    def submit(self, script: Script) -> None:
        folder = self.folder(script.name)
        (folder / "job.sh").write_text(script.text(self.numbers))
        words = ("sbatch", "--parsable", "-D", str(folder), *script.args, str(folder / "job.sh"))
        self.numbers[script.name] = self.slurm.run(*words, user=PERSON).strip()

    def show(self, name: str) -> list[dict[str, str]]:
        said = self.slurm.run("scontrol", "-o", "show", "job", self.numbers[name])
        return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in said.splitlines() if line]

    def fate(self, name: str) -> Fate:
        found = Fate()
        rows = sorted(self.show(name), key=lambda row: int(row.get("ArrayTaskId", "0")))
        number = self.numbers[name]
        for row in rows:
            code, number_of_signal = map(int, row["ExitCode"].split(":"))
            found.ends.append((row["JobState"], code, number_of_signal))
            element = f"_{row['ArrayTaskId']}" if "ArrayTaskId" in row else ""
            output = self.folder(name) / f"slurm-{number}{element}.out"
            if output.exists():
                found.printed.append(output.read_text())
        found.files = _files(self.folder(name), number, without=r"job\.sh|slurm-.*\.out")
        return found


def _files(folder: Path, number: str, *, without: str) -> dict[str, str]:
    return {
        path.name.replace(number, "@J@"): path.read_text()
        for path in sorted(folder.iterdir())
        if not re.fullmatch(without, path.name)
    }


# ---------------------------------------------------------------- here


@dataclass(slots=True)
class Here:
    """This portal, with an agent that runs what it plans."""

    world: World
    root: Path
    numbers: dict[str, str] = field(default_factory=dict)

    def folder(self, name: str) -> Path:
        made = self.root / name
        made.mkdir(exist_ok=True)
        return made

    def submit(self, script: Script) -> None:
        args = ["-D", str(self.folder(script.name)), *script.args]
        payload, _ = parse_sbatch(
            script.text(self.numbers), by=self.world.user, args=args, file_name="job.sh"
        )
        job = submit_job(payload=payload, by=self.world.user, via="sbatch")
        self.numbers[script.name] = str(job.number)

    def jobs(self, name: str) -> list[Job]:
        number = int(self.numbers[name])
        return list(Job.objects.filter(array_number=number).order_by("array_index")) or [
            Job.objects.get(pk=number)
        ]

    def fate(self, name: str) -> Fate:
        found = Fate()
        for job in self.jobs(name):
            state = "PENDING" if job.state == "blocked" else job.state.upper()
            found.ends.append((state, job.exit_code or 0, job.exit_signal or 0))
            if job.is_terminal:
                found.printed.append(self.world.output(job).decode())
        found.files = _files(self.folder(name), self.numbers[name], without="")
        return found


# ---------------------------------------------------------------- compared


@pytest.fixture
def there(slurm: SlurmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    for words in (("account", "scripts"), ("user", PERSON, "account=scripts")):
        slurm.run("sacctmgr", "-i", "add", *words, check=False)
    root = slurm.folder / "work/scripts"
    root.mkdir(exist_ok=True)
    root.chmod(0o777)
    yield There(slurm, root)
    slurm.run("scancel", "-u", PERSON, check=False)


def test_scripts_end_as_in_slurm(there: There, world: World, start_agent: StartAgent, tmp_path: Path) -> None:
    start_agent()
    here = Here(world, tmp_path / "scripts")
    here.root.mkdir()
    for script in SCRIPTS:
        there.submit(script)
        here.submit(script)

    ours = [script.name for script in SCRIPTS if script.name != "never"]
    wait_for(
        lambda: world.plan() or all(job.is_terminal for name in ours for job in here.jobs(name)), every=0.1
    )
    over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}
    wait_for(lambda: all(row["JobState"] in over for name in ours for row in there.show(name)), every=0.3)

    different = {
        script.name: (mine, its)
        for script in SCRIPTS
        if (mine := _compared(here, script)) != (its := _compared(there, script))
    }
    assert different == {}, different


def _compared(where: Here | There, script: Script) -> dict[str, Any]:
    """How it ended, and what it printed: into a file that it names, which the log here has as well, or else."""
    fate = where.fate(script.name)
    printed = [] if "-o" in script.lines else [text.splitlines() for text in fate.printed if text]
    return {"ends": fate.ends, "printed": printed, "files": fate.files}


def test_limits_and_requeues_are_as_in_slurm(
    there: There,
    world: World,
    start_agent: StartAgent,
    tmp_path: Path,
) -> None:
    start_agent()
    here = Here(world, tmp_path / "scripts")
    here.root.mkdir()
    runs = Script("runs", "-t 10", "sleep 60")
    again = Script("again", "-J again", 'echo "run ${SLURM_RESTART_COUNT-0}"; exit 3')
    for script in (runs, again):
        there.submit(script)
        here.submit(script)
    mine, second = here.jobs("runs")[0], here.jobs("again")[0]
    world.run_until(mine, "running")
    world.run_until(second, "failed")
    wait_for(lambda: there.show("runs")[0]["JobState"] == "RUNNING")
    wait_for(lambda: there.show("again")[0]["JobState"] == "FAILED")

    # Owners shorten the limit of what runs; only an operator makes it longer.
    update = ("scontrol", "update", f"JobId={there.numbers['runs']}")
    assert there.slurm.run(*update, "TimeLimit=8", user=PERSON) == ""
    with pytest.raises(AssertionError, match="denied"):
        there.slurm.run(*update, "TimeLimit=9", user=PERSON)
    there.slurm.run(*update, "TimeLimit=20")
    assert there.show("runs")[0]["TimeLimit"] == "00:20:00"
    mine = change_job(job=mine, changes={"time_limit": 480}, by=world.user)
    with pytest.raises(InvalidInput, match="operator"):
        change_job(job=mine, changes={"time_limit": 540}, by=world.user)
    mine = change_job(job=mine, changes={"time_limit": 1200}, by=OperatorFactory())
    assert mine.time_limit_seconds == 1200
    # A failed job runs again under its number.
    there.slurm.run("scontrol", "requeue", there.numbers["again"], user=PERSON)
    requeue_job(job=second, by=world.user)
    time.sleep(0.1)
    world.run_until(second, "failed")
    # Slurm begins it anew after two minutes (BeginTime).
    wait_for(lambda: there.show("again")[0]["Restarts"] == "1")
    assert world.output(second).decode() == "run 1\n"
    assert second.exit_code == 3
