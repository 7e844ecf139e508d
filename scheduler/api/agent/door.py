"""The door for node agents: a small ASGI application beside Django's, so that thousands can wait in it.

A waiting agent costs a coroutine and nothing else. Inside Django's handler each would hold a thread, because
some of the middleware there is synchronous (docs/decisions/0006). Database work runs in a few threads.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar

import structlog
from django.conf import settings
from django.db import DatabaseError, DataError, InterfaceError, OperationalError, connections
from django.utils import timezone

from infra import client_address, notifications, request_context
from infra.db.connections import unit_of_work
from infra.db.error_messages import to_error
from infra.db.groups import Groups
from infra.db.prepared import keep_plans
from infra.errors import InvalidInput, MusterError
from scheduler import node_files, outbox
from scheduler.agent import PROTOCOL
from scheduler.agent.protocol import STREAM_PATH, Stop
from scheduler.api.agent.checkpoints import answer_checkpoint, get_piece, put_piece
from scheduler.api.agent.reading import (
    MAX_BODY_BYTES,
    AgentRefused,
    Reader,
    parse,
    read_chunks,
    read_files,
    read_kept,
    read_protocol,
    read_sync,
    read_usage,
    read_wait,
)
from scheduler.api.agent.stream import AgentStream, Outcome
from scheduler.node_files import files_topic
from scheduler.relay import Listener, relay
from scheduler.services.cluster import heartbeats, nodes
from scheduler.services.execution.agent_messages import (
    AgentAnswer,
    AgentMessage,
    agent_of_key,
    find_orders,
    take_reports,
)
from scheduler.services.execution.reports import BATCH
from scheduler.services.jobs import logs
from scheduler.services.jobs.usage import take_usage
from scheduler.services.results.kept import take_kept

log = structlog.get_logger(__name__)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")

PREFIX: Final = "/api/v1/agent/"
#: What an agent calls with its key: by HTTP, or over its stream.
_CALLS: Final = ("sync", "logs", "results", "files", "checkpoints", "usage")
#: Calls of which the message or the answer is a piece of a checkpoint; by HTTP alone.
_PUT_PIECE, _GET_PIECE = "piece", "piece-read"
#: At once in the storage: a checkpoint is read whole when it is complete.
STORAGE_THREADS: Final = 3
#: At once in the database beside reports and orders, which have a thread each; more wait in memory.
DATABASE_THREADS: Final = 2
#: At once in Redis for files of jobs.
FILE_THREADS: Final = 2
#: Requests for files that an agent gets at a time, and the longest that it waits for one.
MOST_FILE_REQUESTS: Final = 8
MOST_FILE_WAIT_SECONDS: Final = 10.0
#: How often a waiting call looks by itself: while hints arrive, and while Redis is away.
LOOK_SECONDS: Final = 5.0
LOOK_WITHOUT_HINTS_SECONDS: Final = 1.5
#: Agents that report, or that get their orders, within this of each other share a transaction.
LINGER_SECONDS: Final = 0.002
#: At most this number of agents get their orders in one transaction.
ORDERS_TOGETHER: Final = 64
#: The most that a node's row keeps of one that nobody knows.
MAX_PROTOCOL: Final = 32767
#: More messages of a kind are not kept waiting: their agents send them again.
MAX_WAITING: Final = 2000


class AgentDoor:
    """Answers `/api/v1/agent/*` itself and passes everything else on."""

    def __init__(self, inner: Application) -> None:
        self.inner = inner
        self._pool = ThreadPoolExecutor(DATABASE_THREADS, thread_name_prefix="agents")
        self._files = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="agents-files")
        self._storage = ThreadPoolExecutor(STORAGE_THREADS, thread_name_prefix="agents-storage")
        self._reports = _groups("reports", take_reports, most=BATCH, weight=lambda m: len(m.reports))
        self._orders = _groups("orders", find_orders, most=ORDERS_TOGETHER)
        self._keepers: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.inner(scope, receive, send)
            return
        self.keep_calls_open()
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket" and scope["path"] == STREAM_PATH:
            await self._stream(scope, receive, send)
        else:
            await self.inner(scope, receive, send)

    # ------------------------------------------------------------ HTTP

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, body = await self._settle(self._answer(scope, receive), scope["path"])
        except _Gone:
            return
        content = b"application/json" if status == 200 else b"application/problem+json"
        if isinstance(body, Piece):
            content, data = b"application/octet-stream", body.data
        else:
            data = json.dumps(body, separators=(",", ":")).encode()
        headers = [(b"content-type", content), (b"content-length", str(len(data)).encode())]
        if status == 503:
            headers.append((b"retry-after", b"1"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    async def _settle(self, answer: Awaitable[Mapping[str, Any]], path: str) -> Outcome:
        """Wait for an answer; an error becomes one."""
        try:
            return Outcome(200, await answer)
        except MusterError as error:
            return Outcome(error.status, _problem(error))
        except DataError as error:  # not that the database is away: to send it again would help nobody
            log.warning("agent_sent_bad_value", path=path, error=str(error))
            refused = InvalidInput(message="A value in the message cannot be stored.", code="bad-text")
            return Outcome(refused.status, _problem(refused))
        except (DatabaseError, InterfaceError, OSError) as error:
            log.warning("agent_call_failed", path=path, error=str(error))
            known = to_error(error)
            return Outcome(
                503,
                {
                    "title": "Try again",
                    "status": 503,
                    "code": known.code if known else "unavailable",
                    "detail": known.message if known else "The database is unavailable.",
                },
            )

    async def _answer(self, scope: Scope, receive: Receive) -> Mapping[str, Any]:
        verb = scope["path"].removeprefix(PREFIX).rstrip("/")
        if verb not in ("register", _PUT_PIECE, _GET_PIECE, *_CALLS):
            raise MusterError(message=f"There is nothing at {scope['path']}.", code="not-found", status=404)
        if scope["method"] != "POST":
            raise MusterError(message="Agents POST here.", code="method-not-allowed", status=405)
        headers = _headers(scope)
        if verb == _PUT_PIECE:
            query, data = scope.get("query_string", b""), await _read(receive)
            return await self._in_storage_thread(put_piece, _key(headers), query, data)
        body = parse(await _read(receive), headers.get("content-encoding", ""))
        if verb == _GET_PIECE:
            return Piece(await self._in_storage_thread(get_piece, _key(headers), body))
        if verb == "register":
            return await self._in_thread(_register, body, _address(scope))
        return await self._do(verb, _key(headers), body, receive)

    async def _do(
        self, call: str, key: str, body: Mapping[str, Any], receive: Receive | None = None
    ) -> dict[str, Any]:
        if call == "logs":
            return await self._in_thread(_logs, key, body)
        if call == "sync":
            return await self._sync(key, body, receive)
        if call == "results":
            return await self._in_thread(_results, key, body)
        if call == "usage":
            return await self._in_thread(_usage, key, body)
        if call == "files":
            return await self._exchange_files(key, body, receive)
        if call == "checkpoints":
            reads = body.get("op") in ("finish", "restore", "upload")
            return await (self._in_storage_thread if reads else self._in_thread)(answer_checkpoint, key, body)
        raise MusterError(message=f"There is no call {call}.", code="not-found", status=404)

    # ------------------------------------------------------------ one connection for all calls

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an agent's stream; one without a valid key is not let in, and its calls by HTTP say why."""
        key = _key(_headers(scope))
        await receive()  # websocket.connect
        status, _ = await self._settle(self._check(key), scope["path"])
        if status != 200:
            await send({"type": "websocket.close"})
            return
        await send({"type": "websocket.accept"})
        await AgentStream(
            lambda call, body: self._do(call, key, body),
            lambda answer: self._settle(answer, scope["path"]),
            receive,
            send,
        ).serve()

    async def _check(self, key: str) -> Mapping[str, Any]:
        await self._in_thread(agent_of_key, key)
        return {}

    # ------------------------------------------------------------ sync

    async def _sync(self, key: str, body: Mapping[str, Any], receive: Receive | None) -> dict[str, Any]:
        """Take what the agent says, and wait until there is something for it, or until the time is up.

        With `receive` the wait ends when the agent hangs up; over a stream the whole call is cancelled then.
        """
        if "inventory" in body:  # a large part to read: only of those who have a key
            await self._in_thread(agent_of_key, key)
        try:
            message = read_sync(key, body)
        except AgentRefused as refused:
            await self._in_thread(_note_refused, key, body, str(refused))
            raise
        until = time.monotonic() + min(read_wait(body) or 0.0, settings.MUSTER_SYNC_HOLD_SECONDS)
        stops: list[Stop] = []
        if message.reports:
            answer = await self._done(self._reports, message)
            if message.known is None:
                return _sync_answer(answer)
            stops = answer.orders.stops
        answer = await self._done(self._orders, message)
        answer.orders.stops += stops
        if answer.orders or time.monotonic() >= until:
            return _sync_answer(answer)
        again = replace(message, again=True)
        wanted = files_topic(answer.node.pk)
        async with relay().listen([outbox.node_topic(answer.node.pk), wanted]) as listener:
            # Once more now that we listen: what came in between made no sound.
            while not (answer := await self._done(self._orders, again)).orders:
                left = until - time.monotonic()
                if left <= 0:
                    break
                news = await _wait(listener, receive, min(left, self._look_seconds()))
                # Asked, for a listener gets all its topics when hints may have been missed.
                if wanted in news and await self._in_files_thread(node_files.has_requests, answer.node.pk):
                    return _sync_answer(answer) | {"files_wanted": True}
        return _sync_answer(answer)

    # ------------------------------------------------------------ files of jobs

    async def _exchange_files(
        self, key: str, body: Mapping[str, Any], receive: Receive | None
    ) -> dict[str, Any]:
        """Hand the agent's answers to their readers; give it further requests, and wait a moment for them."""
        node = (await self._in_thread(agent_of_key, key)).node
        answers, wait = read_files(body)
        until = time.monotonic() + min(wait, MOST_FILE_WAIT_SECONDS)
        if answers:
            await self._in_files_thread(node_files.give_answers, node.pk, answers)
        most = MOST_FILE_REQUESTS
        requests = await self._in_files_thread(node_files.take_requests, node.pk, most)
        if requests or wait <= 0:
            return {"requests": requests}
        async with relay().listen([files_topic(node.pk)]) as listener:
            while not (requests := await self._in_files_thread(node_files.take_requests, node.pk, most)):
                if (left := until - time.monotonic()) <= 0:
                    break
                await _wait(listener, receive, left)
        return {"requests": requests}

    async def _in_files_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._files, work, *arguments)

    async def _done(self, groups: Groups[AgentMessage, AgentAnswer], message: AgentMessage) -> AgentAnswer:
        return await asyncio.wrap_future(groups.submit(message))

    def _look_seconds(self) -> float:
        return LOOK_SECONDS if relay().connected else LOOK_WITHOUT_HINTS_SECONDS

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, _with_database, work, arguments)

    async def _in_storage_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._storage, _with_database, work, arguments
        )

    # ------------------------------------------------------------ report liveness of agents

    def keep_calls_open(self) -> None:
        loop = asyncio.get_running_loop()
        if loop not in self._keepers or self._keepers[loop].done():
            self._keepers = {known: task for known, task in self._keepers.items() if not known.is_closed()}
            self._keepers[loop] = loop.create_task(self._keep_door_open())

    async def _keep_door_open(self) -> None:
        while True:
            try:
                await self._in_thread(heartbeats.keep_door_open)
            except (DatabaseError, InterfaceError, OSError) as error:
                log.warning("door_not_kept_open", error=str(error))
            await asyncio.sleep(heartbeats.DOOR_SECONDS / 4)

    def close(self) -> None:
        """End the threads, each with its connection to the database."""
        self._reports.close()
        self._orders.close()
        for _ in range(4 * DATABASE_THREADS):  # each of them at least once
            self._pool.submit(connections.close_all)
        self._pool.shutdown()
        self._files.shutdown()
        for _ in range(4 * STORAGE_THREADS):
            self._storage.submit(connections.close_all)
        self._storage.shutdown()


