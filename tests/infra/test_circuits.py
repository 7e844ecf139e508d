"""A system outside that fails is left alone, tried by one caller, and called again once it answers (E4)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.db import DatabaseError, connection
from django.utils import timezone

from infra import notifications
from infra.circuits.memory import MemoryCircuit, redis_circuit
from infra.circuits.shared import Look, SharedCircuit, open_circuits
from infra.models import Circuit, System

CIRCUIT = SharedCircuit(System.STORAGE, "artefacts", label="bucket artefacts")


def after_the_pause() -> None:
    Circuit.objects.update(open_until=timezone.now() - timedelta(seconds=1))


@pytest.mark.django_db
class TestShared:
    def test_it_opens_with_the_third_failure_in_a_row_and_says_why(self) -> None:
        for number in range(2):
            CIRCUIT.failed(f"refused {number}")
            assert CIRCUIT.look().open_until is None

        CIRCUIT.failed("no answer within 10 s")

        until = CIRCUIT.look().open_until
        assert until is not None
        assert timedelta(seconds=25) < until - timezone.now() < timedelta(seconds=31)
        (row,) = open_circuits()
        assert (row.state, row.failures, row.text) == ("open", 3, "no answer within 10 s")
        assert str(row) == "Storage of artefacts bucket artefacts"

    def test_failures_with_an_answer_between_them_do_not_open_it(self) -> None:
        for _ in range(4):
            CIRCUIT.failed("away")
            CIRCUIT.failed("away")
            CIRCUIT.answered()

        assert not Circuit.objects.exists()

    def test_after_the_pause_one_caller_tries_and_the_others_wait(self) -> None:
        for _ in range(3):
            CIRCUIT.failed("away")
        after_the_pause()
        assert Circuit.objects.get().state == "half-open"

        assert [CIRCUIT.look().open_until is None for _ in range(3)] == [True, False, False]

    def test_of_two_that_find_the_pause_over_at_the_same_time_one_tries(self) -> None:
        for _ in range(3):
            CIRCUIT.failed("away")
        after_the_pause()
        others: list[Look] = []

        def meanwhile(execute: Any, sql: str, *rest: Any) -> Any:
            if "UPDATE infra_circuit" in sql and not others:
                others.append(Look())  # before the call, which comes here again
                others[0] = CIRCUIT.look()
            return execute(sql, *rest)

        with connection.execute_wrapper(meanwhile):
            ours = CIRCUIT.look()

        assert others[0].open_until is None
        assert ours.open_until is not None

    def test_a_try_that_fails_opens_it_again_and_one_that_succeeds_closes_it(self) -> None:
        for _ in range(3):
            CIRCUIT.failed("away")
        opened = Circuit.objects.get().opened_at
        after_the_pause()
        CIRCUIT.look()
        CIRCUIT.failed("still away")
        assert Circuit.objects.get().state == "open"
        assert Circuit.objects.get().opened_at == opened, "since it failed first"

        after_the_pause()
        look = CIRCUIT.look()
        assert look.troubled
        CIRCUIT.answered()

        assert not CIRCUIT.look().troubled

    def test_a_caller_that_dies_in_its_try_leaves_the_next_one_to_another(self) -> None:
        for _ in range(3):
            CIRCUIT.failed("away")
        after_the_pause()
        CIRCUIT.look()  # and never heard of again
        after_the_pause()

        assert CIRCUIT.look().open_until is None

    def test_a_system_that_asks_to_be_left_alone_is_at_once_and_for_as_long(self) -> None:
        CIRCUIT.failed("slow down", retry_after_seconds=120)

        until = CIRCUIT.look().open_until
        assert until is not None
        assert until > timezone.now() + timedelta(seconds=100)

    def test_one_system_does_not_open_the_circuit_of_another(self) -> None:
        for _ in range(3):
            CIRCUIT.failed("away")

        assert SharedCircuit(System.STORAGE, "other").look().open_until is None
        assert open_circuits(System.MAIL) == []

    def test_without_the_database_the_system_is_called(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def away() -> Any:
            raise DatabaseError("away")

        monkeypatch.setattr("infra.circuits.shared.connection.cursor", away)

        assert CIRCUIT.look().open_until is None


def test_the_circuit_in_memory_lets_one_caller_try_after_each_pause() -> None:
    now = [100.0]
    circuit = MemoryCircuit(pause_seconds=2, clock=lambda: now[0])
    assert circuit.may_call()

    assert circuit.failed()
    assert not circuit.failed(), "only the first finds it closed"
    assert not circuit.may_call()
    assert circuit.is_open

    now[0] += 2
    assert [circuit.may_call() for _ in range(3)] == [True, False, False]
    circuit.answered()
    assert circuit.may_call()
    assert not circuit.is_open


@pytest.fixture
def frozen_redis(settings: Any) -> Iterator[None]:
    """It takes connections and never answers, as a process that is stopped does."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        settings.REDIS_URL = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        notifications.client.cache_clear()
        redis_circuit.answered()
        yield
    notifications.client.cache_clear()
    redis_circuit.answered()


def test_a_redis_that_hangs_costs_a_request_one_time_out_and_those_after_it_nothing(
    frozen_redis: None,
) -> None:
    began = time.monotonic()
    notifications.publish(["a"])
    first = time.monotonic() - began

    began = time.monotonic()
    for _ in range(50):
        notifications.publish(["a"])
        notifications.publish_wake(None, "test")
        assert not notifications.redis_answers()
    rest = time.monotonic() - began

    assert 0.9 < first < 5
    assert rest < first / 2, "150 calls while the circuit is open"


def test_a_redis_that_refuses_a_write_answers_and_its_circuit_stays_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Full:
        """Its memory is full: a publish costs none and is taken, a write is refused."""

        def publish(self, channel: str, said: str) -> None:
            published.append(channel)

        def ping(self) -> None:
            raise redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'")

    published: list[str] = []
    monkeypatch.setattr(notifications, "client", Full)
    redis_circuit.answered()

    assert not notifications.redis_answers()
    notifications.publish_wake(None, "test")

    assert (redis_circuit.is_open, len(published)) == (False, 1)
