"""The door of agents for checkpoints and uploads: messages about them, and their pieces as plain bytes."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from infra.errors import FieldProblem, InvalidInput
from scheduler.api.agent.reading import Reader
from scheduler.models import CheckpointReason, Node
from scheduler.services.checkpoints import receive, resume
from scheduler.services.execution.agent_messages import agent_of_key
from scheduler.services.uploads.nodes import give_piece, upload_for

#: How long one call reads a checkpoint back; the next one goes on.
CHECK_SECONDS: Final = 5.0
_BIG: Final = 2**62
_INT: Final = 2**31 - 1
#: Names of files and texts for people.
_MOST_NAME: Final = 800
_MOST_TEXT: Final = 300
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def answer_checkpoint(key: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """One message about a checkpoint; each may come twice. Raises MusterError."""
    node = agent_of_key(key).node
    match body.get("op"):
        case "asked":
            _asked(node, body)
        case "missed":
            _missed(node, body)
        case "begin":
            return {"id": receive.begin(node=node, announced=_announced(body))}
        case "finish":
            # An agent of an earlier version takes every answer for the last.
            seconds = CHECK_SECONDS if body.get("steps") is True else math.inf
            id, manifest = _id(body), body.get("manifest")
            return {"state": receive.finish(node=node, checkpoint=id, manifest=manifest, seconds=seconds)}
        case "fail":
            receive.fail(node=node, checkpoint=_id(body), text=_text(body, "text", _MOST_TEXT))
        case "restore":
            task, epoch = _task(body)
            return {**resume.restore(node=node, task=task, epoch=epoch)}
        case "upload":
            task, epoch = _task(body)
            return {**upload_for(node=node, task=task, epoch=epoch)}
        case "restored":
            task, epoch = _task(body)
            resume.note_restored(node=node, checkpoint=_id(body), task=task, epoch=epoch)
        case _:
            raise InvalidInput(message="The message names no `op` that this server knows.")
    return {}


def _asked(node: Node, body: Mapping[str, Any]) -> None:
    task, epoch = _task(body)
    read = Reader()
    seconds = read.whole(body, "seconds", "", _INT)
    read.finish()
    receive.take_asked(node=node, task=task, epoch=epoch, reason=_reason(body), seconds=seconds)


def _missed(node: Node, body: Mapping[str, Any]) -> None:
    task, epoch = _task(body)
    receive.take_missed(node=node, task=task, epoch=epoch, text=_text(body, "text", _MOST_TEXT))


def _announced(body: Mapping[str, Any]) -> receive.Announced:
    task, epoch = _task(body)
    read = Reader()
    marked_ns, files = read.whole(body, "marked_ns", "", _BIG), read.whole(body, "files", "", _INT)
    size = read.whole(body, "size", "", _BIG)
    read.finish()
    name = _text(body, "name", _MOST_NAME)
    if not name:
        raise InvalidInput(
            message="The message cannot be read.", problems=[FieldProblem("name", "is missing")]
        )
    trouble = _text(body, "trouble", _MOST_TEXT)
    return receive.Announced(task, epoch, name, marked_ns, _reason(body), files, size, trouble)


def _task(body: Mapping[str, Any]) -> tuple[int, int]:
    read = Reader()
    found = read.whole(body, "task", "", _BIG), read.whole(body, "epoch", "", _INT)
    read.finish()
    return found


def _id(body: Mapping[str, Any], name: str = "id") -> str:
    try:
        return str(uuid.UUID(str(body.get(name, ""))))
    except ValueError as error:
        raise InvalidInput(
            message="The message cannot be read.", problems=[FieldProblem(name, "is no id")]
        ) from error


def _reason(body: Mapping[str, Any]) -> str:
    word = body.get("why")
    return word if isinstance(word, str) and word in CheckpointReason.values else CheckpointReason.OWN.value


def _text(body: Mapping[str, Any], name: str, most: int) -> str:
    text = body.get(name, "")
    if not isinstance(text, str) or "\0" in text:
        raise InvalidInput(
            message="The message cannot be read.", problems=[FieldProblem(name, "has to be text")]
        )
    return text[:most]


# ---------------------------------------------------------------- pieces


def put_piece(key: str, query: bytes, data: bytes) -> dict[str, Any]:
    """Take one piece; the query says of which checkpoint, which one it is, and its checksum. Raises MusterError."""
    node = agent_of_key(key).node
    words = {name: values[-1] for name, values in parse_qs(query.decode("latin-1")).items()}
    number = words.get("number", "")
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise InvalidInput(message="The query has to have the number of the piece.")
    receive.take_piece(
        node=node,
        checkpoint=_id(words, "checkpoint"),
        number=int(number),
        sha256=words.get("sha256", ""),
        data=data,
    )
    return {}


def get_piece(key: str, body: Mapping[str, Any]) -> bytes:
    """One piece for a task that is about to start. Raises MusterError."""
    node = agent_of_key(key).node
    task, epoch = _task(body)
    read = Reader()
    number = read.whole(body, "number", "", _INT)
    read.finish()
    if "sha256" in body:  # of an upload, whose pieces are named by their checksums
        digest = _text(body, "sha256", 64)
        if not _DIGEST.fullmatch(digest):
            raise InvalidInput(message="The checksum is no SHA-256.")
        return give_piece(node=node, task=task, epoch=epoch, number=number, digest=digest)
    checkpoint = _id(body, "checkpoint")
    return resume.give_piece(node=node, checkpoint=checkpoint, number=number, task=task, epoch=epoch)
