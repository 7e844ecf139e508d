"""The agent of the release before, as git has it: what a rolling upgrade meets.

With each release, `COMMIT` becomes the commit of the release before (docs/guides/upgrade.md says when).
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from tests.support.agents import ROOT

#: Muster has not been released yet; this is the last commit of 2026-11-28, before isolation, checkpoints, probes,
#: samples of usage and kept results.
COMMIT: Final = "594dbbbdd03e"
#: What it consists of, as `git archive` packs it; .ci/run leaves it where the suite runs on a copy without history.
PATHS: Final = ("scheduler/__init__.py", "scheduler/agent")
PACKED: Final = ROOT / ".previous-release.tar"


def missing() -> str:
    """Why the source of the release before is not at hand; empty where it is."""
    if PACKED.exists():
        return ""
    if not (ROOT / ".git").exists():
        return "this is no git clone: the source of the release before is not at hand"
    found = subprocess.run(
        ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    return "" if found.returncode == 0 else f"this clone is shallow: it has no commit {COMMIT}"


def agent_source(folder: Path) -> Path:
    """Write the agent of the release before into this folder; answers where to run it from."""
    if PACKED.exists():
        packed = PACKED.read_bytes()
    else:
        command = ["git", "archive", COMMIT, *PATHS]
        packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        if hasattr(tarfile, "data_filter"):  # not before Python 3.11.4
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    return folder
