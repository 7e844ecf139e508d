"""The short way of a program's job: what comes back is what the API's own door says, and nothing is checked less."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.db import OperationalError, connections
from django.test import override_settings
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from accounts.models import ApiToken, AuditEvent, User
from accounts.services.audit_check import verify
from accounts.services.tokens import revoke_token
from config.http import rates, submit_door
from config.http.api_server import ApiDoor
from config.http.submit_door import SubmitDoor
from infra.api import rest
from scheduler.api.submissions import group
from scheduler.models import Job, JobEvent, Queue
from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import a_token
from tests.support.patience import patience

pytestmark = pytest.mark.django_db(transaction=True)
JOBS = "/api/v1/jobs"
Reply = tuple[int, dict[str, str], Any]


async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


class Doors:
    """The short way in front of the API's own door; `passed_on` are the requests that reached the latter."""

    def __init__(self) -> None:
        self.api = ApiDoor(elsewhere, threads=4)
        self.passed_on: list[str] = []
        self.short = SubmitDoor(self._pass_on)

    async def _pass_on(self, scope: Any, receive: Any, send: Any) -> None:
        self.passed_on.append(scope["path"])
        await self.api(scope, receive, send)

    def post(self, token: str, body: bytes | dict[str, Any], *, door: Any = None, **headers: str) -> Reply:
        return asyncio.run(self.send(token, body, door=door, **headers))

    async def send(
        self, token: str, body: bytes | dict[str, Any], *, door: Any = None, path: str = JOBS, **headers: str
    ) -> Reply:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {
            "host": "localhost", "content-type": "application/json", "content-length": str(len(raw)),
            "authorization": f"Bearer {token}",
        } | {name.replace("_", "-"): value for name, value in headers.items()}  # fmt: skip
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "client": ("127.0.0.1", 4000), "server": ("localhost", 80),
        }  # fmt: skip
        call = ApplicationCommunicator(door or self.short, scope)
        await call.send_input({"type": "http.request", "body": raw[:7], "more_body": True})
        await call.send_input({"type": "http.request", "body": raw[7:]})
        start = await call.receive_output(patience(20))
        rest = await call.receive_output(patience(20))
        await call.wait(patience(20))
        headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        return start["status"], headers, json.loads(rest["body"])

    def many(self, calls: list[tuple[str, dict[str, Any]]]) -> list[Reply]:
        """All of them at once."""

        async def all_of_them() -> list[Reply]:
            return list(await asyncio.gather(*(self.send(token, body) for token, body in calls)))

        return asyncio.run(all_of_them())

    def close(self) -> None:
        """The connections of its threads."""
        barrier = threading.Barrier(4)

        def leave() -> None:
            connections.close_all()
            barrier.wait(patience(20))

        for done in [self.api._threads.submit(leave) for _ in range(4)]:
            done.result(patience(20))
        self.short._groups.close()


@pytest.fixture
def portal(transactional_db: None) -> Portal:
    return a_portal()


@pytest.fixture
def doors(portal: Portal) -> Iterator[Doors]:
    submit_door._headers_of.cache_clear()
    doors = Doors()
    yield doors
    doors.close()
    submit_door._headers_of.cache_clear()


def same(reply: Reply) -> Reply:
    """Without what differs between any two answers."""
    status, headers, body = reply
    headers = {name: re.sub(r"nonce-[\w-]+|[0-9a-f-]{32,36}$", "*", value) for name, value in headers.items()}
    body = {
        name: value for name, value in body.items()
        if name not in ("id", "number", "job_id", "request_id", "array_id", "reason") and not name.endswith("_at")
    }  # fmt: skip
    headers.pop("content-length")
    return status, headers, body


# ---------------------------------------------------------------- the same answers


