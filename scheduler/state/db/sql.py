"""Several statements in one message to the database, and values as it reads them fastest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import connection

Rows = list[tuple[Any, ...]]
Statement = tuple[str, Sequence[Any]]


def run(sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Rows:
    """Run one statement; its rows, if it gives any."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters if isinstance(parameters, Mapping) else list(parameters))
        return cursor.fetchall() if cursor.description else []


def select_together(*statements: Statement) -> list[Rows]:
    """Run SELECTs in their order and in one round trip; the rows of each."""
    with connection.cursor() as cursor:
        cursor.execute(*_joined(statements))
        cursor.set_result(0)  # a wrapper of the cursor may have moved on already
        found = [cursor.fetchall()]
        while cursor.nextset():
            found.append(cursor.fetchall())
        return found[-len(statements) :]  # ... or have put a statement of its own before these


def run_together(*statements: Statement) -> None:
    """Run statements that give no rows, in their order and in one round trip."""
    with connection.cursor() as cursor:
        cursor.execute(*_joined(statements))


def int_array(values: Iterable[int | None]) -> str:
    """An array as text, for `%s::bigint[]`; the driver would convert the numbers one by one."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def text_array(values: Iterable[str]) -> str:
    """The same for `%s::text[]`."""
    return "{" + ",".join(map(text_item, values)) + "}"


def text_item(value: str) -> str:
    """One value of such an array."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _joined(statements: Sequence[Statement]) -> tuple[str, list[Any]]:
    return (
        ";\n".join(sql.strip() for sql, _ in statements),
        [parameter for _, parameters in statements for parameter in parameters],
    )
