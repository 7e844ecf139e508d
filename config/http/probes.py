"""Probes come first and wait for nobody: /livez from the event loop, /readyz from a thread of its own.

However many requests wait for a database that says nothing, both answer in time.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final

from config import health
from config.http.api_server import Answer, Application, OneHopHandler, Receive, Scope, Send

READY_PATHS: Final = ("/readyz", "/healthz")
#: What is not known by then is not well.
ANSWER_SECONDS: Final = 1.7
#: Of a plain question: a cookie would have the database asked whose it is.
KEPT_HEADERS: Final = (b"host", b"x-forwarded-proto", b"x-request-id")
PLAIN: Final = [(b"content-type", b"text/plain"), (b"cache-control", b"no-store")]
JSON: Final = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]


class ProbeDoor:
    """Answers probes and passes everything else on."""

    def __init__(self, inner: Application) -> None:
        self.inner = inner
        self.handler = OneHopHandler()
        # One looks; the second is for somebody who wants the details meanwhile.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="probes")
        self._looking: asyncio.Future[Answer] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/livez":
            await Answer(200, PLAIN, b"ok\n").give(send)
        elif scope["type"] == "http" and scope["path"] in READY_PATHS:
            await (await self._ready(scope)).give(send)
        else:
            await self.inner(scope, receive, send)

    async def _ready(self, scope: Scope) -> Answer:
        loop = asyncio.get_running_loop()
        looking: asyncio.Future[Answer] | None
        if scope.get("query_string"):  # with details, which depend on who asks
            looking = loop.run_in_executor(self._threads, copy_context().run, self.handler.answer, scope, b"")
        else:
            # One is asked at a time, about nobody; who comes meanwhile shares its answer.
            looking = self._looking
            if looking is None or looking.done():
                health.begin()
                plain = {**scope, "headers": [pair for pair in scope["headers"] if pair[0] in KEPT_HEADERS]}
                looking = self._looking = loop.run_in_executor(
                    self._threads, copy_context().run, self.handler.answer, plain, b""
                )
        try:
            return await asyncio.wait_for(asyncio.shield(looking), ANSWER_SECONDS)
        except TimeoutError:
            body = {"status": "unavailable", "failed": health.without_answer(), "degraded": []}
            return Answer(503, JSON, json.dumps(body).encode())
