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


def missing() -> str:
    """Why the source of the release before is not at hand; empty where it is."""
    if not (ROOT / ".git").exists():
        return "this is no git clone: the source of the release before is not at hand"
    found = subprocess.run(
        ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    return "" if found.returncode == 0 else f"this clone is shallow: it has no commit {COMMIT}"


def agent_source(folder: Path) -> Path:
    """Write the agent of the release before into this folder; answers where to run it from."""
    packed = subprocess.run(
        ["git", "archive", COMMIT, "scheduler/__init__.py", "scheduler/agent"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder
