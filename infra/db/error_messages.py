"""What the database refuses or does not answer, in a person's words; for every door the same."""

from __future__ import annotations

import errno
from typing import Any, Final

from django.core.cache import cache
from django.db import DatabaseError, InterfaceError, OperationalError

from infra.errors import MusterError

#: Where all processes remember that PostgreSQL could not write, and for how long they do.
DISK_FULL_KEY: Final = "muster:database-disk-full"
DISK_FULL_SECONDS: Final = 60
RETRY_SECONDS: Final = 5

_WORDS: Final = {
    "57014": MusterError(
        message="The database did not finish within the time limit of one request.",
        code="took-too-long",
        status=503,
        way_out="Nothing was written. Request less: fewer rows, a shorter period, more filters.",
    ),
    "25P03": MusterError(  # idle in a transaction
        message="The request was idle inside a transaction for too long, so the database ended it.",
        code="took-too-long",
        status=503,
        way_out="Nothing was written. Try again, with the same Idempotency-Key.",
        extra={"retry_after_seconds": RETRY_SECONDS},
    ),
    "25006": MusterError(  # a standby, as while the server moves to another machine
        message="The database is read-only at the moment.",
        code="unavailable",
        status=503,
        way_out="Nothing was written. Try again in a few seconds, with the same Idempotency-Key.",
        extra={"retry_after_seconds": RETRY_SECONDS},
    ),
    "55P03": MusterError(
        message="Another request has locked a row that this request needs.",
        code="busy",
        status=503,
        way_out="Nothing was written. Try again in a few seconds, with the same Idempotency-Key.",
        extra={"retry_after_seconds": RETRY_SECONDS},
    ),
    "53100": MusterError(
        message="The disk is full, so nothing can be stored at the moment.",
        code="disk-full",
        status=503,
        way_out="Nothing was written. Tell an operator, and try again later with the same Idempotency-Key.",
        extra={"retry_after_seconds": 60},
    ),
}


def to_error(error: BaseException | None) -> MusterError | None:
    """The refusal that a person reads, or None where the error is not about the database's state."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        state = "53100"
    elif isinstance(error, (DatabaseError, InterfaceError)):
        state = sql_state(error)
        if not isinstance(error, (OperationalError, InterfaceError)) and state not in _WORDS:
            return None
        if state == "53100":
            cache.set(DISK_FULL_KEY, True, DISK_FULL_SECONDS)
    else:
        return None
    known = _WORDS.get(state)
    return MusterError(
        message=known.message if known else "The database does not respond at the moment.",
        code=known.code if known else "unavailable",
        status=503,
        way_out=known.way_out if known else "Try again in a few seconds, with the same Idempotency-Key.",
        extra=dict(known.extra) if known else {"retry_after_seconds": RETRY_SECONDS},
    )


def sql_state(error: DatabaseError | InterfaceError | OperationalError) -> str:
    """PostgreSQL's five characters, empty where the server said none."""
    cause: Any = error.__cause__
    return str(getattr(cause, "sqlstate", None) or "")
