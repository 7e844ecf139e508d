"""The wire format of the live socket, version 1."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final
from uuid import UUID

VERSION: Final = 1

#: A patch longer than this is not worth sending: the client is asked to subscribe again.
MAX_PATCH_BYTES: Final = 20_000
#: The longest message a client may send.
MAX_REQUEST_BYTES: Final = 4_096

#: Close codes: as HTTP's 401, 403 and 429, in the range that applications own.
CLOSE_SIGN_IN: Final = 4401
CLOSE_NOT_ALLOWED: Final = 4403
CLOSE_TOO_MANY: Final = 4429


def encode(value: object) -> str:
    """Canonical JSON: the same value gives the same text in every process, so that versions compare."""
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (set, frozenset, tuple)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no place in a live message")


# ---------------------------------------------------------------- what a topic shows


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What a topic shows at one moment: rows by key, encoded once for all who read them."""

    rows: Mapping[str, str]
    version: str

    @classmethod
    def of(cls, rows: Mapping[str, Mapping[str, Any]]) -> View:
        encoded = {str(key): encode(row) for key, row in rows.items()}
        digest = hashlib.blake2b(digest_size=8)
        for key in sorted(encoded):
            digest.update(key.encode())
            digest.update(b"\0")
            digest.update(encoded[key].encode())
            digest.update(b"\0")
        return cls(rows=encoded, version=digest.hexdigest())

    def data(self) -> str:
        return f'{{"rows":{_object(self.rows)}}}'


def difference(before: View, after: View) -> str:
    """The patch that turns one view into the other: rows that are new or differ, and keys that went away."""
    changed = {key: row for key, row in after.rows.items() if before.rows.get(key) != row}
    removed = sorted(key for key in before.rows if key not in after.rows)
    return f'{{"changed":{_object(changed)},"removed":{encode(removed)}}}'


def _object(rows: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}:{row}" for key, row in rows.items()) + "}"


# ---------------------------------------------------------------- what the server says


def say(op: str, **fields: object) -> str:
    """A message without encoded parts."""
    return encode({"v": VERSION, "op": op, **fields})


def snapshot(topic: str, sub: int, version: str, data: str | None) -> str:
    """The first message of a subscription; without data when the client already has this version."""
    body = f'"data":{data}' if data is not None else '"unchanged":true'
    return f"{_head('snapshot', topic, sub, 0, version)},{body}}}"


def patch(topic: str, sub: int, seq: int, base: str, version: str, body: str) -> str:
    return f'{_head("patch", topic, sub, seq, version)},"base":{json.dumps(base)},"patch":{body}}}'


def dirty(topic: str, sub: int, seq: int, version: str) -> str:
    """Something changed, and saying what would cost more than asking again."""
    return f'{_head("dirty", topic, sub, seq, version)},"dirty":true}}'


def _head(op: str, topic: str, sub: int, seq: int, version: str) -> str:
    return (
        f'{{"v":{VERSION},"op":"{op}","topic":{json.dumps(topic)},"sub":{sub},"seq":{seq},'
        f'"version":{json.dumps(version)}'
    )
