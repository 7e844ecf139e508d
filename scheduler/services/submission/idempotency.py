"""Does a repeated request once: its key, hash and answer are written in one transaction with the work."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from django.db import connection, transaction

from accounts import permissions
from accounts.models import User
from accounts.services.audit import Thing
from infra.errors import Conflict, InvalidInput, NotAllowed
from scheduler.models import IdempotencyKey

ACCEPTABLE: Final = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered: a status and a body of plain JSON values."""

    status: int
    body: Any
    replayed: bool = False


def request_hash(*parts: str | bytes) -> str:
    """One hash over what makes two requests the same."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.hexdigest()


def do_once(*, user: User, key: str, request_hash: str, do: Callable[[], Answer]) -> Answer:
    """Do it and keep the answer, or give the answer that was kept.

    Raises InvalidInput when the key was used for another request, Conflict while the first request is still
    under way, NotAllowed when the caller may less than the one who got the answer: a role is gone, or the token is
    held to another project or has fewer scopes. What `do` raises is not kept: the key is then free for another
    try.
    """
    if not ACCEPTABLE.fullmatch(key):
        raise InvalidInput(
            message="An Idempotency-Key is 1 to 200 visible ASCII characters.",
            code="idempotency-key-bad",
            status=400,
            way_out="Use a new UUID for each new request.",
        )
    with transaction.atomic():
        # 1. The holder of the lock does it now; the lock ends with the transaction, however it ends.
        if not _lock(user, key):
            raise Conflict(
                message="The first request with this Idempotency-Key is still in progress.",
                code="idempotency-in-progress",
                way_out="Send the request again in a second to get the answer of the first.",
                extra={"retry_after_seconds": 1},
            )
        # 2. A kept answer was committed together with its work.
        kept = IdempotencyKey.objects.filter(user=user, key=key).first()
        if kept is not None:
            return _replay(kept, request_hash, user)
        # 3. Otherwise do it, and commit both or neither.
        rights = permissions.standing(user)
        answer = do()
        IdempotencyKey.objects.create(
            user=user, key=key, request_hash=request_hash, status=answer.status, body=answer.body,
            rights=rights,
        )  # fmt: skip
        return answer


def _lock(user: User, key: str) -> bool:
    number = int.from_bytes(hashlib.sha256(f"{user.pk}:{key}".encode()).digest()[:8], "big", signed=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [number])
        return bool(cursor.fetchone()[0])


def _replay(kept: IdempotencyKey, request_hash: str, user: User) -> Answer:
    if kept.request_hash != request_hash:
        raise InvalidInput(
            message="This Idempotency-Key was used for another request.",
            code="idempotency-key-reused",
            way_out="Use a new key for each new request, and the same one only to repeat it unchanged.",
        )
    if not permissions.covers_standing(permissions.standing(user), kept.rights):
        raise NotAllowed(
            message="This request was executed before with more permissions than you have now (role, scope or "
            "project of the token), so the answer is not repeated.",
            code="rights-changed",
            way_out=(
                "Look up the result with a sign-in that may see it. Do not send the request with "
                "a new key: it was executed."
            ),
            refused=("replay", Thing("idempotencykey", str(kept.pk))),
        )
    return Answer(status=kept.status or 200, body=kept.body, replayed=True)
