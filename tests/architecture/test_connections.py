"""Threads that touch the database are few and named, and none gets a connection that nobody has looked at."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, connections

from config.http.api_server import ApiDoor, PageDoor
from config.http.probes import ProbeDoor
from infra.db.advisory_lock import hold_lock
from infra.db.connections import unit_of_work
from scheduler.api.agent.door import AgentDoor, _with_database
from scheduler.realtime import feeds
from tests.support.roles import all_rights

ROOT = Path(__file__).resolve().parents[2]
#: What begins a thread, or goes into one.
BEGINS_A_THREAD = {
    "Thread", "Timer", "start_new_thread", "ThreadPoolExecutor", "ProcessPoolExecutor", "to_thread",
    "run_in_executor", "sync_to_async", "database_sync_to_async", "async_to_sync",
}  # fmt: skip
#: What makes a connection past Django's.
CONNECTS = {"connect"}
#: Who answers requests with threads of Django's making, whose error pages run in yet others.
DJANGOS_OWN = {"get_asgi_application", "ASGIHandler"}
#: These know no Django: the agent has no database, the supervisor asks PostgreSQL only whether it is up.
WITHOUT_DJANGO = ("config/up/", "scheduler/agent/")

#: Every one there is, and what it has to do with the database. A new one is looked at, then added here.
KNOWN = {
    ("infra/db/groups.py", "Thread"): "work in groups: Django's connection, closed when the thread ends",
    ("infra/notifications.py", "Thread"): "sends to Redis; what it calls asks no rows",
    (
        "config/http/api_server.py",
        "ThreadPoolExecutor",
    ): "requests: Django's connection, request signals around each",
    ("config/http/api_server.py", "run_in_executor"): "the same",
    ("config/http/api_server.py", "to_thread"): "reads a file that is written",
    ("config/database/pulse.py", "Thread"): "looks whether PostgreSQL answers, on connections of its own",
    ("config/http/probes.py", "ThreadPoolExecutor"): "/readyz: as requests",
    ("config/http/probes.py", "run_in_executor"): "the same",
    (
        "scheduler/api/agent/door.py",
        "ThreadPoolExecutor",
    ): "agents' calls: Django's connection, in piece_of_work",
    ("scheduler/api/agent/door.py", "run_in_executor"): "the same",
    ("scheduler/backends/docker/images.py", "Thread"): "fetches an image; asks no rows",
    ("scheduler/backends/docker/output.py", "Thread"): "reads the output of a container; asks no rows",
    ("notifications/services/deliver.py", "ThreadPoolExecutor"): "calls of webhooks; asks no rows",
    ("notifications/services/guarded_http.py", "Timer"): "ends a call at its deadline; asks no rows",
    ("quotas/providers/calls.py", "Thread"): "calls of quota providers; asks no rows",
    ("scheduler/realtime/feeds.py", "ThreadPoolExecutor"): "live pages: Django's connection",
    ("scheduler/realtime/feeds.py", "database_sync_to_async"): "the same, cleaned before and after",
}
KNOWN_CONNECTIONS = {
    "config/checks.py": "a check at the start of a command asks once, and closes",
    "config/database/base.py": "the checked way itself",
}


def calls() -> Iterator[tuple[str, str]]:
    """(file, name) of every call in our own code."""
    for app in ("infra", "accounts", "config", "quotas", "scheduler", "notifications"):
        for file in sorted((ROOT / app).rglob("*.py")):
            where = str(file.relative_to(ROOT))
            if where.startswith(WITHOUT_DJANGO):
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call):
                    yield where, getattr(node.func, "attr", None) or getattr(node.func, "id", "")
                elif isinstance(node, ast.ClassDef):
                    yield from ((where, getattr(base, "id", "")) for base in node.bases)


def test_every_thread_is_known_with_what_it_does_to_the_database() -> None:
    assert {found for found in calls() if found[1] in BEGINS_A_THREAD} == set(KNOWN)


def test_nobody_connects_past_the_checked_way() -> None:
    found = set()
    for app in ("infra", "accounts", "config", "quotas", "scheduler", "notifications"):
        for file in sorted((ROOT / app).rglob("*.py")):
            where = str(file.relative_to(ROOT))
            text = file.read_text()
            if where.startswith(WITHOUT_DJANGO) or "psycopg" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in CONNECTS:
                    found.add(where)

    assert found == set(KNOWN_CONNECTIONS)


def test_requests_run_in_our_own_threads_alone() -> None:
    assert {found for found in calls() if found[1] in DJANGOS_OWN} == {
        (
            "config/http/api_server.py",
            "ASGIHandler",
        )  # ours is one, with the synchronous form of the middleware
    }


def test_the_settings_use_it() -> None:
    ours = settings.DATABASES["default"]

    assert ours["ENGINE"] == "config.database"
    assert (ours["CONN_MAX_AGE"], ours["OPTIONS"].get("pool")) == (None, None)
    assert ours["MUSTER_LIMITS"].silence > 0


# ---------------------------------------------------------------- each of them, with a connection that dies


def server_process() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def in_pool(pool: ThreadPoolExecutor) -> Any:
    return lambda: pool.submit(server_process).result(30)


def agents(door: AgentDoor) -> Any:
    return lambda: door._pool.submit(_with_database, server_process, ()).result(30)


async def nothing(*_: Any) -> None:
    return None


WAYS = {
    "api": lambda: in_pool(ApiDoor(nothing, threads=1)._threads),
    "pages": lambda: in_pool(PageDoor(threads=1)._threads),
    "probes": lambda: in_pool(ProbeDoor(nothing)._threads),
    "agents": lambda: agents(AgentDoor(nothing)),
    "live": lambda: lambda: asyncio.run(feeds.look(server_process)),
    "rights of live": lambda: lambda: asyncio.run(feeds.check(server_process)),
    "tasks, beat and commands": lambda: server_process,
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", sorted(WAYS))
def test_a_thread_whose_connection_was_killed_asks_on_another(name: str) -> None:
    ask = WAYS[name]()
    before = [ask() for _ in range(4)]  # each thread of a pool has had its turn
    own = server_process()
    with ThreadPoolExecutor(1) as killer:
        killer.submit(kill, {*before, own}).result(30)

    after = [ask() for _ in range(8)]

    assert not set(after) & set(before)


def kill(processes: set[int]) -> None:
    try:
        with unit_of_work(), all_rights(), connection.cursor() as cursor:
            for process in processes:
                cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [process])
    finally:
        connections.close_all()


@pytest.mark.django_db(transaction=True)
def test_a_lock_of_the_database_is_held_by_a_connection_that_can_be_asked() -> None:
    holder = hold_lock(4711)
    assert holder is not None
    with holder:
        assert hold_lock(4711) is None
