"""Every route, tried by every kind of caller: nobody reads a word of a project that is not theirs."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from typing import Any, Final

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import transaction
from django.http import HttpResponse

from infra.errors import MusterError
from scheduler.realtime import auth, topics
from tests.rights.callers import Caller, callers
from tests.rights.routes import Address, addresses, nameless, not_filled, operations, queries, routes
from tests.rights.world import FOREIGN, OTHER, SECRET_VALUE, VISION, Side, World, a_world

pytestmark = pytest.mark.django_db

#: These count or look at the whole machine, for minutes or with a process of their own.
SLOW: Final = ("audit/check", "/replay/")


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """One world for all of them; nothing of it stays."""
    logging.disable(logging.CRITICAL)  # a line for each of thousands of requests
    with pytest.MonkeyPatch.context() as patch, django_db_blocker.unblock(), transaction.atomic():
        # Nobody asks which templates a page had; to copy the context of each takes a good part of the time.
        patch.setattr("django.test.client.store_rendered_templates", lambda *args, **words: None)
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
        reads = method == "GET"
        cookies = None if reads else deepcopy(caller.client.cookies)  # as of somebody who has just signed out
        # A request that could write leaves nothing for the next. One that reads has no savepoint: there are thousands,
        # and one that breaks the transaction makes all others fail.
        with nullcontext() if reads else transaction.atomic():
            response = caller.client.generic(method, path, sent, content_type, headers=caller.headers)
            text = whole(response)
            if cookies is not None:
                transaction.set_rollback(True)
                caller.client.cookies = cookies
        self.requests[caller.name] += 1
        self.seen.add((caller.name, address.route))
        where = f"{method} {path} by {caller.name}: {response.status_code}"
        if response.status_code >= 500:
            self.found.append(f"{where} fails")
        for echo in sorted({*address.echoes, *echoes}, key=len, reverse=True):
            text = text.replace(echo, "")
        for mark in (*caller.forbidden, SECRET_VALUE):
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


@pytest.mark.timeout(900)  # each route by each kind of caller
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
    assert not walk.found, "\n".join(walk.found[:40])


def _worth_asking(mark: str, address: Address, caller: Caller, walk: Walk) -> bool:
    """Each caller asks each route; one who may see some things and others not, with things of each project."""
    if any(word in address.path for word in SLOW) or not caller.asks(address.route):
        return False
    if mark != VISION and ("<" not in address.route or address.route.startswith("admin/")):
        return False
    if mark == OTHER and "held" not in caller.name:
        return False
    return not caller.once or (caller.name, address.route) not in walk.seen


def test_nobody_learns_of_them_by_what_they_send(
    world: World, everybody: list[Caller], record_property: Callable[[str, object], None]
) -> None:
    """Every operation that writes and every form, about foreign things; and jobs that name foreign things."""
    walk, known, foreign = Walk(), operations(), world[FOREIGN]
    for caller in everybody:
        if not caller.filters:
            continue
        for address in addresses(world, foreign):
            methods = known.get(nameless(address.route), {})
            if address.route.startswith("api/"):
                for method in set(methods) & {"post", "put", "patch", "delete"}:
                    walk.ask(caller, method.upper(), address, body={})
            elif not address.route.startswith("admin/") and caller.asks(address.route):
                walk.ask(caller, "POST", address, body="", content_type="application/x-www-form-urlencoded")
        for address, body, echoes in jobs_that_name(foreign):
            kind = "text/plain" if isinstance(body, str) else "application/json"
            walk.ask(caller, "POST", address, body=body, content_type=kind, echoes=echoes)

    record_property("counted", walk.counts("written"))
    assert not walk.found, "\n".join(walk.found[:40])


def jobs_that_name(side: Side) -> list[tuple[Address, Any, tuple[str, ...]]]:
    """Requests that name something of this side, or something that is nowhere, at each door that takes jobs."""
    ids, name = side.ids, f"{side.mark} queue"
    fields: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({}, ()),
        ({"queue": "nowhere"}, ()),
        ({"project": "nowhere"}, ()),
        ({"queue": ids["queue"]}, (ids["queue"],)),
        ({"queue": name}, (name,)),
        ({"queue": ids["queue_pk"]}, ()),
        ({"project": ids["project"]}, (ids["project"],)),
        ({"project": ids["project_pk"]}, ()),
        ({"depends_on": [ids["jobs"][0]]}, ()),
        ({"depends_on": [{"data": f"{side.mark}-images"}]}, (f"{side.mark}-images",)),
        ({"gpu_count": 4, "priority": 75, "node_selector": {"hall": "one"}}, ()),
    ]
    found: list[tuple[Address, Any, tuple[str, ...]]] = []
    for more, echoes in fields:
        job = {"command": "true", "name": "a job", **more}
        for path, body in (("jobs/preview", job), ("jobs", job), ("jobs:bulk", {"jobs": [job]})):
            found.append((Address(f"api/v1/{path}", f"/api/v1/{path}"), body, echoes))
    for option, value in (
        ("p", "nowhere"), ("p", ids["queue"]), ("p", ids["partition"]), ("A", "nowhere"), ("A", ids["project"]),
        ("d", f"afterok:{ids['jobs'][0]}"), ("-reservation", f"{side.mark} course".split()[0]), ("w", "alpha"),
    ):  # fmt: skip
        script = f"#!/bin/sh\n#SBATCH -{option} {value}\ntrue\n"
        found.append((Address("api/v1/slurm/sbatch", "/api/v1/slurm/sbatch"), script, (value,)))
    return found


def test_what_is_foreign_and_what_is_nowhere_are_answered_alike(
    world: World, everybody: list[Caller], record_property: Callable[[str, object], None]
) -> None:
    """No status, header or sentence tells a thing that one may not see from one that does not exist."""
    walk, differ = Walk(), []
    there, absent = world[FOREIGN], nowhere(world[FOREIGN])
    pairs = [
        (one, other, None, None)
        for one, other in zip(addresses(world, there), addresses(world, absent), strict=True)
        if one.route.startswith(("api/", "jobs/", "projects/", "quota/", "queues/"))
        and one.path != other.path
    ]
    pairs += [
        (one[0], other[0], one[1], other[1])
        for one, other in zip(jobs_that_name(there), jobs_that_name(absent), strict=True)
    ]
    for caller in everybody:
        for one, other, body, other_body in pairs:
            if not caller.filters or caller.user == world.cast.admin or not caller.asks(one.route):
                continue
            method, kind = (
                "GET" if body is None else "POST",
                "text/plain" if isinstance(body, str) else "application/json",
            )
            answers = [
                leveled(
                    walk.ask(caller, method, address, body=sent, content_type=kind, echoes=(FOREIGN,)), side
                )
                for address, sent, side in ((one, body, there), (other, other_body, absent))
            ]
            if answers[0] != answers[1] and max(answers)[0] >= 400:  # what is done gets numbers of its own
                differ.append(
                    f"{method} {one.path} {body} by {caller.name}: {answers[0]} but {answers[1]}"[:2400]
                )

    record_property("counted", walk.counts("alike"))
    assert not differ, "\n".join(differ[:40])


def nowhere(side: Side) -> Side:
    """The same names and numbers, of things that do not exist."""
    mark = "zabsentz"

    def absent(value: Any) -> Any:
        if isinstance(value, list):
            return [absent(one) for one in value]
        if isinstance(value, int):
            return 900_000_000 + value
        return "00000000-0000-4000-8000-000000000000" if len(value) == 36 else value.replace(side.mark, mark)

    ids = {name: absent(value) for name, value in side.ids.items()}
    return Side(mark, side.project, side.person, side.queue, side.partition, ids)


def leveled(response: HttpResponse, side: Side) -> tuple[int, str]:
    """Status and words, without what the caller sent and what differs from request to request."""
    text = whole(response).replace(response.get("X-Request-ID", "-"), "REQUEST")
    texts = [str(one) for ids in side.ids.values() for one in (ids if isinstance(ids, list) else [ids])]
    for value in sorted(texts, key=len, reverse=True):
        if not value.isdecimal():
            text = text.replace(value, "SENT")
    text = re.sub(r"did you mean \W?'[^']*'|did you mean [^?]*\?", "LIKE", text)
    text = re.sub(r"[\w-]{22,}", "RANDOM", text)  # nonces, CSRF tokens
    return response.status_code, re.sub(r"Content-Length: \d+|\d+", "N", text.replace(side.mark, "MARK"))


def test_nobody_hears_of_them_at_the_live_socket(
    world: World, everybody: list[Caller], record_property: Callable[[str, object], None]
) -> None:
    """Every topic, as each caller would be sent it: by session, by token, and by what is no good."""
    found, heard = [], 0
    numbers = [number for side in world.sides.values() for number in side.ids["jobs"]]
    for caller in everybody:
        viewer = auth.identify(_socket_of(caller), "10.0.0.7")
        if viewer is None:
            assert not caller.any_rights, f"{caller.name} has no socket"
            continue
        for kind, numbered in topics.KINDS.items():
            for name in [f"{kind}:{number}" for number in numbers] if numbered else [kind]:
                try:
                    rows = topics.open_source(topics.parse_topic(name), viewer).build()
                except MusterError as error:
                    rows = {"refused": {"message": str(error), "way_out": error.way_out}}
                heard += 1
                text = json.dumps(rows, default=str)
                found += [
                    f"{name} to {caller.name} shows {mark}" for mark in caller.forbidden if mark in text
                ]

    record_property(
        "counted", f"heard: {len(topics.KINDS)} kinds of topics, {heard:,} sources, {len(found)} found wrong"
    )
    assert not found, "\n".join(found[:40])


def _socket_of(caller: Caller) -> dict[str, Any]:
    if caller.token:
        return {"headers": [(b"authorization", f"Bearer {caller.token}".encode())]}
    signed_in = caller.user is not None and caller.user.is_active
    return {
        "headers": [],
        "user": caller.user if signed_in else AnonymousUser(),
        "session": caller.client.session,
    }
