"""`-o` and `-e` of a real job on a real agent: files in its folder, while the log stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler.models import Job
from scheduler.services.jobs.verbs import requeue_job
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import AgentProcess, World, wait_for
from tests.support.stack import ROOT

pytestmark = pytest.mark.django_db(transaction=True)


def left(agent: AgentProcess, path: str) -> bytes:
    """A file of the one folder of results that the node keeps."""
    found: list[Path] = wait_for(lambda: list((agent.state / "results").glob(f"*/work/{path}")))
    return found[0].read_bytes()


def test_output_goes_to_the_named_files_and_to_the_log(world: World, start_agent: StartAgent) -> None:
    agent = start_agent()
    job = world.submit(
        "echo one; echo bad >&2; seq 100000; printf 'no newline'",
        name="run", standard_output="logs/%x-%j.out", standard_error="%j.err",
    )  # fmt: skip
    world.run_until(job, "completed")

    log = world.output(job, "stdout")
    assert log.startswith(b"one\n1\n")
    assert log.endswith(b"no newline")
    assert left(agent, f"logs/run-{job.number}.out") == log
    assert left(agent, f"{job.number}.err") == world.output(job, "stderr") == b"bad\n"


def test_both_streams_go_to_one_file_by_whole_lines(world: World, start_agent: StartAgent) -> None:
    agent = start_agent()
    command = "for n in 1 2 3; do echo out $n; echo err $n >&2; sleep 0.3; done"
    job = world.submit(command, standard_output="all")
    world.run_until(job, "running")
    (task,) = wait_for(lambda: list((agent.state / "tasks").iterdir()))
    wait_for(lambda: (task / "work/all").exists() and (task / "work/all").read_bytes())  # while it runs
    world.run_until(job, "completed")

    assert sorted(left(agent, "all").splitlines()) == sorted(
        f"{name} {n}".encode() for name in ("out", "err") for n in (1, 2, 3)
    )


def test_a_later_attempt_empties_or_adds_to_the_file(world: World, start_agent: StartAgent) -> None:
    agent = start_agent()

    def twice(**fields: Any) -> bytes:
        job = world.submit(
            "echo attempt $MUSTER_ATTEMPT; test $MUSTER_ATTEMPT = 2 || sleep 60",
            standard_output="%j.out",
            **fields,
        )
        world.run_until(job, "running")
        wait_for(lambda: b"attempt" in first_of(agent, job))
        requeue_job(job=job, by=world.user, reason="again")
        world.run_until(job, "completed", "running")
        world.run_until(job, "completed")
        return left(agent, f"{job.number}.out")

    assert twice() == b"attempt 2\n"
    assert twice(open_mode="append") == b"attempt 1\nattempt 2\n"


def first_of(agent: AgentProcess, job: Job) -> bytes:
    found = list((agent.state / "tasks").glob(f"*/work/{job.number}.out"))
    return found[0].read_bytes() if found else b""


def test_a_file_that_cannot_be_written_refuses_the_job_with_the_reason(
    world: World, start_agent: StartAgent
) -> None:
    start_agent()
    job = world.submit("echo never", standard_output="/proc/nothing/%j.out", restart_policy="never")
    world.run_until(job, "failed")

    assert f"/proc/nothing/{job.number}.out cannot be written" in job.end_text
    assert "Name one in the working folder" in job.end_text


def test_a_job_writes_no_file_where_its_isolation_does_not_let_it(
    world: World, start_agent: StartAgent
) -> None:
    start_agent()
    # Not below /tmp, of which each job has one of its own.
    target = ROOT / "stolen.out"
    job = world.submit("echo never", standard_output=str(target), restart_policy="never")
    world.run_until(job, "failed")

    assert f"{target} cannot be written" in job.end_text
    assert not target.exists()


def test_a_disk_that_is_full_is_said_in_the_log(world: World, start_agent: StartAgent) -> None:
    start_agent()
    job = world.submit("echo lost", standard_output="/dev/full")
    world.run_until(job, "completed")

    assert world.output(job, "stdout") == b"lost\n"
    assert b"the output file /dev/full is incomplete: No space left" in world.output(job, "stderr")


def test_a_batch_script_names_its_files(world: World, start_agent: StartAgent) -> None:
    agent = start_agent()
    lines = ["#!/bin/sh", "#SBATCH -o out-%j.txt", "#SBATCH -e /dev/null", "#SBATCH --open-mode=append"]
    script = "\n".join([*lines, "echo hello; echo no >&2", ""])
    payload, unhonoured = parse_sbatch(script, by=world.user)[:2]
    assert unhonoured == []
    job = world.submit(**{name: value for name, value in payload.items() if name != "project"})
    world.run_until(job, "completed")

    assert left(agent, f"out-{job.number}.txt") == b"hello\n"
    assert world.output(job, "stderr") == b"no\n"
