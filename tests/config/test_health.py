"""Probes and metrics: what they need, whom they tell, and what Redis being away may not break."""

from __future__ import annotations

import pytest
from django.core.cache import caches
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client, override_settings

from config import health
from config.cache import QuietRedisCache
from tests.support.roles import as_owner

NOWHERE = "redis://127.0.0.1:1/0"
ELSEWHERE = "192.0.2.7"


def test_livez_asks_neither_database_nor_session(client: Client) -> None:
    client.cookies["muster_session"] = "whatever"

    # pytest-django would also refuse any query here: the test asks for no database.
    assert client.get("/livez").content == b"ok\n"


@pytest.mark.django_db
def test_readyz_is_503_while_a_migration_is_missing(client: Client) -> None:
    leaves = {name for app, name in health.leaf_migrations() if app == "scheduler"}
    with as_owner():
        for name in ("0001_initial", *leaves):
            MigrationRecorder(connection).record_unapplied("scheduler", name)

    answer = client.get("/readyz")

    assert answer.status_code == 503
    assert answer.json()["failed"] == ["migrations"]


@pytest.mark.django_db
def test_readyz_is_200_and_degraded_without_redis(client: Client, monkeypatch) -> None:
    with override_settings(REDIS_URL=NOWHERE):
        answer = client.get("/readyz")

    assert answer.status_code == 200
    assert answer.json() == {"status": "degraded", "failed": [], "degraded": ["redis"]}


@pytest.mark.django_db
def test_details_and_metrics_are_for_operators_and_for_the_token_alone(
    client: Client, django_user_model
) -> None:
    """Neither the machine that asks nor an account is enough: jobs and their owners have both."""

    def seen(**headers: str) -> tuple[bool, int]:
        details = client.get("/readyz?verbose", **headers)
        assert details.status_code == 200
        return details.content.startswith(b"[+] database"), client.get("/metrics", **headers).status_code

    with override_settings(MUSTER_METRICS_TOKEN="a-token"):
        assert seen() == (False, 403)
        assert seen(HTTP_X_FORWARDED_FOR="127.0.0.1") == (False, 403)
        assert seen(HTTP_AUTHORIZATION="Bearer other") == (False, 403)
        assert seen(HTTP_AUTHORIZATION="Bearer a-token") == (True, 200)
        assert seen(HTTP_AUTHORIZATION="Bearer a-token", REMOTE_ADDR=ELSEWHERE) == (True, 200)
    client.force_login(django_user_model.objects.create(username="eve"))
    assert seen() == (False, 403)
    client.force_login(django_user_model.objects.create(username="ada", is_staff=True))
    assert seen(REMOTE_ADDR=ELSEWHERE) == (True, 200)


@pytest.mark.django_db
def test_checks_that_pass_say_what_was_found(client: Client) -> None:
    with override_settings(MUSTER_METRICS_TOKEN="a-token"):
        details = client.get("/readyz?verbose", HTTP_AUTHORIZATION="Bearer a-token").content.decode()

    assert "outside: no failures in the latest calls" in details
    assert "nodes: all in service" in details


@pytest.mark.django_db
def test_an_empty_token_opens_nothing(client: Client) -> None:
    with override_settings(MUSTER_METRICS_TOKEN=""):
        answer = client.get("/metrics", REMOTE_ADDR=ELSEWHERE, HTTP_AUTHORIZATION="Bearer ")

    assert answer.status_code == 403


def test_a_strange_request_id_is_replaced_and_a_plain_one_kept(client: Client) -> None:
    kept = client.get("/nowhere-1", HTTP_X_REQUEST_ID="trace-0123456789")
    replaced = client.get("/nowhere-2", HTTP_X_REQUEST_ID="x\r\nSet-Cookie: a=b")

    assert kept["X-Request-ID"] == "trace-0123456789"
    assert len(replaced["X-Request-ID"]) == 32


def test_the_cache_works() -> None:
    cache = caches["default"]

    cache.set("a", 1, 10)

    assert cache.get("a") == 1
    assert cache.add("a", 2) is False
    assert cache.incr("a") == 2


def test_without_redis_the_cache_only_misses() -> None:
    cache = QuietRedisCache(NOWHERE, {"OPTIONS": {"socket_connect_timeout": 0.2}})

    cache.set("a", 1)
    cache.delete("a")
    cache.set_many({"a": 1})

    assert cache.get("a", "nothing") == "nothing"
    assert cache.get_many(["a"]) == {}
    assert cache.has_key("a") is False
    assert cache.add("a", 1) is True
    assert cache.incr("a") == 1
