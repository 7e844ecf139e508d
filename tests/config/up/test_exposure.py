"""Other machines are let in only when no job runs here, or with --i-know about what a job can read."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from config.up import exposure
from config.up.options import parse
from config.up.ports import free_port
from config.up.state import StateError
from tests.support.patience import patience
from tests.support.stack import ROOT, Stack


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch) -> None:
    for name in ("PORT", "MUSTER_ALLOWED_HOSTS"):
        monkeypatch.delenv(name, raising=False)


def refusal(*arguments: str, running_on: tuple[str, ...] = ()) -> str:
    try:
        exposure.require_known(parse(list(arguments)), running_on=running_on)
    except StateError as error:
        return str(error)
    return ""


@pytest.fixture(params=[True, False], ids=["confined", "not_confined"])
def confined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(exposure, "are_confined", lambda: request.param)
    return bool(request.param)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "portal.example.org", "", "::ffff:127.0.0.1"])
def test_a_host_that_others_reach_is_refused_with_what_a_job_reads_and_the_ways_out(
    host: str, confined: bool
) -> None:
    said = refusal("--host", host)

    for words in ("secret key", "password of the database", "identity of the node agents", "environment"):
        assert (words in said) is not confined
    assert "becomes any person of the portal" in said
    for way in ("ssh -L", "--nodes 0", "--i-know"):
        assert way in said


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_alone_is_let_in_without_a_question(host: str) -> None:
    assert refusal("--host", host) == ""


def test_names_for_a_proxy_let_others_in_as_well(monkeypatch) -> None:
    monkeypatch.setenv("MUSTER_ALLOWED_HOSTS", "localhost,[::1],muster.example.org")

    assert refusal().startswith("MUSTER_ALLOWED_HOSTS=muster.example.org lets other machines in")
    assert refusal("--nodes", "0") == ""


def test_it_starts_where_no_job_runs_or_with_i_know() -> None:
    assert refusal("--host", "0.0.0.0", "--nodes", "0") == ""
    assert refusal("--host", "0.0.0.0", "--i-know") == ""
    assert "of node-2, from before this start" in refusal(
        "--host", "0.0.0.0", "--nodes", "0", running_on=("node-2",)
    )


def test_what_a_job_reads_is_said_at_every_start_that_runs_jobs(confined: bool) -> None:
    said = "\n".join(exposure.banner_lines(parse([])))

    assert ("secret key" in said, "see the system and their own files only" in said) == (
        not confined,
        confined,
    )
    assert exposure.banner_lines(parse(["--nodes", "0"])) == []
    assert "--i-know was given" in exposure.banner_lines(parse(["--host", "0.0.0.0", "--i-know"]))[-2]


@pytest.mark.parametrize("leftover", [False, True], ids=["nodes", "jobs_from_before"])
def test_up_itself_ends_with_the_refusal_before_anything_starts(tmp_path: Path, leftover: bool) -> None:
    stack = Stack(tmp_path)
    arguments = ["--host", "0.0.0.0", "--port", str(free_port()), *(["--nodes", "0"] if leftover else [])]
    (tmp_path / "agents" / "node-1").mkdir(parents=True)
    with (tmp_path / "agents" / "node-1" / "keeper.lock").open("w") as shim:
        if leftover:
            fcntl.flock(shim, fcntl.LOCK_EX)

        done = subprocess.run(
            [sys.executable, "manage.py", "up", *arguments],
            cwd=ROOT,
            env=stack.environment(),
            capture_output=True,
            text=True,
            timeout=patience(60),
            check=False,
        )

    assert done.returncode == 1
    assert "--host 0.0.0.0 lets other machines in" in done.stderr
    assert not (tmp_path / "postgres").exists()
