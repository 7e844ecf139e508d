"""Retention: rules that say what of a table is old enough to go, counted or carried out in bounded batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import connection, transaction

#: Rows of one statement: a long delete would hold its locks and its transaction open.
BATCH: Final = 5000


@dataclass(frozen=True, slots=True)
class Rule:
    """One table. `which` selects the keys of what may go, with `LIMIT %(batch)s`; NULL is all of it.

    `statement` does away with `{which}` and selects how many rows it took; where rows hang on rows, `remove`
    takes the keys of one batch instead. `before` is the moment before which a row is old.
    """

    name: str
    words: str
    which: str
    #: Its setting in days, 0 = kept without limit; "" for a time that is no setting.
    setting: str = ""
    hours: int = 0
    #: What must be kept whatever the setting says, in days, and why.
    at_least_days: int = 0
    why: str = ""
    statement: str = ""
    remove: Callable[[list[int]], int] | None = None
    batch: int = BATCH
    more: Mapping[str, Any] = field(default_factory=dict)
    #: What `remove` had to leave although it is old, in words; it takes care that `which` does not find it again.
    left: Sequence[str] = ()

    @property
    def hours_kept(self) -> int:
        """0 = without limit."""
        if not self.setting:
            return self.hours
        days = int(getattr(settings, self.setting))
        return 24 * max(days, self.at_least_days) if days > 0 else 0

    @property
    def by_age(self) -> bool:
        return bool(self.setting or self.hours)

    def count(self, now: datetime) -> int:
        """How many rows would go."""
        if not self._applies():
            return 0
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM ({self.which}) doomed", self._words(now, None))  # noqa: S608
            return int(cursor.fetchone()[0])

    def carry_out(self, now: datetime) -> int:
        """Remove them, each batch in a transaction of its own; answers how many went."""
        if not self._applies():
            return 0
        gone = 0
        while True:
            left = len(self.left)
            with transaction.atomic(), connection.cursor() as cursor:
                words = self._words(now, self.batch)
                if self.remove is None:
                    cursor.execute(self.statement.replace("{which}", self.which), words)
                    some = int(cursor.fetchone()[0])
                else:
                    cursor.execute(self.which, words)
                    keys = [int(row[0]) for row in cursor.fetchall()]
                    some = self.remove(keys) if keys else 0
            gone += some
            if some < self.batch and len(self.left) == left:
                return gone

    def _applies(self) -> bool:
        return not self.by_age or self.hours_kept > 0

    def _words(self, now: datetime, batch: int | None) -> dict[str, Any]:
        return {"before": now - timedelta(hours=self.hours_kept), "now": now, "batch": batch, **self.more}


def delete_from(table: str, key: str = "id") -> str:
    """The statement of a rule whose rows nothing hangs on."""
    return (
        f"WITH gone AS (DELETE FROM {table} WHERE {key} IN ({{which}}) RETURNING 1) SELECT count(*) FROM gone"  # noqa: S608
    )


#: The rule of the audit trail is with the verb that does it: `accounts.services.audit_prune.rule`.
RULES: Final = (
    Rule(
        "sessions",
        "Sign-ins that have ended",
        "SELECT session_key FROM django_session WHERE expire_date < %(now)s LIMIT %(batch)s",
        statement=delete_from("django_session", "session_key"),
    ),
    Rule(
        "sign_in_counts",
        "Failed sign-ins that are forgotten",
        "SELECT key FROM accounts_signincount WHERE last_at < %(before)s LIMIT %(batch)s",
        hours=24,
        statement=delete_from("accounts_signincount", "key"),
    ),
)
