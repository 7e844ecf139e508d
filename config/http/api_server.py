"""Serves the API and the pages from a few threads that keep their database connections: one hop each request.

Django's own ASGI handler makes a thread for every request and goes in and out of it at each middleware that
is synchronous; most of ours are, as are all views. Its error pages run in yet other threads, which keep a
connection that nobody looks at. Here the same middleware and the same views run as one piece of work in one
thread, from the request's first byte of body to its answer, error pages included.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from io import BytesIO
from typing import IO, Any, Final, NamedTuple

from django.conf import settings
from django.core import signals
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.core.handlers.exception import convert_exception_to_response, response_for_exception
from django.db import DatabaseError
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix
from django.utils.module_loading import import_string

from config.database.limits import LONG_STATEMENT_SECONDS
from config.http.front_door import watch
from infra import notifications
from infra.api.problems import API_PREFIX
from infra.db.connections import longer_statements
from infra.downloads import PulledResponse
from infra.request_cost import Caller, CallerGone, stop_if_caller_gone, until_caller_gone, working_for

log = logging.getLogger(__name__)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

#: At once in the API of one web process; more wait their turn, in memory.
THREADS: Final = 4
#: The same for pages.
PAGE_THREADS: Final = 8
#: Requests that wait for a thread or have one; more would wait longer than people do.
MOST_PAGES: Final = 400
BUSY: Final = b"Too many people ask at once. Try again in a few seconds.\n"
BUSY_HEADERS: Final = [
    (b"content-type", b"text/plain"),
    (b"retry-after", b"5"),
    (b"cache-control", b"no-store"),
]
#: At once in downloads, whose pieces come from elsewhere; one who reads slowly holds none of them.
PULL_THREADS: Final = 8
#: A download is sent in such pieces, and kept on disk beyond so much.
PIECE_BYTES: Final = 256 * 1024
SPOOL_BYTES: Final = 2 * 1024 * 1024


class ApiDoor:
    """Answers `/api/*` and downloads, and passes everything else on."""

    def __init__(self, inner: Application, *, threads: int = THREADS) -> None:
        self.inner = inner
        self.handler = OneHopHandler()
        self.token_handler = OneHopHandler(settings.TOKEN_MIDDLEWARE)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="api")
        self._pulling = ThreadPoolExecutor(PULL_THREADS, thread_name_prefix="downloads")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (_path(scope).startswith(API_PREFIX) or _is_file(scope)):
            await self.inner(scope, receive, send)
            return
        body = await read_body(receive)
        if body is None:
            return
        by_token = _path(scope).startswith(API_PREFIX) and bearer_token(scope) is not None
        handler = self.token_handler if by_token else self.handler
        await _answer(self._threads, handler, scope, body, receive, send, pulling=self._pulling)


class PageDoor:
    """Answers all the rest: pages, the admin, static files."""

    def __init__(self, *, threads: int = PAGE_THREADS) -> None:
        self.handler = OneHopHandler()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="pages")
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._inside >= MOST_PAGES:
            await Answer(503, BUSY_HEADERS, BUSY).give(send)
            return
        self._inside += 1
        try:
            body = await read_body(receive)
            if body is not None:
                await _answer(self._threads, self.handler, scope, body, receive, send)
        finally:
            self._inside -= 1


async def _answer(
    threads: ThreadPoolExecutor,
    handler: OneHopHandler,
    scope: Scope,
    body: bytes,
    receive: Receive,
    send: Send,
    *,
    pulling: ThreadPoolExecutor | None = None,
) -> None:
    """One piece of work in one of these threads, for as long as its caller waits.

    An answer that is pulled (`infra.downloads`) gets its pieces in one of the threads for that.
    """
    with working_for(Caller()) as caller:
        watcher = asyncio.ensure_future(watch(receive, caller))
        try:
            answer = await asyncio.get_running_loop().run_in_executor(
                threads, copy_context().run, handler.answer, scope, body
            )
            if answer.pulled is not None:
                await _pull(answer, pulling, send, caller)
            else:
                await answer.give(send, caller)
        except CallerGone:
            log.info("caller_gone", extra={"path": scope["path"]})
        finally:
            watcher.cancel()


class Answer(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    #: What comes before the body, of an answer that may be larger than memory.
    file: IO[bytes] | None = None
    #: The pieces of an answer that come from elsewhere: one is taken when the last one was sent.
    pulled: Iterator[bytes] | None = None

    async def give(self, send: Send, caller: Caller | None = None) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        if self.file is not None:
            with self.file as file:
                while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                    if caller is not None and caller.gone:
                        return
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": self.body})


async def _pull(answer: Answer, threads: ThreadPoolExecutor | None, send: Send, caller: Caller) -> None:
    """Send pieces as they come. An error on the way, after the headers, ends the connection before the answer's end."""
    pieces = answer.pulled
    assert pieces is not None
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    loop = asyncio.get_running_loop()
    try:
        while (piece := await loop.run_in_executor(threads, next, pieces, None)) is not None:
            if caller.gone:
                return
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            await loop.run_in_executor(threads, close)
    await send({"type": "http.response.body", "body": b""})


