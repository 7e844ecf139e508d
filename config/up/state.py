"""The state folder: one portal's data, secrets, logs, and the lock that makes it the only one."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


class StateError(Exception):
    """The state folder cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the embedded servers of a state folder are, and who runs them."""

    database_url: str
    redis_url: str
    owner_pid: int
    command: str
    web_url: str = ""


class StateFolder:
    """One folder, one portal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd: int | None = None
        self._address_fd: int | None = None

    @classmethod
    def find(cls) -> StateFolder:
        """MUSTER_STATE, else `var` in the checkout.

        PostgreSQL refuses to run as root, so root's servers run under another account, which must be able
        to reach their files: a checkout below /root cannot hold them, /var/lib can.
        """
        if named := os.environ.get("MUSTER_STATE"):
            folder = cls(Path(named).expanduser().resolve())
        elif os.geteuid() == 0 and not reachable_by_all(CHECKOUT):
            folder = cls(
                Path("/var/lib") / f"muster-{hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:12]}"
            )
        else:
            folder = cls(CHECKOUT / "var")
        folder._make()
        return folder

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for part in (self.logs, self.run, self.agents):
                part.mkdir(mode=0o700, exist_ok=True)
            probe = self.run / f".writable-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise StateError(
                f"The state folder {self.path} cannot be written: {error.strerror}. "
                "Set MUSTER_STATE to a folder that you may write to."
            ) from error

    @property
    def logs(self) -> Path:
        return self.path / "log"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def agents(self) -> Path:
        return self.path / "agents"

    @property
    def address_file(self) -> Path:
        """Where our web server is, for our node agents; it counts while we keep it locked."""
        return self.run / "address"

    def say_address(self, url: str) -> None:
        """Let agents, also agents from before this start, find our web server for as long as this process lives."""
        self._address_fd = os.open(self.address_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._address_fd, fcntl.LOCK_EX)  # an agent that looks just now holds it for an instant
        os.ftruncate(self._address_fd, 0)
        os.pwrite(self._address_fd, f"{url}\n".encode(), 0)

    # ------------------------------------------------------------ secrets and ports

    def secret(self, name: str) -> str:
        """A random secret, made once, readable by its owner alone."""
        file = self.path / name
        while True:
            try:
                if value := file.read_text().strip():
                    return value
            except FileNotFoundError:
                pass
            # Written whole under another name first: two processes may want it at the same moment.
            fresh = self.path / f".{name}-{os.getpid()}"
            write_private(fresh, secrets.token_urlsafe(48) + "\n")
            try:
                os.link(fresh, file)
            except FileExistsError:
                if not file.read_text().strip():
                    file.unlink(missing_ok=True)
            finally:
                fresh.unlink(missing_ok=True)

    def remembered_port(self, name: str) -> int | None:
        """The port that this server had last time, so that addresses stay the same."""
        try:
            return int(json.loads((self.run / "ports.json").read_text())[name])
        except (OSError, ValueError, KeyError):
            return None

    def remember_port(self, name: str, port: int) -> None:
        file = self.run / "ports.json"
        try:
            ports = json.loads(file.read_text())
        except (OSError, ValueError):
            ports = {}
        write_private(file, json.dumps(ports | {name: port}))

    # ------------------------------------------------------------ the lock, and who holds it

    def take_lock(self) -> bool:
        """Become the process that runs the servers of this folder; False when another process is."""
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._lock_fd = fd
        return True

    def release_lock(self) -> None:
        if self._lock_fd is not None:
            (self.path / "servers.json").unlink(missing_ok=True)
            if self._address_fd is not None:
                os.close(self._address_fd)
                self._address_fd = None
            os.close(self._lock_fd)
            self._lock_fd = None

    def publish(self, servers: Servers) -> None:
        """Say where the servers are; only the holder of the lock does."""
        write_private(self.path / "servers.json", json.dumps(asdict(servers)))

    def running(self) -> Servers | None:
        """Where the servers are, or None while no process runs them.

        The lock is the truth: a file left by a killed owner is not believed.
        """
        if self.take_lock():
            self.release_lock()
            return None
        return self.published()

    def published(self) -> Servers | None:
        try:
            return Servers(**json.loads((self.path / "servers.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @contextmanager
    def visiting(self) -> Iterator[None]:
        """Use servers that another process runs: it will not stop them under us while this is open."""
        fd = os.open(self.path / "visitors", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    def wait_for_visitors(self, seconds: float) -> bool:
        """Before stopping servers of a short command: let the commands that joined it end first."""
        fd = os.open(self.path / "visitors", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + seconds
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        return False
                    time.sleep(0.1)
        finally:
            os.close(fd)


def reachable_by_all(path: Path) -> bool:
    """Whether any account may pass through every folder on the way to this path."""
    path = path.resolve()
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents))


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as stream:
        stream.write(text)
    temporary.replace(file)
