"""Writes the audit trail: one row per change by a person or token, in its transaction, chained by hashes.

A chain per actor modulo SHARDS keeps one busy person from holding up all others. Each row carries the HMAC of
the row before it and of its own contents, under a key that is not in the database: somebody who can write rows
cannot write rows that fit. `accounts.services.audit_check` reads the chains back.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, models, transaction

from accounts.models import AuditChain, AuditEvent, AuditOutcome, Project, User
from infra import request_context
from infra.db import prepared
from infra.errors import MusterError
from infra.request_context import RequestContext

SHARDS: Final = 16
NO_HASH: Final = "0" * 64


class Head(NamedTuple):
    """The end of a chain, locked by the transaction under way, and the database's clock once it was."""

    length: int
    hash: str
    at: datetime


class Thing(NamedTuple):
    """What was acted upon when no single row says it: a batch, a route, a name that exists nowhere."""

    type: str
    id: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one row is to say; `known` is the request that it came with."""

    by: User | None
    action: str
    thing: models.Model | Thing
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    reason: str = ""
    project: Project | None = None
    outcome: str = AuditOutcome.DONE
    known: RequestContext = field(default_factory=request_context.current)


def record(
    *,
    by: User | None,
    action: str,
    thing: models.Model | Thing,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    reason: str = "",
    project: Project | None = None,
    outcome: str = AuditOutcome.DONE,
) -> AuditEvent:
    """Append one row to the actor's chain, inside the caller's transaction; call it last there.

    Last, because the head of the chain stays locked until that transaction ends. A batch is one row: pass a
    Thing that names it. Secrets never belong in `before` or `after`.
    """
    entry = Entry(
        by=by, action=action, thing=thing, before=before, after=after, reason=reason, project=project,
        outcome=outcome,
    )  # fmt: skip
    return record_all([entry])[0]


def record_all(entries: Sequence[Entry], *, heads: Mapping[int, Head] | None = None) -> list[AuditEvent]:
    """The same for several entries, in their order, each in the chain of its actor.

    Who sent `heads_statement` along with the last statement before this one gives what it answered.
    """
    # No savepoint: a row that cannot be written must take the change it tells of with it.
    with transaction.atomic(savepoint=False):
        ends = {**(heads or {})}
        if missing := {_shard(entry.by) for entry in entries} - ends.keys():
            ends |= _lock_heads(missing)
        key = signing_keys()[0]
        events = []
        for entry in entries:
            shard = _shard(entry.by)
            event = _event(entry, shard, ends[shard])
            event.hash = row_hash(event, key)
            ends[shard] = Head(event.number, event.hash, event.at)
            events.append(event)
        _append(events, key)
    return events


def _event(entry: Entry, shard: int, head: Head) -> AuditEvent:
    """The row after this end of its chain, still without its hash."""
    by, known, described = entry.by, entry.known, describe(entry.thing)
    return AuditEvent(
        shard=shard,
        number=head.length + 1,
        at=head.at,
        actor_id=by.pk if by is not None else None,
        actor_name=_text(by.get_username() if by is not None else "", 150),
        on_behalf_of=_text(known.on_behalf_of, 150),
        token_prefix=_text(known.token_prefix, 16),
        address=_text(known.address, 64),
        request_id=_text(known.request_id, 64),
        action=_text(entry.action, 64),
        outcome=entry.outcome,
        object_type=_text(described.type, 64),
        object_id=_text(described.id, 64),
        object_label=_text(described.label, 200),
        project_id=_project_id(entry.project, entry.thing),
        before=plain(entry.before),
        after=plain(entry.after),
        reason=_text(entry.reason, 2000),
        previous_hash=head.hash,
    )


def record_denied(
    *,
    by: User | None,
    action: str,
    thing: models.Model | Thing,
    reason: str = "",
    project: Project | None = None,
) -> AuditEvent:
    """Write down that something was refused. Call it outside the transaction that was rolled back."""
    return record(
        by=by, action=action, thing=thing, reason=reason, project=project, outcome=AuditOutcome.DENIED
    )


def record_refusal(error: MusterError, *, by: Any) -> AuditEvent | None:
    """The audit row of an error that says a permission was not given; nothing for any other error.

    Doors call it once for each error they answer with, after the transaction has ended.
    """
    if error.refused is None:
        return None
    verb, thing = error.refused
    described = thing if isinstance(thing, (models.Model, Thing)) else Thing("site")
    actor = by if isinstance(by, User) and by.pk else None
    return record_denied(
        by=actor, action=f"{describe(described).type}.{verb}", thing=described, reason=str(error)
    )


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both sides of what differs: an audit row shows the change, not the whole row twice."""
    keys = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    return {key: before.get(key) for key in keys}, {key: after.get(key) for key in keys}


def describe(thing: models.Model | Thing) -> Thing:
    if isinstance(thing, Thing):
        return thing
    return Thing(str(thing._meta.model_name), str(thing.pk if thing.pk is not None else ""), str(thing))


