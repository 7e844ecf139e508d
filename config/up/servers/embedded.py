"""The embedded servers of a state folder as one thing: start what is not given, wait, stop in order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from config.up.processes import Process
from config.up.servers.postgres import Postgres
from config.up.servers.roles import OWNER_URL
from config.up.servers.valkey import Valkey
from config.up.state import Servers, StateError, StateFolder

# From one try to start a server to the next.
AGAIN_SECONDS = 0.3


class EmbeddedServers:
    """PostgreSQL and Valkey, each only when no URL of the environment says where to find one."""

    def __init__(self, state: StateFolder, *, throw_away: bool = False) -> None:
        self.state = state
        self.given_database_url = os.environ.get("DATABASE_URL", "")
        self.given_redis_url = os.environ.get("REDIS_URL", "")
        self.postgres = None if self.given_database_url else Postgres(state, throw_away=throw_away)
        self.valkey = None if self.given_redis_url else Valkey(state)

    @property
    def processes(self) -> list[Process]:
        return [server.process for server in (self.postgres, self.valkey) if server]

    @property
    def database_url(self) -> str:
        return self.postgres.url if self.postgres else self.given_database_url

    @property
    def owner_database_url(self) -> str:
        """Where migrations run; no process that serves requests gets it."""
        return self.postgres.owner_url if self.postgres else os.environ.get(OWNER_URL, "")

    @property
    def redis_url(self) -> str:
        return self.valkey.url if self.valkey else self.given_redis_url

    def published(self, command: str, web_url: str = "") -> Servers:
        """What other processes read; URLs that came from the environment are not written down."""
        return Servers(
            database_url=self.postgres.url if self.postgres else "",
            redis_url=self.valkey.url if self.valkey else "",
            owner_pid=os.getpid(),
            command=command,
            web_url=web_url,
        )

    def start(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Start both and return when both answer."""
        if self.postgres:
            if self.postgres.prepare():
                say("made a PostgreSQL data folder")
            self.postgres.process.start()
        if self.valkey:
            self.valkey.process.start()
        for process in self.processes:
            wait_ready(process)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.ask_to_stop()
        for process in reversed(self.processes):
            process.wait_stopped(time.monotonic() + process.stop_seconds)


def wait_ready(process: Process, interrupted: Callable[[], bool] = lambda: False) -> None:
    """Wait until a process serves; one that ends first is started again until its time is up.

    After a crash PostgreSQL refuses for a second or two, until the last of its old children is gone: it is asked
    again often, for everything else waits for it.
    """
    deadline = time.monotonic() + process.ready_seconds
    while not process.ready:
        if interrupted():
            raise KeyboardInterrupt
        if time.monotonic() > deadline:
            why = f" ({process.last_exit})" if process.last_exit else ""
            raise StateError(
                f"{process.name} was not ready within {process.ready_seconds:.0f} s{why}. "
                f"Its log {process.log_file} ends:\n{process.log_tail()}"
            )
        if process.popen is None and time.monotonic() >= min(
            process.restart_at, process.started_at + AGAIN_SECONDS
        ):
            process.start()
        process.look()
        if not process.ready:
            time.sleep(0.03)
    process.failures = 0
