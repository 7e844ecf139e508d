"""A real portal to measure: `manage.py up` on a scratch state folder, with its rows at hand in this process."""

from __future__ import annotations

import atexit
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from benchmarks.registry import note
from config.up.servers import roles
from config.up.state import StateFolder
from tests.support.stack import ROOT, Stack, scratch_state, wait_until

PEOPLE = 8
#: The virtual cluster on this machine that jobs run through.
NODES, CPUS = 8, 16
Payload = dict[str, Any] | list[dict[str, Any]]


@dataclass
class Portal:
    """The running stack, people with tokens, and agents that are started when a benchmark needs them."""

    stack: Stack
    tokens: list[str] = field(default_factory=list)
    project: str = "bench"
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def client(self, person: int = 0) -> Client:
        """A caller with a connection of its own; each person has an audit chain of their own."""
        return Client(self.stack.base_url, self.tokens[person])

    def start_agents(self, count: int, *, cpus: int) -> None:
        """Virtual nodes on this machine; their jobs are real processes."""
        from scheduler.models import Node

        state = self.stack.state
        for number in range(len(self.agents), count):
            folder = state / "bench-agents" / f"n{number}"
            folder.mkdir(parents=True, exist_ok=True)
            self.agents.append(
                subprocess.Popen(
                    [
                        sys.executable, "-m", "scheduler.agent", "--server", self.stack.base_url,
                        "--state", str(folder), "--die-with-parent", "--name", f"bench-{number}",
                        "--cpus", str(cpus), "--memory-mib", "65536",
                        "--join-token-file", str(state / "join_token"),
                    ],
                    cwd=ROOT,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
        wait_until(
            lambda: Node.objects.filter(name__startswith="bench-", state="up").count() == count, seconds=60
        )

    def stop_agents(self) -> None:
        """Their nodes stay, and come back with the next `start_agents`."""
        for agent in self.agents:
            agent.terminate()
        for agent in self.agents:
            agent.wait(20)
        self.agents.clear()

    def as_owner(self, statement: str) -> None:
        """Run what only the owner of the tables may."""
        with self.connect(roles.OWNER) as connection:
            connection.execute(statement)

    def as_superuser(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run what only the superuser of the server may; the rows that it gives, if any."""
        with self.connect(roles.SUPERUSER) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def connect(self, role: str) -> psycopg.Connection[tuple[Any, ...]]:
        where = roles.Passwords(StateFolder(self.stack.state)).url(role, like=os.environ["DATABASE_URL"])
        return psycopg.connect(where, autocommit=True)

    def stop(self) -> None:
        self.stop_agents()
        self.stack.stop()
        shutil.rmtree(self.stack.state, ignore_errors=True)


class Client:
    """One caller of the API that keeps its connection, as a program would."""

    def __init__(self, base_url: str, token: str) -> None:
        where = urlsplit(base_url)
        self.connection = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=60)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def post(self, path: str, payload: Payload) -> Any:
        return self._ask("POST", path, json.dumps(payload))

    def get(self, path: str) -> Any:
        return self._ask("GET", path)

    def _ask(self, method: str, path: str, body: str | None = None) -> Any:
        self.connection.request(method, f"/api/v1/{path}", body, self.headers)
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path} answered {answer.status}: {text[:500]!r}")
        return json.loads(text)


@cache
def portal() -> Portal:
    """Start it once for all benchmarks that need one; it ends with this process."""
    running = Portal(Stack(_state_folder(), ["--nodes", "0", "--no-demo"]))
    atexit.register(running.stop)
    running.stack.start()
    _use_its_rows(running.stack)
    running.tokens = _people(running.project)
    return running


def _state_folder() -> Path:
    """A folder in `var/`, as a portal's own state is; in /tmp where PostgreSQL's account cannot reach the checkout.

    Tasks have a /tmp of their own, so a state folder in /tmp takes an agent other work than one elsewhere.
    """
    if not all(folder.stat().st_mode & 0o001 for folder in (ROOT, *ROOT.parents)):
        note(f"the state of the portal is in /tmp: {ROOT} is closed to other accounts")
        return scratch_state("bench")
    var = ROOT / "var" / "bench"
    var.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="portal-", dir=var))
    folder.chmod(0o755)
    return folder


def until(done: Callable[[], bool], *, seconds: float = 300, every: float = 0.02) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not done within {seconds:.0f} s")
        time.sleep(every)


def _use_its_rows(stack: Stack) -> None:
    os.environ["MUSTER_STATE"] = str(stack.state)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.development")
    servers = StateFolder.find().published()
    assert servers is not None, stack.said()
    os.environ["DATABASE_URL"], os.environ["REDIS_URL"] = servers.database_url, servers.redis_url
    import django

    django.setup()


def _people(project_slug: str) -> list[str]:
    from accounts.models import Membership, Organization, Project, User
    from accounts.services.tokens import issue_token

    organization = Organization.objects.create(name="Bench", slug=project_slug)
    project = Project.objects.create(organization=organization, name="Bench", slug=project_slug)
    tokens = []
    for number in range(PEOPLE):
        person = User.objects.create(username=f"bench{number}", default_project=project)
        Membership.objects.create(user=person, project=project, role="lead")
        scopes = ["jobs:read", "jobs:write"]
        tokens.append(issue_token(user=person, by=person, name="bench", scopes=scopes, days=1)[1])
    return tokens
