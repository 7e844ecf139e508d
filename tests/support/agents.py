"""Real agents against a real server on a thread, and the little world that they work in."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from django.core.asgi import get_asgi_application

from accounts.models import Project, User
from config.up.ports import free_port
from scheduler.agent import processes
from scheduler.api.agent.door import AgentDoor
from scheduler.models import Cluster, Job, Node, Task
from scheduler.services.cluster.defaults import ensure_defaults
from scheduler.services.cluster.nodes import issue_join_token
from scheduler.services.jobs import logs
from scheduler.services.jobs.submit import submit_job
from scheduler.services.planning import cycles
from tests.support.factories import MembershipFactory, ProjectFactory, UserFactory
from tests.support.patience import patience, pauses

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 20.0


def wait_for(what: Callable[[], Any], *, seconds: float = SECONDS, every: float = 0.02) -> Any:
    """The first true answer; fails with the last one when the time is up."""
    deadline = time.monotonic() + patience(seconds)
    pause = pauses(every)
    while not (answer := what()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}: {answer!r}"
        time.sleep(next(pause))
    return answer


def is_stopped(pid: int) -> bool:
    """Whether this process and its descendants are stopped (SIGSTOP); zombies are left out.

    A shell may have been stopped within `vfork`: its child was stopped before it became another program, and until
    the child continues the shell waits in the kernel, which calls this state "D".
    """
    state = processes.state_of(pid)
    children = [child for child in processes.children_of(pid) if processes.state_of(child) != "Z"]
    return (state == "T" or (state == "D" and bool(children))) and all(map(is_stopped, children))


class Server:
    """The door for agents, with Django behind it, in a thread; it can be stopped and started on its port."""

    def __init__(self, wrap: Callable[[Any], Any] = lambda application: application) -> None:
        self.port = free_port()
        self.wrap = wrap
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Server:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self.port))
        self._socket.listen(100)
        self._door = AgentDoor(get_asgi_application())
        config = uvicorn.Config(
            self.wrap(self._door),
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._thread.start()
        wait_for(lambda: self._server is not None and self._server.started)
        return self

    def stop(self) -> None:
        if self._server is None or self._thread is None or self._socket is None:
            return
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server did not stop"
        self._socket.close()
        self._server = None
        self._door.close()


@dataclass
class AgentProcess:
    """One agent; its state folder outlives it."""

    server: Server
    name: str
    state: Path
    token: str
    arguments: tuple[str, ...] = ()
    #: Where it looks for modules first.
    python_path: str = ""
    #: Where it reads the server's address; else it is given the address itself.
    server_file: Path | None = None
    #: The source of the agent: an older one, where releases are mixed.
    source: Path = ROOT
    popen: subprocess.Popen[bytes] | None = None

    def start(self) -> AgentProcess:
        self.state.mkdir(parents=True, exist_ok=True)
        arguments = ["--cpus", "8", "--memory-mib", "16384", *self.arguments]
        with (self.state.parent / f"{self.name}.log").open("ab") as log:
            self.popen = subprocess.Popen(
                [
                    *(
                        sys.executable,
                        "-m",
                        "scheduler.agent",
                        *self._where(),
                        "--name",
                        self.name,
                    ),
                    *("--state", str(self.state), *arguments),
                ],
                cwd=self.source,
                env={
                    "PATH": os.environ["PATH"],
                    "MUSTER_JOIN_TOKEN": self.token,
                    "PYTHONUNBUFFERED": "1",
                    "PYTHONPATH": self.python_path,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def _where(self) -> tuple[str, str]:
        return ("--server-file", str(self.server_file)) if self.server_file else ("--server", self.server.url)

    def kill(self, sig: int = signal.SIGKILL) -> None:
        if self.popen is not None:
            self.popen.send_signal(sig)
            self.popen.wait(15)
            self.popen = None

    @property
    def shim_pid(self) -> int:
        return int((self.state / "keeper.lock").read_text())

    def kill_shim(self) -> None:
        os.kill(self.shim_pid, signal.SIGKILL)

    def clean_up(self) -> None:
        """Leave nothing running."""
        from tests.support.shims import kill_guards

        self.kill()
        try:
            pid = self.shim_pid
            with (self.state / "keeper.lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # It has ended, and its number may mean another process by now.
        except BlockingIOError:
            os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            return
        kill_guards(self.state)

    def log(self) -> str:
        return (self.state.parent / f"{self.name}.log").read_text()


@dataclass
class World:
    """A cluster, a queue, a project and a person who submits."""

    cluster: Cluster
    project: Project
    user: User
    clean_ups: list[Callable[[], None]] = field(default_factory=list)

    @classmethod
    def make(cls) -> World:
        cluster = ensure_defaults()
        project = ProjectFactory(slug="vision", name="Vision")
        user = UserFactory(username="alice", default_project=project, priority_ceiling=100)
        MembershipFactory(project=project, user=user)
        return cls(cluster, project, user)

    def join_token(self) -> str:
        return issue_join_token(cluster=self.cluster, by=None)[1]

    def submit(self, command: str = "true", **fields: Any) -> Job:
        payload = {"cpu_cores": 1, "memory_bytes": 64 * 2**20, "project": self.project.slug, **fields}
        if "script" not in payload:
            payload["command"] = command
        return submit_job(payload=payload, by=self.user)

    def plan(self) -> None:
        cycles.run_cycle(cluster_id=self.cluster.pk, trigger="test")

    def run_until(self, job: Job, *states: str, seconds: float = SECONDS) -> Job:
        """Plan now and then until the job is in one of these states."""
        deadline = time.monotonic() + patience(seconds)
        pause = pauses(0.03)
        while True:
            job.refresh_from_db()
            if job.state in states:
                return job
            assert not job.is_terminal, f"job is {job.state}: {job.end_text}"
            assert time.monotonic() < deadline, f"job is {job.state}: {job.reason_text} {job.end_text}"
            if job.state == "queued":
                self.plan()
            time.sleep(next(pause))

    def task(self, job: Job, rank: int = 0) -> Task:
        return Task.objects.get(attempt__job=job, attempt__epoch=job.epoch, rank=rank)

    def output(self, job: Job, stream: str = "merged", **where: Any) -> bytes:
        """Everything, once it is all there."""

        def whole() -> logs.LogSlice | None:
            part = logs.read_log(job=job, stream=stream, limit=2**20, **where)
            return part if part.eof else None

        found: logs.LogSlice = wait_for(whole)
        return found.data

    def assert_nothing_is_held(self) -> None:
        for node in Node.objects.all():
            used = (node.used_cpu_millis, node.used_memory_mib, node.used_storage_mib, node.used_gpu_millis)
            assert used == (0, 0, 0, 0), node.name
            assert [d.used_millis for d in node.devices.all()] == [0] * node.devices.count()
        assert [q.used for q in self.project.quotas.all()] == [0] * self.project.quotas.count()
