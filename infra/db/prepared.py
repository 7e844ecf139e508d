"""Statements whose text never changes: the server reads and plans them once for each connection.

Django puts the values into the text, so that the server sees a new statement every time; for those that run
with every request it spends more on planning them than on running them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from django.conf import settings
from django.db import connection
from psycopg import Connection, Cursor

#: For so long the server keeps the plans of a connection.
PLANS_SECONDS: Final = 5.0

Rows = list[tuple[Any, ...]]
Statement = tuple[str, Sequence[Any]]

#: Nothing is prepared because it came often, only what is asked for here.
_NEVER_BY_ITSELF: Final = 2**31
#: At most this number on one connection; the driver would forget the oldest of a hundred.
_KEPT: Final = 1000
_END_PLANS: Final[Statement] = ("DISCARD PLANS", ())


def ask(sql: str, parameters: Sequence[Any] = ()) -> Rows:
    """Run one statement; its rows, if it gives any.

    What listens to Django's cursors does not see it: tables whose history is tracked are not written here.
    """
    return ask_together((sql, parameters))[0]


def ask_together(*statements: Statement) -> list[Rows]:
    """Run statements in their order and in one round trip, the beginning of a transaction included.

    None may depend on values that another gives. Outside a transaction they stand or fall together.

    PostgreSQL makes a plan for the sizes that its tables have, keeps it, and plans anew only after the statistics of
    a table were taken. A plan of tables with a few rows reads each of them whole; beside 100,000 jobs that were
    submitted in the last seconds such a plan takes a hundred times as long. So plans end after PLANS_SECONDS.
    """
    with connection.wrap_database_errors:
        connection.ensure_connection()
        connection.validate_no_broken_transaction()
        inner: Connection[Any] = connection.connection
        prepare = settings.MUSTER_DB_PREPARED
        if prepare and inner.prepare_threshold is None:
            inner.prepare_threshold = _NEVER_BY_ITSELF
            inner.prepared_max = _KEPT
        began = time.monotonic()
        if prepare and _plans_are_old(inner, began):
            statements = (_END_PLANS, *statements)
        if len(statements) == 1 and (not connection.in_atomic_block or inner.info.transaction_status):
            cursors = [_run(inner, statements[0], prepare)]
        else:
            with inner.pipeline():
                cursors = [_run(inner, statement, prepare) for statement in statements]
        found = [cursor.fetchall() if _gives_rows(cursor) else [] for cursor in cursors]
    if connection.queries_logged:
        spent = time.monotonic() - began
        connection.queries_log.append(
            {"sql": ";\n".join(sql.strip() for sql, _ in statements), "time": f"{spent:.3f}"}
        )
    return found[1:] if statements[0] is _END_PLANS else found


def keep_plans() -> None:
    """Let the server plan what this thread asks with `ask` for any values, and keep the plans for PLANS_SECONDS.

    PostgreSQL by itself plans a statement with an array anew each time, because it hopes to gain by the values; one
    that finds a few rows in many tables takes ten times as long to plan as to run. Call it before the work, outside a
    transaction.
    """
    if not settings.MUSTER_DB_PREPARED or connection.in_atomic_block:
        return
    with connection.wrap_database_errors:
        connection.ensure_connection()
    inner: Any = connection.connection
    if not getattr(inner, "plans_for_any_values", False):
        with connection.cursor() as cursor:
            cursor.execute("SET plan_cache_mode = force_generic_plan")
        inner.plans_for_any_values = True


def _plans_are_old(inner: Any, now: float) -> bool:
    """Whether the plans of a connection have to end; the next ones are kept from now on."""
    until: float | None = getattr(inner, "plans_until", None)
    if until is None or now >= until:
        inner.plans_until = now + PLANS_SECONDS
    return until is not None and now >= until


def _gives_rows(cursor: Cursor[Any]) -> bool:
    """What `cursor.description` says too, after it has made an object for each column."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


def _run(inner: Connection[Any], statement: Statement, prepare: bool) -> Cursor[Any]:
    cursor = Cursor(inner)
    cursor.execute(statement[0], statement[1] or None, prepare=prepare)
    return cursor
