"""The door for node agents: a small ASGI application beside Django's, so that thousands can wait in it.

A waiting agent costs a coroutine and nothing else. Inside Django's handler each would hold a thread, because
some of the middleware there is synchronous (docs/decisions/0006). Database work runs in a few threads.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import gzip
import json
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import structlog
from django.conf import settings
from django.db import DatabaseError, DataError, InterfaceError

from infra import client_address, notifications, request_context
from infra.db.connections import unit_of_work
from infra.db.error_messages import to_error
from infra.errors import FieldProblem, InvalidInput, MusterError
from scheduler import outbox
from scheduler.agent import PROTOCOL
from scheduler.agent.protocol import Report
from scheduler.models import Node
from scheduler.relay import Listener, relay
from scheduler.services.cluster import nodes
from scheduler.services.cluster.inventory import Inventory, read_inventory
from scheduler.services.execution import dispatch, elements, reports
from scheduler.services.jobs import logs

log = structlog.get_logger(__name__)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")

PREFIX: Final = "/api/v1/agent/"
MAX_BODY_BYTES: Final = 8 * 1024 * 1024
#: At once in the database; more wait in memory.
DATABASE_THREADS: Final = 3
#: How often a waiting call looks by itself: while hints arrive, and while Redis is away.
LOOK_SECONDS: Final = 5.0
LOOK_WITHOUT_HINTS_SECONDS: Final = 1.5
MAX_REPORTS: Final = 2000
MAX_KNOWN: Final = 20_000
MAX_CHUNKS: Final = 2000
_STATES: Final = frozenset({"running", "succeeded", "failed", "stopped", "lost"})
_INT_MAX: Final = 2**31 - 1
_BIG_MAX: Final = 2**62


class _Unauthorized(MusterError):
    """No valid agent key."""


class AgentDoor:
    """Answers `/api/v1/agent/*` itself and passes everything else on."""

    def __init__(self, inner: Application) -> None:
        self.inner = inner
        self._pool = ThreadPoolExecutor(DATABASE_THREADS, thread_name_prefix="agents")
        self._keepers: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.inner(scope, receive, send)
            return
        self.keep_calls_open()
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            await self._serve(scope, receive, send)
        else:
            await self.inner(scope, receive, send)

    # ------------------------------------------------------------ HTTP

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, body = 200, await self._answer(scope, receive)
        except MusterError as error:
            status, body = error.status, _problem(error)
        except DataError as error:  # not that the database is away: to send it again would help nobody
            log.warning("agent_sent_bad_value", path=scope["path"], error=str(error))
            refused = InvalidInput(message="A value in the message cannot be stored.", code="bad-text")
            status, body = refused.status, _problem(refused)
        except (DatabaseError, InterfaceError, OSError) as error:
            log.warning("agent_call_failed", path=scope["path"], error=str(error))
            known = to_error(error)
            status = 503
            body = {
                "title": "Try again",
                "status": 503,
                "code": known.code if known else "unavailable",
                "detail": known.message if known else "The database is unavailable.",
            }
        except _Gone:
            return
        content = b"application/json" if status == 200 else b"application/problem+json"
        data = json.dumps(body, separators=(",", ":")).encode()
        headers = [(b"content-type", content), (b"content-length", str(len(data)).encode())]
        if status == 503:
            headers.append((b"retry-after", b"1"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    async def _answer(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        verb = scope["path"].removeprefix(PREFIX).rstrip("/")
        if verb not in ("register", "sync", "logs"):
            raise MusterError(message=f"There is nothing at {scope['path']}.", code="not-found", status=404)
        if scope["method"] != "POST":
            raise MusterError(message="Agents POST here.", code="method-not-allowed", status=405)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        body = _parse(await _read(receive), headers.get("content-encoding", ""))
        address = _address(scope)
        if verb == "register":
            return await self._in_thread(_register, body, address)
        key = headers.get("authorization", "").removeprefix("Bearer ").strip()
        if verb == "logs":
            return await self._in_thread(_logs, key, body)
        return await self._sync(key, body, address, receive)

    # ------------------------------------------------------------ sync

    async def _sync(
        self, key: str, body: Mapping[str, Any], address: str, receive: Receive
    ) -> dict[str, Any]:
        """Take what the agent says, and wait until there is something for it, or until the time is up."""
        call = _read_sync(body)
        until = time.monotonic() + min(call.wait_seconds, settings.MUSTER_SYNC_HOLD_SECONDS)
        node, answer = await self._in_thread(_hear, key, call, address)
        if answer is not None or call.wait_seconds <= 0:
            return _sync_answer(node, answer or dispatch.Orders())
        async with relay().listen([outbox.node_topic(node.pk)]) as listener:
            # Once more now that we listen: what came in between made no sound.
            while not (answer := await self._in_thread(_look, node, call)):
                left = until - time.monotonic()
                if left <= 0:
                    break
                await _wait(listener, receive, min(left, self._look_seconds()))
        return _sync_answer(node, answer)

    def _look_seconds(self) -> float:
        return LOOK_SECONDS if relay().connected else LOOK_WITHOUT_HINTS_SECONDS

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, _with_database, work, arguments)

    # ------------------------------------------------------------ report liveness of agents

    def keep_calls_open(self) -> None:
        loop = asyncio.get_running_loop()
        if loop not in self._keepers or self._keepers[loop].done():
            self._keepers = {known: task for known, task in self._keepers.items() if not known.is_closed()}
            self._keepers[loop] = loop.create_task(self._keep_door_open())

    async def _keep_door_open(self) -> None:
        while True:
            try:
                await self._in_thread(nodes.keep_door_open)
            except (DatabaseError, InterfaceError, OSError) as error:
                log.warning("door_not_kept_open", error=str(error))
            await asyncio.sleep(nodes.DOOR_SECONDS / 4)


class _Gone(Exception):
    """The agent has hung up."""


def _with_database(work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """In one of the threads that keep their connection; hints go together, beside the answer."""
    with unit_of_work(), request_context.acting(), notifications.deferred():
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


async def _wait(listener: Listener, receive: Receive, seconds: float) -> None:
    """Until a hint arrives or the time is up; raises _Gone when the agent hangs up."""
    hint = asyncio.ensure_future(listener.take(timeout_seconds=seconds))
    hang_up = asyncio.ensure_future(receive())
    try:
        done, _ = await asyncio.wait({hint, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        if hang_up in done and hang_up.result()["type"] == "http.disconnect":
            raise _Gone
        if hint not in done:
            await hint
    finally:
        for task in (hint, hang_up):
            if not task.done():
                task.cancel()
        await asyncio.gather(hint, hang_up, return_exceptions=True)


def _parse(data: bytes, encoding: str) -> Mapping[str, Any]:
    try:
        if encoding == "gzip":
            data = _unzip(data)
        body = json.loads(data)
        if b"\\u" in data:  # only so can half a surrogate pair come in, which nothing can store
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, OSError, EOFError, zlib.error, RecursionError) as error:
        raise InvalidInput(message="The message is not valid JSON.", code="not-json", status=400) from error
    if not isinstance(body, dict):
        raise InvalidInput(message="The message has to be a JSON object.")
    return body


def _unzip(data: bytes) -> bytes:
    """Never more than a plain message may have, however small it was packed."""
    unpacker = zlib.decompressobj(wbits=31)
    plain = unpacker.decompress(data, MAX_BODY_BYTES + 1)
    if len(plain) > MAX_BODY_BYTES or unpacker.unconsumed_tail:
        raise MusterError(
            message=f"A message may have {MAX_BODY_BYTES} bytes, unpacked.", code="too-large", status=413
        )
    if not unpacker.eof:
        raise gzip.BadGzipFile("cut short")
    return plain


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


# ---------------------------------------------------------------- what the messages say


class _Reader:
    """Collects what is wrong with a message."""

    def __init__(self) -> None:
        self.problems: list[FieldProblem] = []

    def whole(self, data: Mapping[str, Any], name: str, under: str, most: int) -> int:
        value = data.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
            return value
        self.problems.append(FieldProblem(under + name, f"has to be a whole number from 0 to {most}"))
        return 0

    def pairs(self, value: Any, name: str) -> list[tuple[int, int]]:
        good = isinstance(value, list) and len(value) <= MAX_KNOWN
        if good and all(
            isinstance(pair, list)
            and len(pair) == 2
            and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= _BIG_MAX for n in pair)
            for pair in value
        ):
            return [(pair[0], pair[1]) for pair in value]
        self.problems.append(FieldProblem(name, f"has to be a list of at most {MAX_KNOWN} [task, epoch]"))
        return []

    def objects(self, value: Any, name: str, most: int) -> list[Mapping[str, Any]]:
        if isinstance(value, list) and len(value) <= most and all(isinstance(item, dict) for item in value):
            return value
        self.problems.append(FieldProblem(name, f"has to be a list of at most {most} objects"))
        return []

    def finish(self) -> None:
        if self.problems:
            raise InvalidInput(message="The message cannot be read.", problems=self.problems[:50])


class _SyncCall:
    """A sync message that has been read."""

    def __init__(
        self,
        *,
        wait_seconds: float,
        known: dict[int, int],
        reports: list[Report],
        boot_id: str,
        agent_version: str,
        clock_ms: int,
        inventory: Inventory | None,
    ) -> None:
        self.wait_seconds = wait_seconds
        self.known = known
        self.reports = reports
        self.boot_id = boot_id
        self.agent_version = agent_version
        self.clock_ms = clock_ms
        self.inventory = inventory

    @property
    def only_reports(self) -> bool:
        """Sent beside the call that is held open, which gives the orders."""
        return bool(self.reports) and self.wait_seconds <= 0


def _read_sync(body: Mapping[str, Any]) -> _SyncCall:
    if body.get("protocol") != PROTOCOL:
        raise InvalidInput(
            message=f"This server speaks protocol {PROTOCOL}, and the agent {body.get('protocol')!r}.",
            way_out="Update the older of the two.",
        )
    read = _Reader()
    wait = body.get("wait_seconds")
    if not isinstance(wait, int | float) or isinstance(wait, bool) or not 0 <= wait <= 3600:
        read.problems.append(FieldProblem("wait_seconds", "has to be a number from 0 to 3600"))
        wait = 0
    reports = [
        _read_report(read, report, f"reports/{number}/")
        for number, report in enumerate(read.objects(body.get("reports", []), "reports", MAX_REPORTS))
    ]
    known = dict(read.pairs(body.get("known", []), "known"))
    texts = {name: body.get(name, "") for name in ("boot_id", "agent_version")}
    for name, text in texts.items():
        if not isinstance(text, str) or "\0" in text:
            read.problems.append(FieldProblem(name, "has to be text"))
            texts[name] = ""
    clock_ms = read.whole(body, "clock_ms", "", _BIG_MAX)
    read.finish()
    inventory = read_inventory(body["inventory"]) if "inventory" in body else None
    return _SyncCall(
        wait_seconds=float(wait),
        known=known,
        reports=reports,
        clock_ms=clock_ms,
        inventory=inventory,
        **texts,
    )


def _read_report(read: _Reader, data: Mapping[str, Any], under: str) -> Report:
    report = Report(
        task=read.whole(data, "task", under, _BIG_MAX),
        epoch=read.whole(data, "epoch", under, _INT_MAX),
        state=str(data.get("state")),
    )
    if report["state"] not in _STATES:
        read.problems.append(FieldProblem(under + "state", f"is none of {', '.join(sorted(_STATES))}"))
    for name, most in (
        ("pid", _INT_MAX), ("started_ago_ms", _BIG_MAX), ("ended_ago_ms", _BIG_MAX), ("exit_code", _INT_MAX),
        ("exit_signal", 128), ("peak_memory_mib", _BIG_MAX), ("cpu_time_ms", _BIG_MAX),
        ("gpu_watched_ms", _BIG_MAX), ("gpu_busy_ms", _BIG_MAX), ("peak_gpu_memory_mib", _BIG_MAX),
        ("stdout_bytes", _BIG_MAX), ("stderr_bytes", _BIG_MAX), ("saved_ago_ms", _BIG_MAX),
    ):  # fmt: skip
        if name in data:
            report[name] = read.whole(data, name, under, most)  # type: ignore[literal-required]
    if "elements" in data:
        results = elements.read_results(data["elements"])
        if results is None:
            read.problems.append(FieldProblem(under + "elements", "has to be a list of results of elements"))
        report["elements"] = [list(one) for one in results or ()]
    if "suspended" in data:
        report["suspended"] = data["suspended"] is True
    for name in ("stop_reason", "text", "saved_path"):
        if name in data:
            text = data[name]
            if not isinstance(text, str):
                read.problems.append(FieldProblem(under + name, "has to be text"))
                text = ""
            report[name] = text.replace("\0", "�")[: 1024 if name == "saved_path" else 300]  # type: ignore[literal-required]
    return report


def _read_chunks(read: _Reader, body: Mapping[str, Any]) -> list[logs.IncomingChunk]:
    chunks: list[logs.IncomingChunk] = []
    for number, data in enumerate(read.objects(body.get("chunks", []), "chunks", MAX_CHUNKS)):
        under = f"chunks/{number}/"
        stream, packed = data.get("stream"), data.get("data")
        if stream not in logs.STREAMS:
            read.problems.append(FieldProblem(under + "stream", "has to be stdout or stderr"))
        try:
            plain = base64.b64decode(packed, validate=True) if isinstance(packed, str) else b""
        except (binascii.Error, ValueError):
            plain = b""
        if not 0 < len(plain) <= logs.MAX_CHUNK_BYTES:
            limit = f"1 to {logs.MAX_CHUNK_BYTES} bytes"
            read.problems.append(FieldProblem(under + "data", f"has to be {limit} in base64"))
        task, epoch = read.whole(data, "task", under, _BIG_MAX), read.whole(data, "epoch", under, _INT_MAX)
        offset = read.whole(data, "offset", under, _BIG_MAX)
        chunks.append(logs.IncomingChunk(task, epoch, str(stream), offset, plain))
    return chunks


# ---------------------------------------------------------------- in a thread, with the database


def _register(body: Mapping[str, Any], address: str) -> dict[str, Any]:
    with request_context.acting(address=address):
        done = nodes.register_node(
            join_token=str(body.get("join_token", "")),
            name=body.get("name", ""),
            inventory=body.get("inventory", {}),
            address=address,
        )
    log.info("node_registered", node=done.node.name, address=address)
    return {
        "node_id": done.node.pk,
        "agent_key": done.agent_key,
        "cluster": done.node.cluster.slug,
        "protocol": PROTOCOL,
    }


def _node(key: str) -> Node:
    node = nodes.node_of_key(key)
    if node is None:
        raise _Unauthorized(
            message="The agent key is unknown or was replaced.",
            code="bad-agent-key",
            way_out="Register again with a join token.",
            status=401,
        )
    return node


def _hear(key: str, call: _SyncCall, address: str) -> tuple[Node, dispatch.Orders | None]:
    """What the agent says, first; the answer when there is one already."""
    node = _node(key)
    stale = reports.apply_reports(node=node, reports=call.reports)
    nodes.record_heartbeat(
        node,
        boot_id=call.boot_id,
        agent_version=call.agent_version,
        clock_ms=call.clock_ms,
        inventory=call.inventory,
    )
    if call.only_reports:
        return node, dispatch.Orders(stops=dispatch.stale_stops(stale))
    orders = _look(node, call)
    orders.stops += dispatch.stale_stops(stale)
    return node, orders or None


def _look(node: Node, call: _SyncCall) -> dispatch.Orders:
    return dispatch.orders_for(node, call.known)


def _sync_answer(node: Node, orders: dispatch.Orders) -> dict[str, Any]:
    return {
        "node_id": node.pk,
        "assignments": orders.assignments,
        "stops": orders.stops,
        "verify": orders.verify,
        "pauses": orders.pauses,
        "hold_seconds": settings.MUSTER_SYNC_HOLD_SECONDS,
        "fence_seconds": nodes.fence_seconds(),
        "log_cap_bytes": settings.MUSTER_LOG_CAP_BYTES,
        "inventory_wanted": node.cpu_millis == 0,
    }


def _logs(key: str, body: Mapping[str, Any]) -> dict[str, Any]:
    node = _node(key)
    read = _Reader()
    chunks = _read_chunks(read, body)
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
