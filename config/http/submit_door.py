"""A short way for requests of programs that submit one job: no thread of their own, and no chain of middleware.

It takes only the plainest requests, and answers only those whose job was accepted. Everything else goes
on to the API's own door, which answers as for every other request: nothing was written by then.
docs/decisions/0042 lists what of the chain is done here, and how, and what is left out.
"""

from __future__ import annotations

import asyncio
import time
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final

import structlog
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.common import CommonMiddleware
from django.middleware.security import SecurityMiddleware
from django.urls import resolve
from django_structlog.app_settings import app_settings as log_settings

from config.http.api_server import Answer, Application, Receive, Scope, Send, bearer_token, read_body
from config.http.front_door import watch
from config.http.rates import Throttle
from config.http.request_ids import request_id_of
from config.http.security import PERMISSIONS, content_policy, new_nonce
from config.metrics import count_request
from infra import tracing
from infra.api.problems import PROBLEM_TYPE, problem
from infra.api.rest import READ_BODY, as_json
from infra.client_address import of_scope
from infra.db.groups import Groups
from infra.errors import MusterError
from scheduler.api.jobs import Jobs
from scheduler.api.submissions.group import Accepted, Call, SubmitGroup, busy
from scheduler.api.submissions.group import Answer as Outcome

log = structlog.get_logger(__name__)

PATH: Final = "/api/v1/jobs"
#: Of a body; what is larger takes its time, and is written by itself.
MOST_BYTES: Final = 64 * 1024
#: In one transaction, and in memory before it.
MOST_TOGETHER: Final = 64
MOST_WAITING: Final = 400
#: For programs that submit at once to share a group more often.
GATHER_SECONDS: Final = 0.005
#: Who waits longer than most is asked whether it still does.
LOOK_SECONDS: Final = 0.25
#: Headers with which a request is none of the plainest.
SPECIAL: Final = frozenset(
    {b"idempotency-key", b"content-encoding", b"transfer-encoding", b"x-forwarded-host", b"expect"}
)


class SubmitDoor:
    """Answers `POST /api/v1/jobs` of tokens in groups, and passes everything else on."""

    def __init__(self, inner: Application) -> None:
        self.inner = inner
        self._groups: Groups[Call, Outcome] = Groups(
            "submissions", SubmitGroup(Throttle.wait_of), most=MOST_TOGETHER, waiting=MOST_WAITING,
            gather_seconds=GATHER_SECONDS,
        )  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _token_of(scope)
        if token is None:
            await self.inner(scope, receive, send)
            return
        began = time.perf_counter()
        body = await read_body(receive)
        if body is None:
            return
        again = _Again(body, receive)
        client = of_scope(scope)
        headers = _headers_of(_header(scope, b"host"), client.secure)
        if headers is None or len(body) > MOST_BYTES:
            await self.inner(scope, again, send)
            return
        request_id = request_id_of(_header(scope, b"x-request-id"))
        span = _span_of(scope) if tracing.is_on() else None
        call = Call(
            token=token, client=client, request_id=request_id, body=body,
            traceparent=span.traceparent if span else "",
        )  # fmt: skip
        outcome = await self._outcome(call, receive)
        if outcome is None:
            read = {READ_BODY: call.payload} if call.payload is not None else {}
            await self.inner({**scope, **read}, again, send)
            return
        answer = _answer_of(outcome, call, headers)
        await answer.give(send)
        _note(call, outcome, answer.status, seconds=time.perf_counter() - began)
        if span is not None:
            span.end(_route(), answer.status)

    async def _outcome(self, call: Call, receive: Receive) -> Outcome | MusterError:
        """What became of it, however long that takes; a caller who hangs up meanwhile is noted in the call."""
        try:
            waiting = asyncio.wrap_future(self._groups.submit(call))
        except MusterError:  # too many wait
            return busy()
        watcher: list[asyncio.Task[None]] = []
        later = asyncio.get_running_loop().call_later(
            LOOK_SECONDS, lambda: watcher.append(asyncio.ensure_future(watch(receive, call.caller)))
        )
        try:
            return await waiting
        except MusterError as error:
            return error
        finally:
            later.cancel()
            for task in watcher:
                task.cancel()


