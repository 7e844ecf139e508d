"""The lease of the planner while everybody else has all connections of the database, and all of its attention."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection, connections
from django.test import Client

from scheduler.models import Job
from scheduler.state.lease import leases
from tests.support.factories import JobFactory, UserFactory, bearer

pytestmark = pytest.mark.django_db(transaction=True)

#: As the planner's own.
SECONDS = 10.0
LISTERS = 4


@pytest.fixture
def no_connection_left() -> Iterator[None]:
    """Hold every connection that the server has for ordinary accounts."""
    held: list[psycopg.Connection] = []
    words = connection.get_connection_params()
    words = {name: words[name] for name in ("dbname", "user", "password", "host", "port") if name in words}
    with pytest.raises(psycopg.OperationalError, match=r"remaining connection slots|too many clients"):
        _take_all(held, words)
    yield
    for one in held:
        one.close()


def _take_all(held: list[psycopg.Connection], words: dict[str, object]) -> None:
    while True:
        held.append(psycopg.connect(**words))


class Listers:
    """Threads that ask for long lists of jobs, over and over, each with a connection of its own."""

    def __init__(self) -> None:
        user = UserFactory()
        JobFactory.create_batch(200, user=user)
        self.headers = bearer(user, "jobs:read")
        self.answers: list[int] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(LISTERS)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        client = Client(raise_request_exception=False)
        while not self._over.is_set():
            self.answers.append(client.get("/api/v1/jobs?limit=200", headers=self.headers).status_code)
        connections.close_all()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def test_t28_the_lease_is_renewed_in_time_while_lists_take_all_there_is(
    request: pytest.FixtureRequest,
) -> None:
    listers = Listers()
    try:
        while len(listers.answers) < LISTERS:
            threading.Event().wait(0.02)
        request.getfixturevalue("no_connection_left")
        before = len(listers.answers)
        lease = leases.acquire("cluster:1", holder="planner", seconds=SECONDS)
        assert lease is not None
        while len(listers.answers) < before + 3 * LISTERS:
            assert lease.trusted, "the renewal before came too late"
            lease = leases.renew(lease, seconds=SECONDS)
            threading.Event().wait(0.05)
    finally:
        listers.stop()

    assert lease.trusted
    assert leases.acquire("cluster:1", holder="another", seconds=SECONDS) is None, "nobody took it"
    assert set(listers.answers) <= {200, 503}
    assert Job.objects.count() == 200
