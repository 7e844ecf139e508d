"""A pytest plugin that starts PostgreSQL and Valkey before the settings are read, and throws them away after.

Servers named by DATABASE_URL and REDIS_URL are used instead; the database's role then needs CREATEDB.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from config.up.servers import EmbeddedServers
from config.up.state import StateFolder


def start() -> None:
    scratch = Path(tempfile.mkdtemp(prefix="muster-test-"))
    scratch.chmod(0o755)  # root's PostgreSQL runs under another account, which must get in
    # No test, and no command that a test runs, may touch the state of a portal that somebody uses.
    os.environ["MUSTER_STATE"] = str(scratch)
    servers = EmbeddedServers(StateFolder.find(), throw_away=True)

    def stop() -> None:
        servers.stop()
        shutil.rmtree(scratch, ignore_errors=True)

    atexit.register(stop)
    servers.start()
    os.environ["DATABASE_URL"] = servers.database_url
    os.environ["REDIS_URL"] = servers.redis_url
    os.environ.setdefault("OMP_NUM_THREADS", "1")


if "PYTEST_XDIST_WORKER" not in os.environ:
    start()
