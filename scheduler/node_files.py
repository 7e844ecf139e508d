"""Requests for files of jobs and their answers, between web processes and the agents of nodes, through Redis.

A request waits for its node's agent for seconds, an answer for its reader for seconds; neither is a promise, and
both are gone afterwards. Nothing here touches the database: bytes of results pass through memory only, and who
reads slowly asks for less.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import redis
from django.conf import settings

from infra import notifications
from infra.circuits.memory import redis_circuit, redis_raised
from infra.errors import MusterError

#: How long a request is of use: its reader has given up then.
REQUEST_SECONDS: Final = 30
#: How long an answer waits to be read.
ANSWER_SECONDS: Final = 60
#: Requests of one node that wait at a time.
MOST_WAITING: Final = 500
#: How often an agent that has not answered gets the hint again: hints are no promise.
HINT_SECONDS: Final = 1.0


def files_topic(node_id: int) -> str:
    """The topic that the agent of this node waits for."""
    return f"files:{node_id}"


class NoMailbox(MusterError):
    """Redis is away, so no file can be asked for."""


def ask(node_id: int, request: Mapping[str, Any]) -> str:
    """Put a request before the agent of this node; answers its id. Raises NoMailbox."""
    number = uuid.uuid4().hex
    said = json.dumps({**request, "id": number, "until": time.time() + REQUEST_SECONDS})
    with _mailbox() as server, server.pipeline(transaction=False) as pipe:
        pipe.rpush(_asked(node_id), said)
        pipe.ltrim(_asked(node_id), -MOST_WAITING, -1)
        pipe.expire(_asked(node_id), REQUEST_SECONDS)
        pipe.execute()
    hint(node_id)
    return number


def hint(node_id: int) -> None:
    """Tell the agent of this node that something waits for it."""
    notifications.publish([files_topic(node_id)])


def wait(node_id: int, number: str, *, seconds: float) -> dict[str, Any] | None:
    """The answer to a request; None when none came in time. Raises NoMailbox."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        with _mailbox() as server:
            try:
                found = server.blpop([_answered(node_id, number)], timeout=max(0.05, min(left, HINT_SECONDS)))
            except redis.TimeoutError:
                found = None
        if found is not None:
            answer: dict[str, Any] = json.loads(found[1])
            return answer
        hint(node_id)
    return None


def has_requests(node_id: int) -> bool:
    """Whether something waits for the agent of this node; False too while Redis is away."""
    try:
        with _mailbox() as server:
            return bool(server.exists(_asked(node_id)))
    except NoMailbox:
        return False


def take_requests(node_id: int, most: int) -> list[dict[str, Any]]:
    """Requests for the agent of this node, oldest first; raises NoMailbox."""
    with _mailbox() as server:
        said: Any = server.lpop(_asked(node_id), most)
    requests = [json.loads(one) for one in said or ()]
    return [request for request in requests if request["until"] > time.time()]


def give_answers(node_id: int, answers: Sequence[Mapping[str, Any]]) -> None:
    """Hand answers to their readers; to a request that was for another node there is nobody. Raises NoMailbox."""
    with _mailbox() as server, server.pipeline(transaction=False) as pipe:
        for answer in answers:
            key = _answered(node_id, str(answer.get("id", ""))[:64])
            pipe.rpush(key, json.dumps(answer))
            pipe.expire(key, ANSWER_SECONDS)
        pipe.execute()


@contextmanager
def _mailbox() -> Iterator[redis.Redis]:
    """Redis, where it may be called; raises NoMailbox at once while its circuit is open."""
    if not redis_circuit.may_call():
        raise _away()
    try:
        yield _client()
    except redis.RedisError as error:
        redis_raised(error)
        raise _away() from error
    else:
        redis_circuit.answered()


def _asked(node_id: int) -> str:
    return f"muster:files:{node_id}:asked"


def _answered(node_id: int, number: str) -> str:
    return f"muster:files:{node_id}:answer:{number}"


@lru_cache(maxsize=1)
def _client() -> redis.Redis:
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=HINT_SECONDS + 2, socket_connect_timeout=0.5
    )


def _away() -> NoMailbox:
    return NoMailbox(
        message="Files on nodes cannot be read: the portal's message broker does not respond.",
        code="unavailable",
        way_out="Try again in a moment.",
        status=503,
        extra={"retry_after_seconds": 5},
    )
