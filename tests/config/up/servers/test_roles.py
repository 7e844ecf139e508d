"""A running portal and its roles: data of earlier versions is handed over; no process knows more than it needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import environ
import psutil
import psycopg
import pytest
from django.conf import settings
from django.db import connections

from config.checks import check_role
from config.up.servers import roles
from config.up.servers.embedded import wait_ready
from config.up.servers.postgres import Postgres
from config.up.state import StateFolder
from tests.support.embedded import PASSWORD, give_migrated_data
from tests.support.stack import ROOT, Stack, scratch_state, wait_until

pytestmark = pytest.mark.stack

GUIDE = ROOT / "docs" / "guides" / "running.md"
SERVICES = ("web", "worker-scheduling", "worker-default", "beat", "node-1")
AS_EARLIER = """
REASSIGN OWNED BY muster_owner TO muster;
DROP OWNED BY muster_app, muster_owner;
ALTER DATABASE muster OWNER TO muster;
GRANT ALL ON DATABASE muster TO PUBLIC;
"""


@contextmanager
def a_server(path: Path) -> Iterator[Postgres]:
    """The PostgreSQL of a state folder, without a portal."""
    server = Postgres(StateFolder(path), throw_away=True)
    server.prepare()
    server.process.start()
    try:
        wait_ready(server.process)
        yield server
    finally:
        server.process.ask_to_stop()
        server.process.wait_stopped(float("inf"))


def connect(port: int, role: str, password: str, database: str = "muster") -> psycopg.Connection[Any]:
    return psycopg.connect(
        host="127.0.0.1", port=port, user=role, password=password, dbname=database, autocommit=True
    )


def make_as_earlier(path: Path) -> None:
    """Data as the versions left it that did everything as the superuser."""
    give_migrated_data(path)
    for part in ("log", "run", "agents"):
        (path / part).mkdir()
    with a_server(path) as server, connect(server.port, roles.SUPERUSER, PASSWORD) as connection:
        connection.execute("DROP DATABASE test_muster")
        connection.execute(AS_EARLIER)
        connection.execute("DROP ROLE muster_app")
        connection.execute("DROP ROLE muster_owner")
    for name in ("postgres_app_password", "postgres_owner_password"):
        (path / name).unlink()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    state = scratch_state("roles")
    make_as_earlier(state)
    stack = Stack(state, ["--nodes", "1"])
    try:
        yield stack.start()
    finally:
        stack.stop()
        shutil.rmtree(state, ignore_errors=True)


def password(stack: Stack, file: str) -> str:
    return (stack.state / file).read_text().strip()


def as_superuser(stack: Stack) -> psycopg.Connection[Any]:
    where = urlsplit(psycopg_url(stack))
    return connect(where.port or 0, roles.SUPERUSER, password(stack, "postgres_password"))


def psycopg_url(stack: Stack) -> str:
    environ = psutil.Process(stack.pid("web")).environ()
    return environ["DATABASE_URL"]


def test_data_of_an_earlier_version_is_handed_over(stack: Stack) -> None:
    with as_superuser(stack) as connection:
        owners = connection.execute(
            "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
            " UNION SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
            " AND proname LIKE '%muster%'"
            " UNION SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'muster'"
            " UNION SELECT pg_get_userbyid(stxowner) FROM pg_statistic_ext"
        ).fetchall()
        supers = connection.execute("SELECT rolname FROM pg_roles WHERE rolsuper").fetchall()

    assert owners == [(roles.OWNER,)]
    assert supers == [(roles.SUPERUSER,)]


def test_the_password_that_every_process_had_opens_nothing_any_more(stack: Stack) -> None:
    where = urlsplit(psycopg_url(stack))

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connect(where.port or 0, roles.SUPERUSER, PASSWORD)


def test_no_process_that_serves_knows_the_owner_or_the_superuser(stack: Stack) -> None:
    secrets = {password(stack, name) for name in ("postgres_password", "postgres_owner_password")}
    assert len(secrets) == 2
    for name in SERVICES:
        process = psutil.Process(stack.pid(name))
        told = [*process.environ().values(), *process.cmdline()]
        assert not any(secret in text for secret in secrets for text in told), name
        assert roles.OWNER_URL not in process.environ()
    assert urlsplit(psycopg_url(stack)).username == roles.APPLICATION
    assert not any(secret in (stack.state / "servers.json").read_text() for secret in secrets)
    for file in stack.state.glob("postgres_*password"):
        assert file.stat().st_mode & 0o777 == 0o600


def test_nothing_connects_but_as_the_application(stack: Stack) -> None:
    """But for a moment those of the tests before, which have hung up and whose backends have not ended yet."""
    with as_superuser(stack) as connection:

        def names() -> list[Any]:
            return connection.execute(
                "SELECT DISTINCT usename FROM pg_stat_activity WHERE datname = 'muster' AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
            ).fetchall()

        wait_until(lambda: names() == [(roles.APPLICATION,)], seconds=10, why=lambda: str(names()))


def test_a_job_goes_through_and_every_hourly_task_too(stack: Stack) -> None:
    said = manage_each(stack, ["token", "alice", "--scopes", "jobs:write,jobs:read"], first=ALL_TASKS)
    a_job_goes_through(stack, said.splitlines()[-1])


def a_job_goes_through(stack: Stack, token: str) -> None:
    job = stack.post("/api/v1/jobs", {"name": "x", "command": "true", "cpu_cores": 1}, token=token)
    wait_until(
        lambda: stack.ask(f"/api/v1/jobs/{job['number']}", token=token)["state"] == "completed",
        seconds=60,
        why=stack.said,
    )


def test_beat_may_write_every_entry_of_the_timetable(stack: Stack) -> None:
    """Several entries have one interval, so that all but the first find it there."""
    with as_superuser(stack) as connection:

        def missing() -> set[str]:
            rows = connection.execute("SELECT name FROM django_celery_beat_periodictask").fetchall()
            return settings.CELERY_BEAT_SCHEDULE.keys() - {name for (name,) in rows}

        wait_until(lambda: not missing(), seconds=30, why=lambda: str(missing()))


#: What beat asks for, at once and in the open; planning stays for a moment instead of a minute.
ALL_TASKS = """
from django.conf import settings
from config.celery import app
from scheduler.services.planning import planner
app.loader.import_default_modules()
entries = list(settings.CELERY_BEAT_SCHEDULE.values())
[plans] = [entry for entry in entries if entry["task"] == "scheduler.tasks.plan_all"]
entries.remove(plans)
planner.stay(seconds=1)
for entry in entries:
    app.tasks[entry["task"]](**entry.get("kwargs", {}))
