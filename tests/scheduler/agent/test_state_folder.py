"""Who has a node's folder, how the next agent takes it over, and how an agent finds a server that moves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from config.up.state import StateFolder
from scheduler.agent import processes
from scheduler.agent.server.address import AddressFile
from scheduler.agent.server.client import ServerUnreachable
from scheduler.agent.state_folder import FolderInUse, claim
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import AgentProcess, Server, World, wait_for

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
HOLD = """
import fcntl, sys, time
lock = open(sys.argv[1], "a+")
fcntl.flock(lock, fcntl.LOCK_EX)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def isolation() -> str:
    """The jobs here are watched by files that they write outside their own folders."""
    return "off"


@contextmanager
def a_process(*argv: str) -> Iterator[int]:
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@contextmanager
def a_portal(folder: StateFolder, url: str) -> Iterator[None]:
    """What the supervisor does with the address while it lives."""
    assert folder.take_lock()
    folder.say_address(url)
    yield
    folder.release_lock()


# ---------------------------------------------------------------- taking over


def test_the_next_agent_takes_the_folder_and_the_jobs_of_the_one_that_runs(
    world: World, start_agent: StartAgent, tmp_path: Path
) -> None:
    first = start_agent()
    job = world.submit(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo still here; exit 7")
    world.run_until(job, "running")
    assert first.popen is not None

    second = AgentProcess(first.server, "n1", first.state, first.token, ("--take-over",)).start()
    try:
        assert first.popen.wait(20) == -9
        (tmp_path / "go").touch()
        wait_for(lambda: world.output(job) == b"still here\n")
        job.refresh_from_db()
        assert (job.state, job.exit_code, job.attempts.count()) == ("failed", 7, 1)
    finally:
        second.clean_up()


@pytest.mark.parametrize(
    "words",
    ["{pid} {later} {boot}", "{pid} {ticks} another-boot", "{pid}", "", "not a number of anything"],
    ids=["number_given_out_again", "before_a_restart_of_the_machine", "cut_short", "empty", "garbage"],
)
def test_no_process_is_killed_but_the_one_that_wrote_the_lock(tmp_path: Path, words: str) -> None:
    with a_process(*SLEEP) as bystander, a_process(sys.executable, "-c", HOLD, str(tmp_path / "agent.lock")):
        ticks = processes.start_ticks(bystander)
        values = {"pid": bystander, "ticks": ticks, "later": ticks + 1, "boot": processes.boot_id()}
        (tmp_path / "agent.lock").write_text(words.format(**values) + "\n")

        with pytest.raises(FolderInUse):
            claim(tmp_path, take_over=True, seconds=0.3)

        assert processes.is_running(bystander, ticks)


def test_the_process_of_a_free_lock_is_not_killed(tmp_path: Path) -> None:
    with a_process(*SLEEP) as bystander:
        ticks = processes.start_ticks(bystander)
        (tmp_path / "agent.lock").write_text(f"{bystander} {ticks} {processes.boot_id()}\n")

        os.close(claim(tmp_path, take_over=True))

        assert processes.is_running(bystander, ticks)
    assert (tmp_path / "agent.lock").read_text().split()[0] == str(os.getpid())


# ---------------------------------------------------------------- the address


def test_an_address_counts_while_its_portal_lives(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MUSTER_STATE", str(tmp_path))
    now = [100.0]
    folder = StateFolder.find()
    file = AddressFile(folder.address_file, clock=lambda: now[0])
    with pytest.raises(ServerUnreachable, match="cannot be read"):
        file()

    with a_portal(folder, "http://127.0.0.1:8000"):
        now[0] = 150.0
        assert file() == "http://127.0.0.1:8000"
    now[0] = 170.0
    with pytest.raises(ServerUnreachable, match="does not run"):
        file()
    assert file.away_seconds() == 20.0

    with a_portal(folder, "http://127.0.0.1:9"):
        assert file() == "http://127.0.0.1:9"


def test_an_agent_follows_its_portal_to_another_port(
    world: World, server: Server, start_agent: StartAgent, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("MUSTER_STATE", str(tmp_path / "portal"))
    folder = StateFolder.find()
    with a_portal(folder, server.url):
        start_agent("n1", server_file=folder.address_file)
        job = world.submit(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")
        world.run_until(job, "running")
    server.stop()
    moved = Server().start()
    try:
        assert moved.port != server.port
        (tmp_path / "go").touch()
        with a_portal(folder, moved.url):
            world.run_until(job, "completed")
    finally:
        moved.stop()
        server.start()
    assert job.attempts.count() == 1


def test_an_agent_without_a_portal_stays_for_its_job_and_then_leaves(
    world: World, server: Server, start_agent: StartAgent, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("MUSTER_STATE", str(tmp_path / "portal"))
    folder = StateFolder.find()
    short = tmp_path / "sitecustomize.py"
    short.write_text("import scheduler.agent.agent as agent\nagent.ABANDONED_SECONDS = 0.5\n")
    with a_portal(folder, server.url):
        agent = start_agent("n1", python_path=f"{tmp_path}:{Path.cwd()}", server_file=folder.address_file)
        job = world.submit(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 7")
        world.run_until(job, "running")
    server.stop()  # ends the call that it holds open
    try:
        wait_for(lambda: "no answer from the server" in agent.log())
        assert agent.popen is not None
        with pytest.raises(subprocess.TimeoutExpired):
            agent.popen.wait(2)

        (tmp_path / "go").touch()

        assert agent.popen.wait(30) == 0
    finally:
        server.start()
    with a_portal(folder, server.url):
        agent.start()
        wait_for(lambda: not world_job_is_live(job))
    assert (job.state, job.exit_code, job.attempts.count()) == ("failed", 7, 1)


def world_job_is_live(job) -> bool:
    job.refresh_from_db()
    return not job.is_terminal
