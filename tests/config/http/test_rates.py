"""How often one caller may ask: counted once for all web processes, and by each itself while Redis is away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import caches
from django.test import override_settings
from rest_framework.test import APIRequestFactory

from config.cache import QuietRedisCache
from config.http import rates
from infra.circuits.memory import redis_circuit

NOWHERE = ("redis://127.0.0.1:1/0", {"OPTIONS": {"socket_connect_timeout": 0.5}})


class CountingCache:
    """How often it was asked."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.asked = inner, 0

    def take(self, *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        return self.inner.take(*args, **kwargs)


@pytest.fixture
def a_web_process(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[str], Any]]:
    """A process with connections and counts of its own: asks for an address, answers what the throttle said."""
    redis_circuit.answered()  # whatever a test before has made of it
    caches["default"].clear()

    def made(cache: Any = None) -> Callable[[str], Any]:
        cache, own = cache or caches.create_connection("default"), rates.OwnBuckets()
        lots = rates.Lots()

        def ask(address: str = "10.0.0.1") -> Any:
            monkeypatch.setattr(rates, "cache", cache)
            monkeypatch.setattr(rates.Throttle, "own", own)
            monkeypatch.setattr(rates.Throttle, "lots", lots)
            request = APIRequestFactory().get("/", REMOTE_ADDR=address)
            request.auth = request.user = None
            throttle = rates.Throttle()
            return True if throttle.allow_request(request, None) else throttle.wait()

        return ask

    return made


@override_settings(MUSTER_API_RATE=0.01, MUSTER_API_BURST=3)
def test_two_web_processes_count_the_same_caller_together(a_web_process: Any) -> None:
    one, other = a_web_process(), a_web_process()

    assert [one(), other(), one()] == [True, True, True]
    assert 90 < other() <= 100
    assert 90 < one() <= 100
    assert other("10.0.0.2") is True


@override_settings(MUSTER_API_RATE=0.01, MUSTER_API_BURST=100)
def test_processes_take_a_few_at_a_time_and_never_more_than_there_are(
    a_web_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "LOT_SECONDS", 1000)
    busy = CountingCache(caches.create_connection("default"))
    one, other = a_web_process(busy), a_web_process()

    assert [other(), *(one() for _ in range(98))] == [True] * 99  # 100 are taken, one is left to the other
    assert busy.asked == 49
    assert 90 < one() <= 100
    assert other() is True
    assert 90 < other() <= 100


def test_small_limits_are_counted_one_by_one() -> None:
    assert [rates.lot_size(*limit) for limit in ((0.01, 3), (20.0, 3000), (1000.0, 1))] == [1, 1, 1]
    assert rates.lot_size(500.0, 3000) == 20


@override_settings(MUSTER_API_RATE=1000.0, MUSTER_API_BURST=1)
def test_a_bucket_refills(a_web_process: Any) -> None:
    ask = a_web_process()

    assert ask() is True
    while (wait := ask()) is not True:
        assert 0 < wait <= 0.001


@override_settings(MUSTER_API_RATE=0.01, MUSTER_API_BURST=2)
def test_while_redis_is_away_each_process_counts_by_itself(a_web_process: Any) -> None:
    one, other = a_web_process(QuietRedisCache(*NOWHERE)), a_web_process(QuietRedisCache(*NOWHERE))

    assert [one(), one(), other()] == [True, True, True]
    assert 90 < one() <= 100


def test_a_bucket_is_forgotten_once_it_would_be_full_again(a_web_process: Any) -> None:
    with override_settings(MUSTER_API_RATE=0.5, MUSTER_API_BURST=3):
        a_web_process()()

    client = caches["default"]._cache.get_client(None, write=True)
    name = caches["default"].make_key("rate:address:10.0.0.1")
    assert 0 < client.pttl(name) <= 7000
    assert settings.MUSTER_API_RATE == 0
