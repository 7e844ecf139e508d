"""The right to plan a scope for a while: one row a scope, with a fencing token that rises with each term."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from django.db import connection

from infra.db.prepared import ask_together
from scheduler.state.db.sql import Rows, Statement
from scheduler.state.lease.lease_holder import is_gone

#: Trust ends this much before the database's own expiry: the time to notice and to stop.
MARGIN_SECONDS: Final = 1.0

Clock = Callable[[], float]


class LeaseLost(Exception):
    """Somebody else may hold the scope by now: nothing may be written under this term any more."""

    def __init__(self, lease: HeldLease) -> None:
        super().__init__(f"the lease of {lease.scope} (term {lease.token}) is held by another planner")


@dataclass(frozen=True, slots=True)
class HeldLease:
    """One term of one holder.

    Only the database's clock says when a term is over. `trusted_until` is on this process's monotonic
    clock and only ever shortens that: it counts from before the request was sent, so an answer that took
    long does not make the term longer.
    """

    scope: str
    holder: str
    token: int
    trusted_until: float
    clock: Clock = field(default=time.monotonic, compare=False, repr=False)

    @property
    def trusted(self) -> bool:
        return self.clock() < self.trusted_until

    @property
    def trusted_seconds(self) -> float:
        """How long it may still be used without asking the database again."""
        return max(0.0, self.trusted_until - self.clock())


def cluster_scope(cluster_id: int) -> str:
    return f"cluster:{cluster_id}"


def acquire(scope: str, *, holder: str, seconds: float, clock: Clock = time.monotonic) -> HeldLease | None:
    """Begin a new term when the scope is free or its term is over; None while somebody else's lasts.

    Taking it twice is two terms, also for the same holder, so that a delayed release of the first
    cannot end the second.
    """
    asked_at = clock()
    rows = _one_statement(_ACQUIRE, {"scope": scope, "holder": holder, "seconds": seconds})
    if not rows:
        return None
    return HeldLease(scope, holder, rows[0][0], asked_at + seconds - MARGIN_SECONDS, clock)


def renew(lease: HeldLease, *, seconds: float) -> HeldLease:
    """Make the term last `seconds` from now; raises LeaseLost when it is over or somebody else's."""
    asked_at = lease.clock()
    rows = _one_statement(_RENEW, {**_term(lease), "seconds": seconds})
    if not rows:
        raise LeaseLost(lease)
    return replace(lease, trusted_until=asked_at + seconds - MARGIN_SECONDS)


def release(lease: HeldLease) -> bool:
    """End exactly this term, so that the next planner need not wait; False when it was over already."""
    return bool(_one_statement(_RELEASE, _term(lease)))


def last_term(scope: str) -> int | None:
    """The token of the last term that was begun, whether it lasts or not; None before the first."""
    rows = _one_statement(_LAST, {"scope": scope})
    return int(rows[0][0]) if rows else None


def end_if_gone(scope: str) -> bool:
    """End the term of a holder whose process was killed, which would otherwise have to run out.

    It is as safe as its running out: what such a process still had on its way to the database is under the
    old token, and this waits for a transaction that has fenced itself with it.
    """
    rows = _one_statement(_WHO, {"scope": scope})
    if not rows or not is_gone(rows[0][0]):
        return False
    holder, token = rows[0]
    return bool(_one_statement(_RELEASE, {"scope": scope, "holder": holder, "token": token}))


def fence(lease: HeldLease) -> None:
    """Keep the term from being taken over until the current transaction ends; raises LeaseLost.

    The first statement of every transaction that writes under a lease: a planner that was replaced while
    it thought stops here, and one that is about to be replaced finishes first.
    """
    if not lease.trusted or not _one_statement(_FENCE, _term(lease)):
        raise LeaseLost(lease)


def fence_and_read(lease: HeldLease, *statements: Statement) -> list[Rows]:
    """The same, and the rows of SELECTs, in one round trip."""
    if lease.trusted:
        found, *rows = ask_together((_FENCE % _POSITIONS, list(_term(lease).values())), *statements)
        if found:
            return rows
    raise LeaseLost(lease)


def _term(lease: HeldLease) -> dict[str, str | int]:
    return {"scope": lease.scope, "holder": lease.holder, "token": lease.token}


def _one_statement(sql: str, parameters: Mapping[str, str | int | float]) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        rows: Rows = cursor.fetchall()
        return rows


# A term need not be on disk before it is used: what is written under it is, and that comes later in the
# same log. So the commit of a lease statement does not wait for the disk.
_NO_WAIT: Final = "set_config('synchronous_commit', 'off', true)"

_ACQUIRE: Final = f"""
INSERT INTO scheduler_lease AS lease (scope, holder, token, expires_at)
VALUES (%(scope)s, %(holder)s, 1, clock_timestamp() + make_interval(secs => %(seconds)s))
ON CONFLICT (scope) DO UPDATE
SET holder = excluded.holder, token = lease.token + 1, expires_at = excluded.expires_at
WHERE lease.expires_at IS NULL OR lease.expires_at <= clock_timestamp()
RETURNING token, {_NO_WAIT}
"""

_RENEW: Final = f"""
UPDATE scheduler_lease SET expires_at = clock_timestamp() + make_interval(secs => %(seconds)s)
WHERE scope = %(scope)s AND holder = %(holder)s AND token = %(token)s AND expires_at > clock_timestamp()
RETURNING token, {_NO_WAIT}
"""

_RELEASE: Final = f"""
UPDATE scheduler_lease SET expires_at = NULL, holder = ''
WHERE scope = %(scope)s AND holder = %(holder)s AND token = %(token)s
RETURNING token, {_NO_WAIT}
"""

_WHO: Final = """
SELECT holder, token FROM scheduler_lease WHERE scope = %(scope)s AND expires_at > clock_timestamp()
"""

_LAST: Final = "SELECT token FROM scheduler_lease WHERE scope = %(scope)s"

_FENCE: Final = """
SELECT token FROM scheduler_lease
WHERE scope = %(scope)s AND holder = %(holder)s AND token = %(token)s AND expires_at > clock_timestamp()
FOR SHARE
"""
#: The same parameters by their place.
_POSITIONS: Final = {"scope": "%s", "holder": "%s", "token": "%s"}
