"""The agent as a program: what it needs to start, and how it refuses a bad command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.agent.main import main

ROOT = Path(__file__).resolve().parents[3]


def test_the_agent_runs_where_there_is_no_django() -> None:
    blocked = (
        "import sys; sys.modules.update(dict.fromkeys(('django', 'config', 'accounts', 'celery', 'httpx')));"
    )
    blocked += "import scheduler.agent.main, scheduler.agent.shim.shim; print('fine')"

    done = subprocess.run(
        [sys.executable, "-c", blocked], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout == "fine\n"


def test_the_shim_needs_the_standard_library_only() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import scheduler.agent.shim.__main__; print('fine')"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout == "fine\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--server", "http://example.org"],
        ["--server", "http://localhost", "--cpus", "0"],
        ["--server", "http://localhost", "--name", "a/b"],
        ["--server", "http://localhost", "--labels", "novalue"],
        ["--server", "http://localhost", "--fake-gpus", "many"],
        ["--server", "http://localhost", "--join-token-file", "/no/such/file"],
    ],
)
def test_bad_arguments_are_explained(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--state", str(tmp_path / "state")])

    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