"""


@pytest.mark.parametrize("command", [["migrate"], ["makemigrations", "--check", "--dry-run"]], ids=" ".join)
def test_the_commands_of_the_owner_work(stack: Stack, command: list[str]) -> None:
    stack.manage(*command)


#: They run with the rights of the application, so that one process serves for all: to start it takes longest.
OPERATORS_COMMANDS = [
    ["share", "--tree"],
    ["simulate", "past:1h"],
    ["retention"],
    ["seed_demo"],
    ["createsuperuser", "--noinput", "--username", "root2", "--email", "r@example.org"],
    ["join_token"],
    ["audit_verify"],
]
#: As manage.py would run each, all in one process.
EACH_COMMAND = """
import json, sys, traceback
from django.core.management import call_command
from django.db import connection
connection.ensure_connection()
print("as", connection.settings_dict["USER"])
for command in json.loads({commands!r}):
    try:
        call_command(*command)
    except BaseException:
        traceback.print_exc()
        sys.exit("refused: " + " ".join(command))
"""


def manage_each(stack: Stack, *commands: list[str], first: str = "") -> str:
    """Run this code, and then these commands, in one process beside the portal; what they print."""
    code = first + EACH_COMMAND.format(commands=json.dumps(commands))
    return stack.manage("shell", "--no-imports", "-c", code)


def test_an_operators_commands_work(stack: Stack) -> None:
    stack.env["DJANGO_SUPERUSER_PASSWORD"] = "a-long-enough-password-1"

    said = manage_each(stack, *OPERATORS_COMMANDS)

    assert f"as {roles.APPLICATION}" in said


def test_the_door_shows_what_the_command_found(stack: Stack) -> None:
    token = stack.manage("token", "auditor", "--scopes", "audit:read").splitlines()[-1]
    with as_superuser(stack) as connection:
        connection.execute("DELETE FROM accounts_auditcheck")
    assert ask(stack, token)[0] == 404

    stack.manage("audit_verify")

    status, text = ask(stack, token)
    assert (status, '"ok":true' in text.replace(" ", "")) == (200, True)
    assert (stack.state / "audit-checkpoints").stat().st_mode & 0o777 == 0o600


def ask(stack: Stack, token: str) -> tuple[int, str]:
    request = urllib.request.Request(
        f"{stack.base_url}/api/v1/audit/check", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_change_of_password_that_was_cut_short_locks_nobody_out() -> None:
    state = scratch_state("cut-short")
    try:
        give_migrated_data(state)
        for part in ("log", "run", "agents"):
            (state / part).mkdir()
        with a_server(state) as server:
            with connect(server.port, roles.SUPERUSER, PASSWORD) as connection:
                connection.execute("ALTER ROLE muster PASSWORD 'the next one'")
        (state / "postgres_password.next").write_text("the next one\n")
        with a_server(state) as server, connect(server.port, roles.SUPERUSER, "the next one"):
            assert (state / "postgres_password").read_text() == "the next one\n"
        (state / "postgres_password.next").write_text("one that the database never had\n")
        with a_server(state) as server, connect(server.port, roles.SUPERUSER, "the next one"):
            assert (state / "postgres_password").read_text() == "the next one\n"
    finally:
        shutil.rmtree(state, ignore_errors=True)


# ------------------------------------------------------------------ a server of one's own


def sql_of_the_guide() -> list[str]:
    section = GUIDE.read_text().split("### The roles of the database")[1].split("\n### ")[0]
    return re.findall(r"```sql\n(.*?)```", section, re.DOTALL)


class Bare(Postgres):
    """A server that somebody else runs: nothing of ours is in it."""

    def answers(self) -> bool:
        try:
            with self._connect("postgres"):
                return True
        except psycopg.OperationalError:
            return False


@pytest.fixture(scope="module")
def bare() -> Iterator[Bare]:
    path = scratch_state("bare")
    for part in ("log", "run", "agents"):
        (path / part).mkdir()
    server = Bare(StateFolder(path), throw_away=True)
    server.prepare()
    server.process.start()
    try:
        wait_ready(server.process)
        yield server
    finally:
        server.process.ask_to_stop()
        server.process.wait_stopped(float("inf"))
        shutil.rmtree(path, ignore_errors=True)


def run_each(connection: psycopg.Connection[Any], text: str) -> None:
    for statement in filter(None, map(str.strip, text.split(";"))):
        connection.execute(statement)


def test_the_sql_of_the_guide_makes_a_portal_that_runs(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sql_of_the_guide()[0]
    with connect(bare.port, roles.SUPERUSER, bare.passwords.of(roles.SUPERUSER), "postgres") as connection:
        run_each(connection, first)
    urls = {
        "DATABASE_URL": f"postgres://muster_app:another%20long%20password@127.0.0.1:{bare.port}/muster",
        roles.OWNER_URL: f"postgres://muster_owner:one%20long%20password@127.0.0.1:{bare.port}/muster",
    }
    state = scratch_state("guide")
    stack = Stack(state, ["--nodes", "1"], env=dict(urls))
    try:
        stack.start()
        assert roles.OWNER_URL not in psutil.Process(stack.pid("web")).environ()
        del stack.env[roles.OWNER_URL]
        said = manage_each(stack, ["audit_verify"], ["token", "alice", "--scopes", "jobs:write,jobs:read"])
        a_job_goes_through(stack, said.splitlines()[-1])
        assert "muster.W001" in deploy_check(urls[roles.OWNER_URL])
        # What the command found is what this finds, without a process for each role.
        assert said_of_role(monkeypatch, urls["DATABASE_URL"]) == ""
        assert "owns" in said_of_role(monkeypatch, urls[roles.OWNER_URL])
        assert "superuser" in said_of_role(
            monkeypatch,
            f"postgres://muster:{bare.passwords.of(roles.SUPERUSER)}@127.0.0.1:{bare.port}/muster",
        )
    finally:
        stack.stop()
        shutil.rmtree(state, ignore_errors=True)


def said_of_role(monkeypatch: pytest.MonkeyPatch, url: str) -> str:
    where = environ.Env.db_url_config(url)
    for name in ("USER", "PASSWORD", "HOST", "PORT", "NAME"):
        monkeypatch.setitem(connections["default"].settings_dict, name, where[name])
    found = check_role()
    assert "muster.I001" not in {one.id for one in found}, "the database was asked"
    return "\n".join(one.msg for one in found)


def deploy_check(url: str) -> str:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "config.settings.production",
        "MUSTER_SECRET_KEY": "x7Kq" * 20,
        "MUSTER_ALLOWED_HOSTS": "muster.example.org",
        "DATABASE_URL": url,
        "REDIS_URL": "redis://127.0.0.1:1/0",
    }
    said = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout + said.stderr


def test_the_sql_of_the_guide_divides_what_one_role_has_owned(bare: Bare) -> None:
    second = re.sub(r"\bmuster\b", "old", sql_of_the_guide()[1])
    secret = bare.passwords.of(roles.SUPERUSER)
    with connect(bare.port, roles.SUPERUSER, secret, "postgres") as connection:
        for role in ("muster_owner", "muster_app"):
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone():
                connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute("CREATE ROLE old LOGIN PASSWORD 'x'")
        connection.execute("CREATE DATABASE old OWNER old")
    with connect(bare.port, "old", "x", "old") as connection:
        connection.execute("CREATE TABLE things (id serial)")
    with connect(bare.port, roles.SUPERUSER, secret, "old") as connection:
        run_each(connection, second)
        owners = connection.execute(
            "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relname LIKE 'things%'"
        ).fetchall()

    assert owners == [("muster_owner",)]