def _groups(
    name: str,
    work: Callable[[Sequence[AgentMessage]], list[AgentAnswer | Exception]],
    *,
    most: int,
    weight: Callable[[AgentMessage], int] = lambda _: 1,
) -> Groups[AgentMessage, AgentAnswer]:
    return Groups(
        f"agents-{name}",
        lambda messages: _with_database(work, (messages,)),
        most=most,
        weight=weight,
        waiting=MAX_WAITING,
        linger_seconds=LINGER_SECONDS,
        shared=(OperationalError, InterfaceError),
    )


class Piece(dict[str, Any]):
    """An answer that is bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data


class _Gone(Exception):
    """The agent has hung up."""


def _with_database(work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """In one of the threads that keep their connection; hints go together, beside the answer."""
    with unit_of_work(), request_context.acting(), notifications.deferred():
        keep_plans()
        return work(*arguments)


async def _read(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise MusterError(
                message=f"A message may have {MAX_BODY_BYTES} bytes.", code="too-large", status=413
            )
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def _wait(listener: Listener, receive: Receive | None, seconds: float) -> set[str]:
    """Until a hint arrives, whose topics are answered, or the time is up; raises _Gone when the agent hangs up."""
    if receive is None:
        return await listener.take(timeout_seconds=seconds)
    hint = asyncio.ensure_future(listener.take(timeout_seconds=seconds))
    hang_up = asyncio.ensure_future(receive())
    try:
        done, _ = await asyncio.wait({hint, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        if hang_up in done and hang_up.result()["type"] == "http.disconnect":
            raise _Gone
        return await hint
    finally:
        for task in (hint, hang_up):
            if not task.done():
                task.cancel()
        await asyncio.gather(hint, hang_up, return_exceptions=True)


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _key(headers: Mapping[str, str]) -> str:
    return headers.get("authorization", "").removeprefix("Bearer ").strip()


def _address(scope: Scope) -> str:
    return client_address.of_scope(scope).address[:64]


def _problem(error: MusterError) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": error.code.replace("-", " "),
        "status": error.status,
        "code": error.code,
        "detail": str(error),
        "errors": [{"field": p.field, "message": p.message, "code": p.code} for p in error.problems],
    }


# ---------------------------------------------------------------- in a thread, with the database


def _register(body: Mapping[str, Any], address: str) -> dict[str, Any]:
    protocol = read_protocol(body) if "protocol" in body else PROTOCOL
    with request_context.acting(address=address):
        done = nodes.register_node(
            join_token=str(body.get("join_token", "")),
            name=body.get("name", ""),
            inventory=body.get("inventory", {}),
            address=address,
            protocol=protocol,
        )
    log.info("node_registered", node=done.node.name, address=address)
    return {
        "node_id": done.node.pk,
        "agent_key": done.agent_key,
        "cluster": done.node.cluster.slug,
        "protocol": PROTOCOL,
    }


def _note_refused(key: str, body: Mapping[str, Any], why: str) -> None:
    """A node whose agent is refused says so; an agent without a valid key is nobody's."""
    node = agent_of_key(key).node
    version, protocol = body.get("agent_version"), body.get("protocol")
    heartbeats.note_refused_agent(
        node,
        version=version.replace("\0", "") if isinstance(version, str) else "",
        protocol=protocol if isinstance(protocol, int) and 0 <= protocol <= MAX_PROTOCOL else None,
        why=why,
    )
    log.warning("agent_refused", node=node.name, protocol=str(protocol)[:20], why=why)


