"""A whole `manage.py up` for tests: on a state folder of its own, looked at and killed from outside."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from config.up.demo import SIGN_INS
from config.up.leftovers import is_held
from config.up.ports import free_port
from config.up.processes import die_with_parent
from tests.support.patience import patience, pauses

ROOT = Path(__file__).resolve().parents[2]
READY = "Muster is ready: "
START_SECONDS = 240


@dataclass
class Stack:
    """One running portal."""

    state: Path
    arguments: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    popen: subprocess.Popen[str] | None = None
    base_url: str = ""
    #: A folder that jobs may write, for tests that watch them by files.
    open_folder: Path | None = None
    output: list[str] = field(default_factory=list)
    made_token: str = ""

    #: The password of each demo account.
    credentials = {name: f"{name}-demo" for name, _ in SIGN_INS}

    def start(self) -> Stack:
        """Start it and return when it says that it is ready."""
        self.spawn()
        wait_until(lambda: self.base_url or not self.running, seconds=START_SECONDS, why=self.said)
        assert self.base_url, self.said()
        return self

    def spawn(self) -> None:
        arguments = (
            self.arguments if "--port" in self.arguments else [*self.arguments, "--port", str(free_port())]
        )
        if self.open_folder is not None:
            arguments = [*arguments, "--writable", str(self.open_folder)]
        self.base_url = ""
        self.popen = subprocess.Popen(
            [sys.executable, "manage.py", "up", *arguments],
            cwd=ROOT,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=die_with_parent(signal.SIGTERM),
        )
        threading.Thread(target=self._read, args=[self.popen], daemon=True).start()

    def _read(self, popen: subprocess.Popen[str]) -> None:
        assert popen.stdout is not None
        with popen.stdout as lines:
            for line in lines:
                self.output.append(line.rstrip())
                if line.startswith(READY):
                    self.base_url = line.removeprefix(READY).strip().rstrip("/")

    def environment(self) -> dict[str, str]:
        hidden = {"DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE", "PORT", "MUSTER_DEMO"}
        own = {name: value for name, value in os.environ.items() if name not in hidden}
        return {**own, "MUSTER_STATE": str(self.state), "PYTHONUNBUFFERED": "1", **self.env}

    @property
    def running(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def said(self) -> str:
        return "\n".join(self.output)

    def wait_ended(self, seconds: float = 60) -> int:
        assert self.popen is not None
        return self.popen.wait(patience(seconds))

    def stop(self) -> int:
        """Ctrl-C, and its exit code."""
        if self.popen is None:
            return 0
        if self.running:
            self.popen.send_signal(signal.SIGINT)
        return self.wait_ended(90)

    def remove_folders(self) -> None:
        """Its state, and what jobs wrote."""
        for folder in (self.state, self.open_folder):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def pid(self, name: str) -> int:
        """The process of this name: web, worker-default, beat, node-1, postgres ... (as in run/)."""
        return int((self.state / "run" / f"{name}.pid").read_text())

    def kill(self, name: str, sig: int = signal.SIGKILL) -> int:
        """Send a signal to one process; returns its pid."""
        pid = self.pid(name)
        os.kill(pid, sig)
        return pid

    def wait_restarted(self, name: str, old: int, seconds: float = 60) -> int:
        """Wait until another process has taken over this name."""
        wait_until(lambda: self._pid_or_zero(name) not in (0, old), seconds=seconds, why=self.said)
        return self.pid(name)

    def _pid_or_zero(self, name: str) -> int:
        try:
            return self.pid(name)
        except (OSError, ValueError):
            return 0

    def descendants(self) -> list[psutil.Process]:
        assert self.popen is not None
        return psutil.Process(self.popen.pid).children(recursive=True)

    def manage(self, *arguments: str, seconds: float = 120) -> str:
        """Run a manage.py command beside it; its standard output."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def token(self) -> str:
        """A token of alice for jobs; made once for this state folder, as a command takes seconds to start."""
        if not self.made_token:
            said = self.manage("token", "alice", "--scopes", "jobs:write,jobs:read")
            self.made_token = said.splitlines()[-1]
        return self.made_token

    def get(self, path: str, *, timeout: float = 30, token: str = "") -> tuple[int, str]:
        """Status and text of a plain GET."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(self.base_url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    @property
    def metrics_token(self) -> str:
        """What `make run` gives a scraper on this machine to read."""
        return (self.state / "metrics_token").read_text().strip()

    def post(self, path: str, body: dict[str, object], *, token: str) -> dict[str, object]:
        """What the API answers to a POST of JSON; an error status raises."""
        request = urllib.request.Request(
            self.base_url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.load(answer))

    def ask(self, path: str, *, token: str) -> dict[str, object]:
        """What the API answers to a GET; an error status raises."""
        request = urllib.request.Request(self.base_url + path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.load(answer))

    def kill_9_the_supervisor(self) -> None:
        """Kill the supervisor itself, and return when it has ended."""
        assert self.popen is not None
        os.kill(self.popen.pid, signal.SIGKILL)
        self.wait_ended()

    def held(self, lock: str) -> bool:
        """Whether a process holds this lock of the state folder, for example agents/node-1/keeper.lock."""
        return is_held(self.state / lock)

    def ready(self) -> dict[str, object]:
        status, text = self.get("/readyz")
        return {"code": status, **json.loads(text)}


def scratch_state(name: str) -> Path:
    """A folder that root's PostgreSQL, which runs under another account, can reach."""
    folder = Path(tempfile.mkdtemp(prefix=f"muster-{name}-"))
    folder.chmod(0o755)
    return folder


def make_open_folder(name: str) -> Path:
    """A folder that every account can write."""
    folder = Path(tempfile.mkdtemp(prefix=f"muster-{name}-"))
    folder.chmod(0o777)
    return folder


def wait_until(true: Callable[[], object], *, seconds: float = 30, why: Callable[[], str] = str) -> None:
    """Ask again and again; fail with what `why` says."""
    deadline = time.monotonic() + patience(seconds)
    pause = pauses(0.05)
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s; {why()}"
        time.sleep(next(pause))
