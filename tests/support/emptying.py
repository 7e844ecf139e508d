"""Empties the database after a test with real transactions: by deleting the few rows, not by making new files.

TRUNCATE makes a new file for each table and each index, hundreds in all, and Django then makes content types
and permissions again; deleting what a test left takes a thirtieth of that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pgtrigger
from django.db import DEFAULT_DB_ALIAS, Error, connection, transaction
from django.test import TransactionTestCase
from psycopg.errors import DeadlockDetected, InsufficientPrivilege

from tests.support.roles import all_rights

TRIES = 5
#: What belongs to the models themselves; it stays as the migrations left it.
KEPT = ("django_content_type", "auth_permission")
NEVER_TRUNCATED = ("accounts.AuditEvent:audit_never_truncated", "quotas.LedgerEntry:ledger_never_truncated")

flush: Callable[[TransactionTestCase], None] = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]


def empty(case: TransactionTestCase) -> None:
    """Stands in for TransactionTestCase._fixture_teardown.

    A server under test may still be writing in its own threads (the door for agents says every few seconds
    that it is open); where the two wait for each other, PostgreSQL ends one, and emptying begins again.
    """
    plain = (
        not case.available_apps
        and not case.serialized_rollback
        and set(case._databases_names(include_mirrors=False)) == {DEFAULT_DB_ALIAS}  # type: ignore[attr-defined]
    )
    for tries_left in reversed(range(TRIES)):
        try:
            if not (plain and deleted()):
                with all_rights(), pgtrigger.ignore(*NEVER_TRUNCATED):
                    flush(case)
            return
        except Exception as error:
            if not (tries_left and is_deadlock(error)):
                raise


def deleted() -> bool:
    """Delete all rows; False where this account may not do so past the triggers and foreign keys."""
    try:
        with transaction.atomic(), all_rights(), connection.cursor() as cursor:
            cursor.execute(statements())
    except Error as error:
        if isinstance(error.__cause__, InsufficientPrivilege):
            return False
        raise
    return True


@cache
def statements() -> str:
    """One round trip: nobody writes meanwhile, no trigger and no foreign key has a say, all rows go."""
    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    tables = [connection.ops.quote_name(name) for name in sorted(names) if name not in KEPT]
    return "; ".join(
        [
            "SET LOCAL session_replication_role = replica",
            f"LOCK TABLE {', '.join(tables)} IN EXCLUSIVE MODE",
            *(f"DELETE FROM {table}" for table in tables),
        ]
    )


def is_deadlock(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, DeadlockDetected):
            return True
        error = error.__cause__
    return False


def install() -> Callable[[], None]:
    """Empty like this from now on; what is returned ends it."""
    TransactionTestCase._fixture_teardown = empty  # type: ignore[attr-defined]

    def end() -> None:
        TransactionTestCase._fixture_teardown = flush  # type: ignore[attr-defined]

    return end
