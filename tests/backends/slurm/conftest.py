"""One real Slurm for all tests of this folder; skipped with the reason where there can be none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.slurm.server import SlurmServer, SlurmUnavailable, install, missing
from tests.scheduler.agent import conftest as agents

#: A portal with real agents, to compare with.
world, server, start_agent = agents.world, agents.server, agents.start_agent


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmServer]:
    """MUSTER_REQUIRE_SLURM installs what is missing, and makes a Slurm that does not start a failure."""
    required = os.environ.get("MUSTER_REQUIRE_SLURM") == "1"
    folder = Path(tempfile.mkdtemp(prefix="muster-slurm-"))
    folder.chmod(0o755)
    server = SlurmServer(folder, patience_seconds=180 if required else 10)
    try:
        if required:
            install()
        if reason := missing():
            raise SlurmUnavailable(reason)
        server.start()
    except SlurmUnavailable as problem:
        shutil.rmtree(folder, ignore_errors=True)
        if required:
            pytest.fail(f"MUSTER_REQUIRE_SLURM is set, and there is no Slurm: {problem}")
        pytest.skip(f"THE PROVIDER FOR SLURM IS NOT TESTED AGAINST A REAL SLURM: {problem}")
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)
