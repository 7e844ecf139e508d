"""Nobody waits for PostgreSQL without end, and what runs out is said in words."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connections, transaction
from django.test import Client, RequestFactory

from config.database.base import DatabaseWrapper
from config.database.limits import BY_PROCESS, Limits, limits_of, server_options
from config.database.pulse import Pulse, Silent
from config.error_pages import server_error
from infra.api.problems import handle_exception
from infra.db.connections import longer_statements
from infra.db.error_messages import to_error
from tests.support.patience import patience

SOON = Limits(statement=0.3, lock=0.2, idle=0.5, silence=1)


@pytest.fixture
def limited(transactional_db: None) -> Iterator[DatabaseWrapper]:
    """A second connection to the same database, with limits that run out."""
    mine = connections["default"].settings_dict
    own = DatabaseWrapper(
        {
            **mine,
            "MUSTER_LIMITS": SOON,
            "MUSTER_SERVER_LIMITS": True,
            "OPTIONS": {**mine["OPTIONS"], "options": server_options(SOON)},
        },
        alias="default",
    )
    yield own
    own.close()


@pytest.mark.parametrize(
    ("process", "like"),
    [
        ("muster-web", "muster-web"),
        ("muster-web-2", "muster-web"),
        ("muster-worker-default", "muster-worker"),
        ("muster-worker-scheduling", "muster-worker-scheduling"),
        ("muster-prepare", "muster"),
        ("", "muster"),
    ],
)
def test_each_kind_of_process_has_its_limits(process: str, like: str) -> None:
    assert limits_of(process) == BY_PROCESS[like]


def test_limits_of_nothing_are_not_said_and_given_ones_win() -> None:
    assert server_options(BY_PROCESS["muster"]) == ""
    assert server_options(SOON, "-c work_mem=9MB").endswith(
        "-c idle_in_transaction_session_timeout=500 -c work_mem=9MB"
    )


def run(own: DatabaseWrapper, sql: str) -> Any:
    with own.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


def test_a_statement_that_takes_too_long_is_ended_and_said(limited: DatabaseWrapper) -> None:
    with pytest.raises(OperationalError) as caught:
        run(limited, "SELECT pg_sleep(60)")

    said = to_error(caught.value)
    assert said is not None
    assert (said.code, said.status) == ("took-too-long", 503)
    assert run(limited, "SELECT 1") == (1,)


def test_an_export_may_take_longer(limited: DatabaseWrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.db.connections.connections", {"default": limited})

    with longer_statements(60):
        assert run(limited, "SELECT 1 FROM pg_sleep(0.6)") == (1,)
    with pytest.raises(OperationalError):
        run(limited, "SELECT pg_sleep(60)")


def test_a_lock_that_does_not_come_is_said(limited: DatabaseWrapper, django_user_model: Any) -> None:
    django_user_model.objects.create(username="ada")
    with transaction.atomic():
        django_user_model.objects.select_for_update().get(username="ada")
        with pytest.raises(OperationalError) as caught:
            run(limited, "SELECT 1 FROM accounts_user WHERE username = 'ada' FOR UPDATE")

    said = to_error(caught.value)
    assert said is not None
    assert (said.code, said.status, said.extra["retry_after_seconds"]) == ("busy", 503, 5)


def test_a_transaction_that_does_nothing_is_ended(limited: DatabaseWrapper) -> None:
    limited.set_autocommit(False)
    run(limited, "SELECT 1")
    time.sleep(1.5)
    with pytest.raises(DatabaseError) as caught:  # and not silently on another connection
        run(limited, "SELECT 1")

    said = to_error(caught.value)
    assert said is not None
    assert said.code == "took-too-long"


# ---------------------------------------------------------------- silence


def test_a_server_process_that_is_frozen_alone_is_given_up(limited: DatabaseWrapper) -> None:
    """The server as a whole answers, so the statement's own limit counts, and a little more."""
    (process,) = run(limited, "SELECT pg_backend_pid()")
    os.kill(process, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(OperationalError, match="did not end a statement at its limit"):
            run(limited, "SELECT 1")
        assert time.monotonic() - began < patience(20)
        assert not limited.pulse.silent
        assert run(limited, "SELECT 1") == (1,)
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_long_statement_is_not_taken_for_silence(limited: DatabaseWrapper) -> None:
    own = DatabaseWrapper(
        {
            **limited.settings_dict,
            "MUSTER_LIMITS": replace(SOON, statement=0, silence=0.5),
            "OPTIONS": {**limited.settings_dict["OPTIONS"], "options": ""},
        },
        alias="default",
    )
    try:
        assert run(own, "SELECT 1 FROM pg_sleep(4)") == (1,)
    finally:
        own.close()


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(20)
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_once_nothing_is_heard_nobody_waits_and_once_it_is_everybody_goes_on() -> None:
    answers = threading.Event()

    def look() -> None:
        if not answers.is_set():
            raise psycopg.errors.ConnectionTimeout("connection timeout expired")

    pulse = Pulse(look)
    pulse.require()
    pulse.suspect()
    wait_for(lambda: pulse.silent)
    with pytest.raises(Silent):
        pulse.require()

    answers.set()
    wait_for(lambda: not pulse.silent)
    pulse.require()


def test_a_refusal_is_an_answer() -> None:
    looked = threading.Event()

    def look() -> None:
        looked.set()
        raise psycopg.OperationalError("FATAL: sorry, too many clients already")

    pulse = Pulse(look)
    pulse.suspect()
    assert looked.wait(patience(10))
    assert not pulse.silent


# ---------------------------------------------------------------- words


def failed(state: str) -> OperationalError:
    """As Django raises it: with psycopg's error, which knows the state, as its cause."""
    error = OperationalError("as the server said")
    error.__cause__ = psycopg.errors.lookup(state)("as the server said")
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (failed("53100"), "disk-full"),
        (failed("57014"), "took-too-long"),
        (failed("55P03"), "busy"),
        (failed("57P01"), "unavailable"),
        (failed("25006"), "unavailable"),
        (OperationalError("the connection is lost"), "unavailable"),
        (OSError(28, "No space left on device"), "disk-full"),
    ],
)
def test_every_door_says_the_same(error: Exception, code: str) -> None:
    factory = RequestFactory()
    api = handle_exception(error, {"request": None})
    assert api is not None
    assert (api.status_code, api.data["code"]) == (503, code)
    assert api.data["way_out"]
    for path, kind in (("/jobs/", "text/html"), ("/api/v1/jobs", "application/problem+json")):
        try:
            raise error
        except Exception:
            answer = server_error(factory.get(path))
        assert (answer.status_code, answer.headers["Content-Type"].split(";")[0]) == (503, kind)
        assert api.data["detail"] in answer.content.decode()
    assert json.loads(answer.content)["code"] == code


@pytest.mark.django_db
def test_a_page_that_meets_a_database_that_is_away_says_so(
    client: Client, django_user_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(django_user_model.objects.create(username="ada"))

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("the connection is lost")

    monkeypatch.setattr("scheduler.web.home.visible_jobs", away)
    page = client.get("/")
    part = client.get("/", headers={"HX-Request": "true"})

    assert (page.status_code, page.headers["Retry-After"]) == (503, "5")
    assert "does not respond" in page.content.decode()
    assert part.status_code == 503
    assert "<html" not in part.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize(("path", "status"), [("/this-leads-nowhere/", 404), ("/jobs/999999999/", 404)])
def test_error_pages_of_a_person_who_is_signed_in_look_like_the_rest(
    client: Client, django_user_model: Any, path: str, status: int
) -> None:
    client.force_login(django_user_model.objects.create(username="ada"))

    answer = client.get(path)

    assert answer.status_code == status
    assert "Go home" in answer.content.decode()