def row_hash(event: AuditEvent, key: bytes) -> str:
    """HMAC-SHA256 over the row's contents in canonical JSON, which include the hash of the row before it."""
    contents = {
        "shard": event.shard,
        "number": event.number,
        "at": event.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "actor": event.actor_id,
        "actor_name": event.actor_name,
        "on_behalf_of": event.on_behalf_of,
        "token_prefix": event.token_prefix,
        "address": event.address,
        "request_id": event.request_id,
        "action": event.action,
        "outcome": str(event.outcome),
        "object_type": event.object_type,
        "object_id": event.object_id,
        "object_label": event.object_label,
        "project": event.project_id,
        "before": event.before,
        "after": event.after,
        "reason": event.reason,
        "previous_hash": event.previous_hash,
    }
    canonical = json.dumps(contents, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hmac.new(key, canonical.encode(), hashlib.sha256).hexdigest()


def head_signature(shard: int, length: int, head: str, key: bytes) -> str:
    """What makes the head of a chain ours; kept with the head alone, and gone once the chain has grown."""
    contents = {"what": "head", "shard": shard, "length": length, "hash": head}
    return hmac.new(key, json.dumps(contents, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def signing_keys() -> list[bytes]:
    """The key that signs new rows, then those that signed older ones.

    MUSTER_AUDIT_KEY, or else the secret key, is the source: set MUSTER_AUDIT_KEY before the secret key is
    changed, or name the old one in MUSTER_AUDIT_OLD_KEYS, so that old rows still verify.
    """
    current = getattr(settings, "MUSTER_AUDIT_KEY", "") or settings.SECRET_KEY
    sources = [current, *getattr(settings, "MUSTER_AUDIT_OLD_KEYS", [])]
    return [
        hmac.new(source.encode(), b"muster audit chain, version 1", hashlib.sha256).digest()
        for source in sources
    ]


def plain(value: Any) -> Any:
    """The value as JSON that jsonb gives back unchanged: a row read back must have the same hash."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return _text(value, 20_000)
    if isinstance(value, float):
        # jsonb keeps numbers in decimal: 1e22 would come back as an integer, and -0.0 as 0.0.
        return value + 0.0 if value == 0 or 1e-4 <= abs(value) < 1e15 else str(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, (Decimal, UUID, date)):
        return str(value)
    if isinstance(value, models.Model):
        return {"id": plain(value.pk), "name": _text(str(value), 200)}
    if isinstance(value, Mapping):
        return {_text(str(key), 200): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return _text(str(value), 2000)


def heads_statement(people: Iterable[User | None]) -> prepared.Statement:
    """Locks the chains that the next rows of these actors go to; `heads_of` reads what it answers."""
    return _LOCK_HEADS, [sorted({_shard(by) for by in people})]


def heads_of(answers: Iterable[prepared.Rows]) -> dict[int, Head]:
    """Shard -> the end of its chain; a chain has none before its first row."""
    return {shard: Head(*end) for rows in answers for shard, *end in rows}


def _shard(by: User | None) -> int:
    return (by.pk if by is not None and by.pk else 0) % SHARDS


#: Always in one order, so that no two wait for each other. The database's clock is read once a chain is ours: times
#: in a chain never fall.
_LOCK_HEADS: Final = (
    "SELECT shard, length, head, clock_timestamp() FROM accounts_auditchain"
    " WHERE shard = ANY(%s::smallint[]) ORDER BY shard FOR UPDATE"
)


def _lock_heads(shards: Collection[int]) -> dict[int, Head]:
    found: dict[int, Head] = {}
    for _ in range(2):
        found = heads_of([prepared.ask(_LOCK_HEADS, [sorted(shards)])])
        if missing := set(shards) - found.keys():
            key = signing_keys()[0]
            AuditChain.objects.bulk_create(
                [
                    AuditChain(shard=shard, head=NO_HASH, signature=head_signature(shard, 0, NO_HASH, key))
                    for shard in sorted(missing)
                ],
                ignore_conflicts=True,
            )
        else:
            return found
    raise RuntimeError(f"audit chains {sorted(missing)} cannot be made")


def _append(events: Sequence[AuditEvent], key: bytes) -> None:
    """Write the rows and move the heads of their chains, in one statement."""
    sql, names = _append_statement()
    rows = [{name: getattr(event, name) for name in names} for event in events]
    ends = {event.shard: event for event in events}  # the last of each chain
    heads = [
        {"shard": shard, "length": end.number, "head": end.hash,
         "signature": head_signature(shard, end.number, end.hash, key)}
        for shard, end in ends.items()
    ]  # fmt: skip
    keys = {(shard, number): pk for shard, number, pk in prepared.ask(sql, [_json(rows), _json(heads)])}
    for event in events:
        event.pk = keys[event.shard, event.number]
        event._state.adding, event._state.db = False, DEFAULT_DB_ALIAS


def _json(rows: list[dict[str, Any]]) -> str:
    return json.dumps(rows, default=str)  # a time reads as PostgreSQL reads it


@cache
def _append_statement() -> tuple[str, list[str]]:
    """The statement, and the attributes of a row that it writes, which are the names of their columns too."""
    names = [field.attname for field in AuditEvent._meta.concrete_fields if not field.primary_key]
    columns = [str(field.column) for field in AuditEvent._meta.concrete_fields if not field.primary_key]
    assert names == columns
    sql = f"""
        WITH written AS (
            INSERT INTO accounts_auditevent ({", ".join(columns)})
            SELECT {", ".join(f"e.{column}" for column in columns)}
              FROM json_populate_recordset(NULL::accounts_auditevent, %s::json) AS e
            RETURNING shard, number, id
        ), moved AS (
            UPDATE accounts_auditchain chain SET length = h.length, head = h.head, signature = h.signature
              FROM json_populate_recordset(NULL::accounts_auditchain, %s::json) AS h WHERE chain.shard = h.shard
        )
        SELECT shard, number, id FROM written
        """  # noqa: S608  nothing but names of columns
    return sql, names


def _project_id(project: Project | None, thing: models.Model | Thing) -> int | None:
    if project is not None:
        return project.pk
    if isinstance(thing, Project):
        return thing.pk
    return getattr(thing, "project_id", None)


def _text(value: str, limit: int) -> str:
    """Text that PostgreSQL takes: no NUL, no lone surrogate, not longer than its column."""
    cleaned = str(value).replace("\x00", "\N{SYMBOL FOR NULL}")
    return cleaned.encode("utf-8", "replace").decode()[:limit]