@pytest.mark.parametrize(
    "job",
    [
        {"command": "true"},
        {"command": "echo äöü \u2028", "name": "ünïcode", "env": {"A": "1"}, "cpu_cores": 0.5, "hold": True},
        {"script": "#!/bin/sh\ntrue\n", "labels": {"a": "b"}, "priority": "HIGH", "array": "0-3%2"},
    ],
)
@pytest.mark.parametrize("given", [{}, {"x_request_id": "my-own-id-1"}, {"x_request_id": "no good"}])
def test_an_accepted_job_is_answered_as_by_the_long_way(
    doors: Doors, portal: Portal, job: dict[str, Any], given: dict[str, str]
) -> None:
    token = a_token(portal.cast.owner, "jobs:write")

    short = doors.post(token, job, **given)
    assert not doors.passed_on
    long = doors.post(token, job, door=doors.api, **given)

    assert short[0] == 201, short
    assert same(short) == same(long)
    assert (short[1]["x-request-id"] == "my-own-id-1") is (given.get("x_request_id") == "my-own-id-1")
    assert short[1]["location"] == f"{JOBS}/{short[2]['id']}"
    for _, _, body in (short, long):
        assert body["job_id"] == (f"{body['number']}_0" if "array" in job else str(body["number"]))
        assert body["array_id"] == (body["number"] if "array" in job else None)
    first, last = AuditEvent.objects.filter(action="job.submit").order_by("id")
    assert first.request_id == short[1]["x-request-id"]
    for name in ("actor_id", "actor_name", "token_prefix", "address", "object_type", "project_id"):
        assert getattr(first, name) == getattr(last, name), name
    assert [one.after | {"first": 0, "last": 0} for one in (first, last)] == [
        last.after | {"first": 0, "last": 0}
    ] * 2
    events = JobEvent.objects.order_by("job_id").values_list("kind", "because", "actor", "details")
    assert len(set(map(str, events))) == 1
    assert verify().ok


