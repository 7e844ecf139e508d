"""Every route, tried by every kind of caller: nobody reads a word of a project that is not theirs."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from django.db import transaction
from django.http import HttpResponse

from accounts import context
from accounts.errors import MusterError
from scheduler.realtime import auth, topics
from tests.rights.callers import Caller, callers
from tests.rights.routes import Address, addresses, nameless, not_filled, operations, queries, routes
from tests.rights.world import FOREIGN, OTHER, VISION, World, a_world

pytestmark = pytest.mark.django_db

WRITES: Final = ("POST", "PUT", "PATCH", "DELETE")
#: These count or look at the whole machine, for minutes or with a process of their own.
SLOW: Final = ("audit/check", "/replay/")


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """One world for all of them; nothing of it stays."""
    logging.disable(logging.CRITICAL)  # a line for each of thousands of requests
    with django_db_blocker.unblock(), transaction.atomic():
        yield a_world()
        transaction.set_rollback(True)
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def everybody(world: World) -> list[Caller]:
    return callers(world)


class Walk:
    """Sends requests, looks at all that comes back, and counts."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.found: list[str] = []
        self.seen: set[tuple[str, str]] = set()

    def ask(
        self, caller: Caller, method: str, address: Address, query: str = "", echoes: tuple[str, ...] = (),
        body: Any = None, content_type: str = "application/json",
    ) -> HttpResponse:  # fmt: skip
        path = f"{address.path}?{query}" if query else address.path
        sent = b"" if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        with transaction.atomic():  # a request that could write leaves nothing for the next
            response = caller.client.generic(method, path, sent, content_type, headers=caller.headers)
            text = whole(response)
            if method != "GET":
                transaction.set_rollback(True)
        self.requests[caller.name] += 1
        self.seen.add((caller.name, address.route))
        where = f"{method} {path} by {caller.name}: {response.status_code}"
        if response.status_code >= 500:
            self.found.append(f"{where} fails")
        for echo in sorted({*address.echoes, *echoes}, key=len, reverse=True):
            text = text.replace(echo, "")
        for mark in caller.forbidden:
            if at := text.find(mark) + 1:
                self.found.append(f"{where} shows {mark}: …{text[max(at - 80, 0) : at + 60]}…")
        return response

    def counts(self, what: str) -> str:
        tried = {route for _, route in self.seen}
        return (
            f"{what}: {len(tried):,} routes x {len(self.requests)} kinds of callers, "
            f"{sum(self.requests.values()):,} requests, {len(self.found)} found wrong"
        )


def whole(response: HttpResponse) -> str:
    """Status line, headers, cookies and every byte of the body, as text."""
    content = b"".join(response.streaming_content) if response.streaming else response.content
    head = "\n".join(f"{name}: {value}" for name, value in response.items())
    return f"{head}\n{response.cookies.output()}\n{content.decode('utf-8', 'replace')}"


def test_every_argument_of_a_route_can_be_filled_in() -> None:
    assert not_filled() == []


def test_every_operation_of_the_document_is_a_route() -> None:
    known = {nameless(route.plain) for route in routes()}

    assert sorted(set(operations()) - known) == []


def test_nobody_reads_of_projects_that_are_not_theirs(
    world: World, everybody: list[Caller], record_property: Callable[[str, object], None]
) -> None:
    """GET of each route by each caller: own, other and foreign things, in each format and with each filter."""
    walk, known = Walk(), operations()
    for mark in (VISION, OTHER, FOREIGN):
        for address in addresses(world, world[mark]):
            for caller in everybody:
                if _worth_asking(mark, address, caller, walk):
                    walk.ask(caller, "GET", address)
    for address in addresses(world, world[FOREIGN]):
        for query, echoes in queries(address.route, known, world[FOREIGN]):
            for caller in everybody:
                if caller.filters and caller.asks(address.route):
                    walk.ask(caller, "GET", address, query, echoes)

    record_property("counted", walk.counts("read"))
    assert walk.found == []


def _worth_asking(mark: str, address: Address, caller: Caller, walk: Walk) -> bool:
    """Each caller asks each route; one who may see some things and others not, with things of each project."""
    if any(word in address.path for word in SLOW) or not caller.asks(address.route):
        return False
    if mark != VISION and ("<" not in address.route or address.route.startswith("admin/")):
        return False
    if mark == OTHER and "held" not in caller.name:
        return False
    return not caller.once or (caller.name, address.route) not in walk.seen