def _sync_answer(answer: AgentAnswer) -> dict[str, Any]:
    node, orders = answer
    return {
        "node_id": node.pk,
        "assignments": orders.assignments,
        "stops": orders.stops,
        "verify": orders.verify,
        "pauses": orders.pauses,
        **({"checkpoints": orders.checkpoints} if orders.checkpoints else {}),
        **({"worlds": orders.worlds} if orders.worlds else {}),
        **({"limits": orders.limits} if orders.limits else {}),
        **({"describe": orders.describe} if orders.describe else {}),
        "hold_seconds": settings.MUSTER_SYNC_HOLD_SECONDS,
        "fence_seconds": heartbeats.fence_seconds(),
        "log_cap_bytes": settings.MUSTER_LOG_CAP_BYTES,
        "inventory_wanted": node.cpu_millis == 0,
    }


def _usage(key: str, body: Mapping[str, Any]) -> dict[str, Any]:
    node = agent_of_key(key).node
    take_usage(node=node, samples=read_usage(body), at=timezone.now())
    return {}


def _logs(key: str, body: Mapping[str, Any]) -> dict[str, Any]:
    node = agent_of_key(key).node
    read = Reader()
    chunks = read_chunks(read, body)
    ask = read.pairs(body.get("ask", []), "ask")
    read.finish()
    done = logs.append_chunks(node=node, chunks=chunks, ask=ask)
    return {
        "streams": [
            {"task": task, "stream": stream, "next_offset": offset}
            for (task, stream), offset in done.next_offsets.items()
        ],
        "gone": done.gone,
    }


def _results(key: str, body: Mapping[str, Any]) -> dict[str, Any]:
    node = agent_of_key(key).node
    first, last, reported = read_kept(body)
    return {"discard": take_kept(node=node, first=first, last=last, reported=reported)}