class OneHopHandler(ASGIHandler):
    """Django's handler with its middleware in the synchronous form, as under WSGI; `middleware` are other ones."""

    def __init__(self, middleware: Sequence[str] | None = None) -> None:
        BaseHandler.__init__(self)  # the other one's would load the asynchronous form
        if middleware is None:
            self.load_middleware(is_async=False)
        else:
            self._load(middleware)

    def _load(self, names: Sequence[str]) -> None:
        """What `load_middleware` does with those of the settings, for middleware that all have a synchronous form."""
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        chain: Any = convert_exception_to_response(self._get_response)  # type: ignore[attr-defined]
        for name in reversed(names):
            one = import_string(name)(chain)
            if hasattr(one, "process_view"):
                self._view_middleware.insert(0, one.process_view)
            if hasattr(one, "process_template_response"):
                self._template_response_middleware.append(one.process_template_response)
            if hasattr(one, "process_exception"):
                self._exception_middleware.append(one.process_exception)
            chain = convert_exception_to_response(one)
        self._middleware_chain = chain

    def answer(self, scope: Scope, body: bytes) -> Answer:
        """Raises CallerGone where nobody waits any more: before the work, or between two pieces of a file."""
        stop_if_caller_gone()
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, refusal = self.create_request(scope, BytesIO(body))
        response: Any
        with notifications.deferred():
            response = refusal if request is None else self.get_response(request)
        response._handler_class = self.__class__
        if isinstance(response, PulledResponse):  # not closed yet: that would end its pieces
            signals.request_finished.send(sender=self.__class__)
            pieces: Any = response.streaming_content
            return Answer(response.status_code, _headers(response), pulled=iter(pieces))
        try:
            if response.streaming:
                try:
                    with longer_statements(LONG_STATEMENT_SECONDS) if _is_export(scope) else nullcontext():
                        return Answer(response.status_code, _headers(response), file=_written(response))
                except (DatabaseError, OSError) as error:  # nothing of it has been sent: it can still be said
                    response.close()
                    assert request is not None  # a refusal is not streamed
                    response = response_for_exception(request, error)
            return Answer(response.status_code, _headers(response), b"".join(response))
        finally:
            response.close()


def _written(response: HttpResponseBase) -> IO[bytes]:
    """A long answer, written down as fast as the database gives it: who reads slowly holds neither it nor a thread."""
    file = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115
    try:
        for piece in until_caller_gone(response, every=1):
            file.write(piece)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _headers(response: HttpResponseBase) -> list[tuple[bytes, bytes]]:
    headers = [(name.encode("ascii"), value.encode("latin1")) for name, value in response.items()]
    for cookie in response.cookies.values():
        headers.append((b"Set-Cookie", cookie.output(header="").strip().encode("ascii")))
    return headers


#: Ends of the addresses of what is downloaded of a job.
_JOB_FILES: Final = ("/log/", "/artifacts/file/", "/results/file/", "/results/archive/")


def _is_file(scope: Scope) -> bool:
    """The portal's own downloads. Django's asynchronous handler would hold all of one in memory before it is sent."""
    path = _path(scope)
    exports = path in ("/usage/ledger/", "/usage/jobs/") and b"export=" in scope.get("query_string", b"")
    return exports or (path.startswith("/jobs/") and path.endswith(_JOB_FILES))


def bearer_token(scope: Scope) -> str | None:
    """The token of a request that says whose it is with nothing but a bearer token; None of any other."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, token = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else None


def _is_export(scope: Scope) -> bool:
    return b"export=" in scope.get("query_string", b"")


def _path(scope: Scope) -> str:
    return str(scope["path"]).removeprefix(str(scope.get("root_path", "")))


async def read_body(receive: Receive) -> bytes | None:
    """The body, and a little more than is allowed of one that is too large; None when the caller hung up."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        if size <= settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            parts.append(part)
            size += len(part)
        if not message.get("more_body"):
            return b"".join(parts)
