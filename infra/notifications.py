"""Hints that something has changed: after commit, one Redis channel, no promise.

The rows are the truth: pages look again by themselves and clocks run anyway, so a lost hint costs time and
nothing else, and a Redis that is down never fails a request.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final

import redis
import structlog
from django.conf import settings
from django.db import transaction

from infra.circuits.memory import redis_circuit, redis_raised

log = structlog.get_logger(__name__)

#: One channel carries all hints; each web process listens once and fans out (scheduler.relay).
CHANNEL: Final = "muster:live"

#: What asks planners for a cycle; each planner listens to it (scheduler.services.planning.wakeups).
PLANNERS_CHANNEL: Final = "muster:planners"

#: Limits, budgets and what was asked for.
QUOTAS_TOPIC: Final = "quotas"


def user_topic(user_id: int) -> str:
    return f"user:{user_id}"


def project_topic(project_id: int) -> str:
    return f"project:{project_id}"


def announce(*topics: str) -> None:
    """Tell listeners of these topics to look again, once the current transaction has committed."""
    announce_many(topics)


def announce_many(topics: Iterable[str]) -> None:
    wanted = sorted(set(topics))
    if wanted:
        transaction.on_commit(lambda: publish(wanted), robust=True)


def publish(topics: list[str]) -> None:
    """Tell them: now, or from a door with `deferred` a moment later."""
    if _deferred.get():
        sender.tell(topics)
    else:
        _publish(topics)


def defer(key: Hashable, call: Callable[[], None]) -> None:
    """Do what sends a hint: now, or once a moment later however often it was asked for under this key."""
    if _deferred.get():
        sender.call(key, call)
    else:
        call()


@contextmanager
def deferred() -> Iterator[None]:
    """Let hints of this block go their way beside the request, which does not wait for Redis then."""
    before = _deferred.get()
    _deferred.set(True)
    try:
        yield
    finally:
        _deferred.set(before)


_deferred: ContextVar[bool] = ContextVar("muster_hints_from_a_thread", default=False)

#: The first hint after a silence goes at once; those of so long after it go together.
PAUSE_SECONDS: Final = 0.05


class Sender:
    """Sends hints from a thread of its own; what comes up while it sends or rests goes together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: set[str] = set()
        self._calls: dict[Hashable, Callable[[], None]] = {}
        self._due = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self, topics: Iterable[str]) -> None:
        with self._lock:
            self._topics.update(topics)
            self._wake()

    def call(self, key: Hashable, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls[key] = call
            self._wake()

    def _wake(self) -> None:
        if not self._due.is_set():
            self._due.set()
        if self._thread is None or not self._thread.is_alive():  # not yet, or this is a fork
            self._thread = threading.Thread(target=self._run, name="hints", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            self.send()
            time.sleep(PAUSE_SECONDS)

    def send(self) -> None:
        with self._lock:
            topics, self._topics = sorted(self._topics), set()
            calls, self._calls = list(self._calls.values()), {}
        if topics:
            _publish(topics)
        for call in calls:
            try:
                call()
            except Exception as error:  # the next hint goes its way anyway
                log.warning("hints_unavailable", what="send", error=str(error))


sender = Sender()


def _publish(topics: list[str]) -> None:
    _say(CHANNEL, {"topics": topics}, what="publish")


def _say(channel: str, said: Any, *, what: str) -> None:
    """One hint; while the circuit of Redis is open it is dropped, so that nobody waits for a time-out."""
    if not redis_circuit.may_call():
        return
    try:
        client().publish(channel, json.dumps(said))
    except redis.RedisError as error:
        redis_raised(error)
        log.warning("hints_unavailable", what=what, error=str(error))
    else:
        redis_circuit.answered()


def wake_planners(cluster_id: int | None, *, trigger: str) -> None:
    """Ask the planner of a cluster (None: those of all) for a cycle, once the current transaction has committed."""
    transaction.on_commit(
        lambda: defer(("wake", cluster_id), lambda: publish_wake(cluster_id, trigger)), robust=True
    )


def publish_wake(cluster_id: int | None, trigger: str) -> None:
    """Ask now; where Redis is away, planners look every few seconds by themselves."""
    _say(PLANNERS_CHANNEL, {"cluster": cluster_id, "trigger": trigger}, what="wake planner")


def redis_answers() -> bool:
    """Whether what needs Redis may be begun now: at most a second, and no time at all while its circuit is open."""
    if not redis_circuit.may_call():
        return False
    try:
        client().ping()
    except redis.RedisError as error:
        redis_raised(error)
        log.warning("hints_unavailable", what="ping", error=str(error))
        return False
    redis_circuit.answered()
    return True


@lru_cache(maxsize=1)
def client() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1.0, socket_connect_timeout=0.5)