WRONG: dict[str, Any] = {
    "a command that is empty": {"command": ""},
    "a field that does not exist": {"command": "true", "cpus": 1},
    "a project of others": {"command": "true", "project": "not-mine"},
    "a list": [1],
    "no JSON": b"{",
    "no UTF-8": b'{"command": "\xff"}',
    "a NUL": {"command": "a\x00"},
    "too much": {"command": "true", "gpu_count": 999},
    "a huge array": {"command": "true", "array": "0-99999999"},
    "nothing": b"",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_refused_is_refused_by_the_long_way(doors: Doors, portal: Portal, wrong: str) -> None:
    token = a_token(portal.cast.owner, "jobs:write")
    body = WRONG[wrong]

    short = doors.post(token, body)
    denied = AuditEvent.objects.filter(outcome="denied").count()
    long = doors.post(token, body, door=doors.api)

    assert 400 <= short[0] < 500
    assert doors.passed_on == [JOBS]
    assert same(short) == same(long)
    assert AuditEvent.objects.filter(outcome="denied").count() == 2 * denied
    assert not Job.objects.exists()


def test_a_body_is_read_once_whoever_answers(
    doors: Doors, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[bytes] = []
    read = rest.parse_clean

    def reading(raw: bytes) -> Any:
        bodies.append(raw)
        return read(raw)

    monkeypatch.setattr(rest, "parse_clean", reading)
    monkeypatch.setattr(group, "parse_clean", reading)

    status, _, body = doors.post(
        a_token(portal.cast.owner, "jobs:write"), {"command": "true", "cpu_cores": -1}
    )

    assert (status, body["errors"][0]["field"]) == (422, "cpu_cores")
    assert (len(doors.passed_on), len(bodies)) == (1, 1)


def unknown(portal: Portal) -> str:
    return "muster_pat_aaaaaaaaaa_" + "a" * 40


def revoked(portal: Portal) -> str:
    plain = a_token(portal.cast.owner, "jobs:write")
    revoke_token(token=ApiToken.objects.get(prefix=plain.split("_")[2]), by=portal.cast.owner)
    return plain


def without_scope(portal: Portal) -> str:
    return a_token(portal.cast.owner, "jobs:read")


def of_a_closed_account(portal: Portal) -> str:
    plain = a_token(portal.cast.owner, "jobs:write")
    User.objects.filter(pk=portal.cast.owner.pk).update(is_active=False)
    return plain


@pytest.mark.parametrize("bad", [unknown, revoked, without_scope, of_a_closed_account, lambda _: "nonsense"])
def test_who_may_not_submit_is_told_so_by_the_long_way(
    doors: Doors, portal: Portal, bad: Callable[[Portal], str]
) -> None:
    token = bad(portal)

    short = doors.post(token, {"command": "true"})
    long = doors.post(token, {"command": "true"}, door=doors.api)

    assert short[0] in (401, 403)
    assert same(short) == same(long)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "special",
    [
        {"idempotency_key": "k"}, {"content_type": "text/plain"}, {"x_forwarded_host": "x"}, {"path": JOBS + ":bulk"},
        {"authorization": "Basic x"}, {"host": "evil.example"},
    ],
)  # fmt: skip
def test_what_is_not_plain_takes_the_long_way(doors: Doors, portal: Portal, special: dict[str, str]) -> None:
    doors.post(a_token(portal.cast.owner, "jobs:write"), {"command": "true"}, **special)

    assert len(doors.passed_on) == 1


def test_a_large_job_is_written_by_itself(doors: Doors, portal: Portal) -> None:
    token = a_token(portal.cast.owner, "jobs:write")

    assert doors.post(token, {"command": "true", "array": f"1-{group.MOST_JOBS + 1}"})[0] == 201
    assert doors.post(token, {"command": "x" * submit_door.MOST_BYTES})[0] == 201
    assert len(doors.passed_on) == 2


@override_settings(ALLOWED_HOSTS=["localhost"], SECURE_SSL_REDIRECT=True, SECURE_HSTS_SECONDS=60)
def test_without_tls_nobody_gets_in_where_tls_is_asked_for(doors: Doors, portal: Portal) -> None:
    doors.api = ApiDoor(elsewhere, threads=4)
    token = a_token(portal.cast.owner, "jobs:write")

    with override_settings(MUSTER_TRUSTED_PROXIES=["127.0.0.1"]):
        within = doors.post(token, {"command": "true"}, x_forwarded_proto="https")

    assert (within[0], within[1]["strict-transport-security"]) == (201, "max-age=60")
    assert not doors.passed_on
    assert submit_door._headers_of("localhost", False) is None


# ---------------------------------------------------------------- the same rules


def test_a_right_that_is_taken_back_is_gone_with_the_next_request(doors: Doors, portal: Portal) -> None:
    owner = portal.cast.owner
    token = a_token(owner, "jobs:write")
    assert doors.post(token, {"command": "true", "priority": 70})[0] == 201

    User.objects.filter(pk=owner.pk).update(priority_ceiling=60)
    assert doors.post(token, {"command": "true", "priority": 70})[0] == 403
    Queue.objects.filter(pk=portal.queue.pk).update(max_wall_seconds=60)
    assert doors.post(token, {"command": "true", "time_limit": 61})[0] == 422
    owner.memberships.all().delete()
    assert doors.post(token, {"command": "true"})[0] == 403
    revoke_token(token=ApiToken.objects.get(prefix=token.split("_")[2]), by=portal.cast.admin)
    assert doors.post(token, {"command": "true"})[0] == 401


def test_a_token_that_is_held_to_a_project_submits_to_no_other(doors: Doors, portal: Portal) -> None:
    from tests.support.factories import MembershipFactory, ProjectFactory

    owner = portal.cast.owner
    other = ProjectFactory()
    MembershipFactory(user=owner, project=other, role="lead")
    held, free = a_token(owner, "jobs:write", project=other), a_token(owner, "jobs:write")
    mine = {"command": "true", "project": portal.cast.project.slug}

    assert [reply[0] for reply in doors.many([(held, mine), (free, mine), (held, {"command": "true"})])] == [
        403, 201, 201,
    ]  # fmt: skip
    assert set(Job.objects.values_list("project", flat=True)) == {portal.cast.project.pk, other.pk}


@override_settings(MUSTER_API_RATE=0.01, MUSTER_API_BURST=3)
def test_the_throttle_counts_each_request_once(
    doors: Doors, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away:
        def take(self, *args: Any, **kwargs: Any) -> None:
            return None

    monkeypatch.setattr(rates, "cache", Away())
    monkeypatch.setattr(rates.Throttle, "own", rates.OwnBuckets())
    monkeypatch.setattr(rates.Throttle, "lots", rates.Lots())
    token = a_token(portal.cast.owner, "jobs:write")

    replies = [doors.post(token, {"command": "true"}) for _ in range(4)]

    assert [reply[0] for reply in replies] == [201, 201, 201, 429]
    assert int(replies[-1][1]["retry-after"]) > 50


def test_a_request_is_counted_and_leaves_a_line_in_the_log(doors: Doors, portal: Portal) -> None:
    def counted() -> float:
        labels = {"method": "POST", "route": "api/v1/jobs", "status": "201"}
        return REGISTRY.get_sample_value("muster_http_requests_total", labels) or 0.0

    before = counted()
    with capture_logs() as lines:
        _, headers, _ = doors.post(a_token(portal.cast.owner, "jobs:write"), {"command": "true"})

    assert counted() == before + 1
    (line,) = [line for line in lines if line["event"] == "request_finished"]
    assert line["request_id"] == headers["x-request-id"]
    assert (line["code"], line["request"], line["user_id"], line["ip"]) == (
        201, "POST /api/v1/jobs", portal.cast.owner.pk, "127.0.0.1",
    )  # fmt: skip


# ---------------------------------------------------------------- together


def test_a_storm_of_many_people_leaves_every_job_once_and_the_chains_whole(
    doors: Doors, portal: Portal
) -> None:
    people = [portal.cast.owner, portal.cast.colleague, portal.cast.lead]
    tokens = [a_token(person, "jobs:write") for person in people]
    calls = [
        (tokens[n % 3], {"command": f"run {n}"} if n % 7 else {"command": "true", "cpus": n})
        for n in range(120)
    ]

    replies = doors.many(calls)

    accepted = [reply[2] for reply in replies if reply[0] == 201]
    assert [reply[0] for reply in replies] == [201 if n % 7 else 422 for n in range(120)]
    assert {(job["number"], job["command"]) for job in accepted} == set(
        Job.objects.values_list("number", "command")
    )
    assert len({job["number"] for job in accepted}) == len(accepted) == Job.objects.count()
    assert JobEvent.objects.filter(kind="job.submitted").count() == len(accepted)
    assert AuditEvent.objects.filter(action="job.submit").count() == len(accepted)
    assert {job["user"] for job in accepted} == {person.username for person in people}
    assert verify().ok


def in_one_group(doors: Doors, count: int) -> None:
    """The next group begins once this number of calls wait."""
    groups: Any = doors.short._groups
    take = groups._take

    def when_all_wait() -> Any:
        while len(groups._members) < count:
            time.sleep(0.005)
        return take()

    groups._take = when_all_wait


def grouped(doors: Doors, calls: list[tuple[str, dict[str, Any]]]) -> list[Reply]:
    """All of them in one group."""
    in_one_group(doors, len(calls))
    return doors.many(calls)


def test_one_row_that_cannot_be_stored_keeps_no_other_out(
    doors: Doors, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = a_token(portal.cast.owner, "jobs:write")
    real = group.parse_job

    def too_long(payload: Any, **more: Any) -> Any:
        spec = real(payload, **more)
        if spec.command == "bad":
            spec.name = "x" * 300
        return spec

    monkeypatch.setattr(group, "parse_job", too_long)
    replies = grouped(doors, [(token, {"command": what}) for what in ("a", "bad", "b")])

    assert [reply[0] for reply in replies] == [201] * 3  # the long way reads it anew
    assert sorted(Job.objects.values_list("command", flat=True)) == ["a", "b", "bad"]
    assert len(doors.passed_on) == 3


def test_a_full_queue_refuses_the_last_of_a_group_only(doors: Doors, portal: Portal) -> None:
    Queue.objects.filter(pk=portal.queue.pk).update(max_pending_jobs=2)
    token = a_token(portal.cast.owner, "jobs:write")

    replies = grouped(doors, [(token, {"command": "true"})] * 3)

    assert [reply[0] for reply in replies] == [201, 201, 429]
    assert replies[2][2]["code"] == "queue-full"
    assert Job.objects.count() == 2


def test_a_commit_that_nobody_confirmed_is_not_tried_again(
    doors: Doors, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may be there: to write it once more could write it twice."""
    real = group.write_submissions

    def lost(submissions: Any) -> Any:
        real(submissions)
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(group, "write_submissions", lost)
    status, headers, body = doors.post(a_token(portal.cast.owner, "jobs:write"), {"command": "true"})

    assert (status, headers["content-type"], body["code"]) == (503, "application/problem+json", "unavailable")
    assert headers["retry-after"] == "5"
    assert body["request_id"] == headers["x-request-id"]
    assert not doors.passed_on
    assert Job.objects.count() == 1


def test_an_answer_that_cannot_be_made_does_not_write_the_job_again(
    doors: Doors, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **more: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(group, "new_job", broken)
    status, _, body = doors.post(a_token(portal.cast.owner, "jobs:write"), {"command": "true"})

    assert (status, body["code"]) == (500, "internal-error")
    assert Job.objects.count() == 1


# ---------------------------------------------------------------- who waits


def test_so_many_wait_and_the_next_is_told_to_come_again(doors: Doors, portal: Portal) -> None:
    doors.short._groups._limit = 0

    status, headers, body = doors.post(a_token(portal.cast.owner, "jobs:write"), {"command": "true"})

    assert (status, body["code"], headers["retry-after"]) == (503, "unavailable", "1")
    assert not Job.objects.exists()


def test_nothing_is_written_for_a_caller_who_has_gone_or_waited_too_long(
    doors: Doors, portal: Portal
) -> None:
    token = a_token(portal.cast.owner, "jobs:write")
    real = doors.short._groups._work

    def after_they_left(calls: Any) -> Any:
        for call in calls:
            if b"gone" in call.body:
                call.caller.leave()
            if b"late" in call.body:
                call.came_at -= group.MOST_SECONDS + 1
        return real(calls)

    doors.short._groups._work = after_they_left
    replies = grouped(doors, [(token, {"command": what}) for what in ("gone", "late", "c")])

    assert [reply[0] for reply in replies] == [503, 503, 201]
    assert list(Job.objects.values_list("command", flat=True)) == ["c"]


def test_a_caller_who_hangs_up_is_noticed_while_the_group_waits(
    doors: Doors, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = a_token(portal.cast.owner, "jobs:write")
    real = doors.short._groups._work
    left = threading.Event()

    def wait(calls: Any) -> Any:
        assert left.wait(patience(20))
        assert calls[0].caller._gone.wait(patience(20))
        return real(calls)

    doors.short._groups._work = wait

    async def hang_up() -> None:
        raw = b'{"command": "true"}'
        scope = {
            "type": "http", "method": "POST", "scheme": "http", "path": JOBS, "query_string": b"", "root_path": "",
            "headers": [
                (b"host", b"localhost"), (b"content-type", b"application/json"),
                (b"authorization", f"Bearer {token}".encode()),
            ],
            "client": ("127.0.0.1", 4000), "server": ("localhost", 80),
        }  # fmt: skip
        call = ApplicationCommunicator(doors.short, scope)
        await call.send_input({"type": "http.request", "body": raw})
        await asyncio.sleep(submit_door.LOOK_SECONDS * 1.5)
        await call.send_input({"type": "http.disconnect"})
        left.set()
        await call.receive_output(patience(20))
        await call.receive_output(patience(20))
        await call.wait(patience(20))

    asyncio.run(hang_up())

    assert not Job.objects.exists()