class _Again:
    """The messages of a request whose body has been read, for the next door."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}


# ---------------------------------------------------------------- which requests


def _token_of(scope: Scope) -> str | None:
    """The bearer token of one of the plainest requests to submit a job; None of any other."""
    if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != PATH:
        return None
    if scope.get("root_path") or scope.get("query_string"):
        return None
    if any(name in SPECIAL for name, _ in scope["headers"]):
        return None
    kind = _header(scope, b"content-type").partition(";")[0].strip().lower()
    return bearer_token(scope) if kind == "application/json" else None


def _span_of(scope: Scope) -> tracing.ServedRequest:
    """The span of a request; where the next door answers it, that one begins its own, and this one is never sent."""
    given = {name: _header(scope, name.encode()) for name in tracing.HEADERS}
    return tracing.ServedRequest("POST", {name: value for name, value in given.items() if value})


def _header(scope: Scope, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), "")


# ---------------------------------------------------------------- answers


@lru_cache(maxsize=256)
def _headers_of(host: str, secure: bool) -> tuple[tuple[bytes, bytes], ...] | None:
    """What Django's own middleware adds to every answer at this host; None where it would not let a request pass."""
    request = HttpRequest()
    request.method, request.path, request.path_info = "POST", PATH, PATH
    request.META = {"HTTP_HOST": host, "SERVER_NAME": "", "SERVER_PORT": ""}
    request._get_scheme = lambda: "https" if secure else "http"  # type: ignore[attr-defined]
    passed = HttpResponse(status=201)
    chain = SecurityMiddleware(CommonMiddleware(XFrameOptionsMiddleware(lambda _: passed)))
    try:
        if chain(request) is not passed:
            return None
    except DisallowedHost:
        return None
    ours = ("content-type", "content-length")
    return tuple(
        (name.encode(), value.encode("latin-1")) for name, value in passed.items() if name.lower() not in ours
    )


def _answer_of(
    outcome: Accepted | MusterError, call: Call, headers: tuple[tuple[bytes, bytes], ...]
) -> Answer:
    if isinstance(outcome, Accepted):
        status, kind, body = 201, "application/json", outcome.body
        more = [(b"Location", outcome.location.encode())]
        limits = Throttle.headers_of(call.counted_as)
        more += [(name.encode(), value.encode()) for name, value in limits.items()]
        more += [(b"Vary", b"Accept-Encoding")]
    else:
        status, kind = outcome.status, PROBLEM_TYPE
        said: Any = SimpleNamespace(request_id=call.request_id)
        body = as_json(
            problem(said, status=status, code=outcome.code, detail=outcome.message, way_out=outcome.way_out,
                    extra=outcome.extra)
        )  # fmt: skip
        wait = outcome.extra.get("retry_after_seconds")
        more = [(b"Retry-After", str(wait).encode())] if wait is not None else []
    return Answer(
        status,
        [
            (b"Content-Type", kind.encode()),
            *more,
            (b"Allow", _allowed()),
            (b"Content-Length", str(len(body)).encode()),
            (b"Content-Security-Policy", content_policy(PATH, new_nonce()).encode()),
            (b"Permissions-Policy", PERMISSIONS.encode()),
            *headers,
            (b"X-Request-ID", call.request_id.encode()),
        ],
        body,
    )


@lru_cache
def _allowed() -> bytes:
    view = Jobs()
    view.setup(HttpRequest())
    return ", ".join(view.allowed_methods).encode()


@lru_cache
def _route() -> str:
    return str(resolve(PATH).route)


def _note(call: Call, outcome: Accepted | MusterError, status: int, *, seconds: float) -> None:
    """The metrics and the log line of an answered request."""
    count_request("POST", _route(), status, seconds=seconds)
    accepted = isinstance(outcome, Accepted)
    level = log_settings.STATUS_2XX_LOG_LEVEL if accepted else log_settings.STATUS_5XX_LOG_LEVEL
    log.log(
        level, "request_finished", code=status, request=f"POST {PATH}", request_id=call.request_id,
        ip=call.client.address, user_id=outcome.user_id if isinstance(outcome, Accepted) else None,
    )  # fmt: skip
