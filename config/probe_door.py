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
from config.api_door import Answer, Application, OneHopHandler, Receive, Scope, Send

READY_PATHS: Final = ("/readyz", "/healthz")
#: What is not known by then is not well.
ANSWER_SECONDS: Final = 1.7
PLAIN: Final = [(b"content-type", b"text/plain"), (b"cache-control", b"no-store")]
JSON: Final = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]


class ProbeDoor:
    """Answers probes and passes everything else on."""

    def __init__(self, inner: Application) -> None:
        self.inner = inner
        self._handler = OneHopHandler()
        # One looks; the second is for somebody who wants the details meanwhile.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="probes")
        self._looking: dict[tuple[str, bytes], asyncio.Future[Answer]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/livez":
            await Answer(200, PLAIN, b"ok\n").give(send)
        elif scope["type"] == "http" and scope["path"] in READY_PATHS:
            await (await self._ready(scope)).give(send)
        else:
            await self.inner(scope, receive, send)

    async def _ready(self, scope: Scope) -> Answer:
        loop = asyncio.get_running_loop()
        details = scope.get("query_string", b"")
        key = (scope["path"], details)
        # Of plain questions one is asked at a time, and who comes meanwhile shares its answer; an answer with
        # details depends on who asks.
        found = self._looking.get(key) if not details else None
        if found is None or found.done():
            found = loop.run_in_executor(self._threads, copy_context().run, self._handler.answer, scope, b"")
            self._looking[key] = found
        try:
            return await asyncio.wait_for(asyncio.shield(found), ANSWER_SECONDS)
        except TimeoutError:
            body = {"status": "unavailable", "failed": health.without_answer(), "degraded": []}
            return Answer(503, JSON, json.dumps(body).encode())
