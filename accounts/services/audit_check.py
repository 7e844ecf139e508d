"""Reads the audit chains back and says which row, if any, is not what was written."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from django.db import ProgrammingError
from django.db.models import Max
from django.utils import timezone

from accounts.models import AuditChain, AuditCheck, AuditCheckpoint, AuditEvent
from accounts.services import audit_checkpoints, audit_guards
from accounts.services.audit import NO_HASH, head_signature, row_hash, signing_keys
from infra.times_in_text import written

#: Rows held in memory at once, whatever the length of the trail.
ROWS_AT_ONCE: Final = 2000
#: How many results the badge's history keeps.
CHECKS_KEPT: Final = 1000


#: The chain of a problem that no row has: with what the trail was compared.
NO_CHAIN: Final = -1


@dataclass(frozen=True, slots=True)
class BadRow:
    """The first row of a chain that does not fit, and in words what is wrong with it."""

    shard: int
    number: int
    event_id: int | None
    problem: str

    @property
    def at(self) -> str:
        """Where, as a sentence goes on; nothing where no row is bad."""
        row = f" (row {self.event_id})" if self.event_id is not None else ""
        return "" if self.shard == NO_CHAIN else f" at chain {self.shard}, number {self.number}{row}"

    def __str__(self) -> str:
        return f"{self.at.removeprefix(' at ')}: {self.problem}".removeprefix(": ")


@dataclass(frozen=True, slots=True)
class Verification:
    rows: int
    chains: int
    bad: BadRow | None
    #: Chain -> (length, head): kept elsewhere, it shows later that the whole trail was put back.
    heads: Mapping[int, tuple[int, str]]

    @property
    def ok(self) -> bool:
        return self.bad is None


def verify(*, checkpoint: str | None = None) -> Verification:
    """Walk every chain from its first row to its head, streaming; stops at the first bad row.

    Where old rows went, the walk begins at the checkpoint that stands for them, if it is one of ours. Finds
    rows that were edited, swapped, removed or inserted, and a tail that was cut: the head then matches no row,
    or, when it was set back too, bears no signature of ours. Rows written meanwhile do not disturb it. With a
    checkpoint of earlier, also finds that the trail as a whole was replaced by an older one.
    """
    rows = 0
    heads: dict[int, tuple[int, str]] = {}
    for shard in _shards():
        head = AuditChain.objects.filter(pk=shard).first()
        length, last = (head.length, head.head) if head else (0, NO_HASH)
        number, previous, _, bad = first_row_wanted(shard)
        started = number
        for event in _events(shard, length) if bad is None else ():
            number += 1
            bad = problem_of(event, number, previous)
            if bad:
                break
            previous = event.hash
        rows += number - started
        bad = bad or _tail_problem(shard, number, previous, length, last) or _extra_rows(shard, length)
        bad = bad or (_head_problem(head) if head else None)
        if bad:
            return Verification(rows, len(heads) + 1, bad, heads)
        heads[shard] = (length, last)
    bad = _replaced(checkpoint, heads) if checkpoint is not None else None
    return Verification(rows, len(heads), bad, heads)


def verify_and_keep(*, checkpoint: str | None = None) -> tuple[AuditCheck, Verification]:
    """Verify, compare with what is kept outside the database, and keep the result for the doors and the metric.

    What is intact becomes the next checkpoint outside.
    """
    return _keep(lambda: verify(checkpoint=checkpoint))


def look_at_heads() -> AuditCheck | None:
    """Compare the ends of the chains with the last checkpoint outside, and write the next; no row before is read.

    A check is kept, and answered, only when something is wrong: it takes the place of the last good one.
    """
    check, _ = _keep(_verify_heads, only_bad=True)
    return check if check.pk else None


def _verify_heads() -> Verification:
    heads: dict[int, tuple[int, str]] = {}
    bad = None
    for head in AuditChain.objects.order_by("shard"):
        heads[head.shard] = (head.length, head.head)
        row = AuditEvent.objects.filter(shard=head.shard, number=head.length).first()
        if row is not None and row.hash != head.head:
            bad = bad or BadRow(head.shard, head.length, row.pk, "the head of the chain is not its last row")
        elif row is None and head.length > first_row_wanted(head.shard)[0]:
            bad = bad or BadRow(head.shard, head.length, None, "the row is missing; the tail was cut")
        bad = bad or _head_problem(head)
    return Verification(0, len(heads), bad, heads)


def _keep(look: Callable[[], Verification], *, only_bad: bool = False) -> tuple[AuditCheck, Verification]:
    try:
        # Read first: a checkpoint that is written while the chains are read may be ahead of what is read.
        kept = audit_checkpoints.last()
        result = look()
        if result.ok and (missing := audit_guards.missing_trigger()):
            result = replace(result, bad=BadRow(NO_CHAIN, 0, None, missing))
        if result.ok and kept is not None:
            result = replace(result, bad=_compared(kept, result.heads))
        if result.ok:
            audit_checkpoints.keep(make_checkpoint(result))
    except audit_checkpoints.Unreachable as error:
        result = Verification(0, 0, BadRow(NO_CHAIN, 0, None, str(error)), {})
    except ProgrammingError as error:
        said = str(error).splitlines()[0]
        result = Verification(0, 0, BadRow(NO_CHAIN, 0, None, f"a table cannot be read: {said}"), {})
    check = AuditCheck(ok=result.ok, rows=result.rows, problem=str(result.bad)[:300] if result.bad else "")
    if not (only_bad and check.ok):
        check.save()
        AuditCheck.objects.filter(pk__lte=check.pk - CHECKS_KEPT).delete()
    return check, result


def _compared(kept: str, heads: Mapping[int, tuple[int, str]]) -> BadRow | None:
    where = f" (compared with {audit_checkpoints.file()})"
    try:
        return _replaced(kept, heads, where)
    except (ValueError, KeyError, TypeError, AttributeError):
        return BadRow(NO_CHAIN, 0, None, f"the checkpoint is not one that Muster signed{where}")


def make_checkpoint(result: Verification) -> str:
    """Signed JSON with every chain's length and head, to be kept out of the database owner's reach."""
    contents: dict[str, Any] = {
        "at": timezone.now().astimezone(UTC).isoformat(),
        "heads": {str(shard): list(head) for shard, head in sorted(result.heads.items())},
    }
    return json.dumps(contents | {"signature": _sign(contents, signing_keys()[0])}, sort_keys=True)


def _shards() -> list[int]:
    """Every chain that has a head or a row, in order."""
    with_rows = AuditEvent.objects.order_by("shard").values_list("shard", flat=True).distinct()
    return sorted({*AuditChain.objects.values_list("shard", flat=True), *with_rows})


def _events(shard: int, length: int) -> Iterator[AuditEvent]:
    chain = AuditEvent.objects.filter(shard=shard, number__lte=length).order_by("number")
    return chain.iterator(chunk_size=ROWS_AT_ONCE)


def first_row_wanted(shard: int) -> tuple[int, str, str, BadRow | None]:
    """After which row the rows of a chain begin: its number, its hash, and the checkpoint's signature.

    That of the last checkpoint, once all of them are ours and in line.
    """
    number, hash_, previous = 0, NO_HASH, ""
    for one in AuditCheckpoint.objects.filter(shard=shard).order_by("number"):
        signed = any(
            hmac.compare_digest(one.signature, checkpoint_signature(one, key)) for key in signing_keys()
        )
        if not signed or one.previous != previous or one.number != number + one.rows:
            bad = BadRow(shard, one.number, None, "the checkpoint here is not one that Muster made")
            return number, hash_, previous, bad
        number, hash_, previous = one.number, one.hash, one.signature
    return number, hash_, previous, None


def checkpoint_signature(one: AuditCheckpoint, key: bytes) -> str:
    contents = {
        "shard": one.shard,
        "number": one.number,
        "hash": one.hash,
        "rows": one.rows,
        "at": one.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "previous": one.previous,
    }
    return _sign(contents, key)


def problem_of(event: AuditEvent, number: int, previous: str) -> BadRow | None:
    """What is wrong with a row that should have this number and follow the row of this hash."""
    if event.number != number:
        return BadRow(
            event.shard, number, None, f"the row is missing; the next one there is number {event.number}"
        )
    if event.previous_hash != previous:
        return BadRow(event.shard, number, event.pk, "the row does not follow the one before it")
    if not any(hmac.compare_digest(event.hash, row_hash(event, key)) for key in signing_keys()):
        return BadRow(
            event.shard, number, event.pk, "the row is not what was written, or not written by Muster"
        )
    return None


def _tail_problem(shard: int, number: int, previous: str, length: int, head: str) -> BadRow | None:
    if number < length:
        had = "1 row" if length == 1 else f"{length} rows"
        return BadRow(shard, number + 1, None, f"the row is missing; the chain had {had}, the tail was cut")
    if previous != head:
        return BadRow(shard, number, None, "the head of the chain is not its last row")
    return None


def _head_problem(head: AuditChain) -> BadRow | None:
    if any(
        hmac.compare_digest(head.signature, head_signature(head.shard, head.length, head.head, key))
        for key in signing_keys()
    ):
        return None
    problem = "the head of the chain is not one that Muster signed; the tail may be cut and the head set back"
    return BadRow(head.shard, head.length, None, problem)


def _extra_rows(shard: int, length: int) -> BadRow | None:
    """Rows beyond the head: written just now, for then the head has moved as well; or put there by hand."""
    last = AuditEvent.objects.filter(shard=shard).aggregate(last=Max("number"))["last"] or 0
    if last <= length:
        return None
    head = AuditChain.objects.filter(pk=shard).first()
    known = head.length if head else 0
    if last <= known:
        return None
    extra = (
        AuditEvent.objects.filter(shard=shard, number__gt=known)
        .order_by("number")
        .values_list("pk", "number")
    )
    event_id, number = extra[0]
    return BadRow(shard, number, event_id, f"the row is beyond the head of its chain, which has {known} rows")


def _replaced(checkpoint: str, heads: Mapping[int, tuple[int, str]], where: str = "") -> BadRow | None:
    """What the trail no longer has of what it had at this checkpoint; raises ValueError where it is none."""
    contents = json.loads(checkpoint)
    signature = str(contents.pop("signature", ""))
    if not any(hmac.compare_digest(signature, _sign(contents, key)) for key in signing_keys()):
        return BadRow(NO_CHAIN, 0, None, f"the checkpoint is not one that Muster signed{where}")
    at = f"at {written(datetime.fromisoformat(contents['at']))}"
    for shard, (length, head) in sorted((int(shard), head) for shard, head in contents["heads"].items()):
        now = heads.get(shard, (0, NO_HASH))[0]
        if now < length:
            problem = f"the row was there {at}; the trail was replaced by an older one{where}"
            return BadRow(shard, now + 1, None, problem)
        if length <= first_row_wanted(shard)[0]:
            continue  # a checkpoint of ours, made of rows that were right, stands for it
        row = AuditEvent.objects.filter(shard=shard, number=length).first()
        if length and (row is None or row.hash != head):
            problem = f"the row differs from the row {at}{where}"
            return BadRow(shard, length, row.pk if row else None, problem)
    return None


def _sign(contents: Mapping[str, Any], key: bytes) -> str:
    return hmac.new(key, json.dumps(contents, sort_keys=True).encode(), hashlib.sha256).hexdigest()
