"""One connection of an agent for all its calls: each message is a call with a number, each answer names its call.

The calls are those of HTTP, with the same bodies and answers, read and done by the same code.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import structlog

from infra.errors import InvalidInput, MusterError
from scheduler.api.agent.reading import parse

log = structlog.get_logger(__name__)

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Outcome(NamedTuple):
    """The HTTP status of an answer, and its body."""

    status: int
    body: Mapping[str, Any]


#: Does a call by its name, with this body.
DoCall = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
#: Waits for a call, and makes its error an answer.
Settle = Callable[[Awaitable[Mapping[str, Any]]], Awaitable[Outcome]]

#: An agent has one call open for orders and sends reports and output beside it; more at a time are refused.
MAX_CALLS: Final = 8
#: RFC 6455 leaves 4000 to 4999 to applications: the key is not valid any more.
KEY_REPLACED: Final = 4401


class AgentStream:
    """Serves the calls of one agent until it hangs up, or until its key is not valid any more."""

    def __init__(self, do: DoCall, settle: Settle, receive: Receive, send: Send) -> None:
        self._do, self._settle, self._receive, self._send = do, settle, receive, send
        self._calls: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    async def serve(self) -> None:
        reading = asyncio.ensure_future(self._read())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({reading, over}, return_when=asyncio.FIRST_COMPLETED)
            if self._over.is_set():
                await self._send({"type": "websocket.close", "code": KEY_REPLACED, "reason": "bad-agent-key"})
        finally:
            left = [reading, over, *self._calls]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] != "websocket.receive":
                return
            if len(self._calls) >= MAX_CALLS:  # here, so that one who does not read the refusal sends no more
                await self._answer(message, refused=True)
                continue
            task = asyncio.ensure_future(self._answer(message))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _answer(self, message: Message, *, refused: bool = False) -> None:
        data = message.get("bytes") or (message.get("text") or "").encode()
        number, (status, body) = await self._outcome(data, refused=refused)
        text = json.dumps({"id": number, "status": status, "body": body}, separators=(",", ":"))
        with contextlib.suppress(OSError):  # it has hung up, and the answer waits for nobody
            await self._send({"type": "websocket.send", "text": text})
        if status == 401:
            self._over.set()

    async def _outcome(self, data: bytes, *, refused: bool) -> tuple[int, Outcome]:
        number = 0

        async def do() -> Mapping[str, Any]:
            nonlocal number
            sent = parse(data, "")
            given = sent.get("id")
            number = given if isinstance(given, int) else 0
            if refused:
                raise MusterError(
                    message=f"{MAX_CALLS} calls of this agent wait already.", code="too-many", status=429
                )
            body = sent.get("body")
            if not isinstance(body, dict):
                raise InvalidInput(message="`body` has to be a JSON object.")
            return await self._do(str(sent.get("call")), body)

        try:
            outcome = await self._settle(do())
        except Exception:  # a mistake of ours ends this call, not the stream
            log.exception("agent_call_broke")
            outcome = Outcome(
                500, {"status": 500, "code": "internal", "detail": "The server made a mistake."}
            )
        return number, outcome
