"""A backup of the test database, and its restoration while servers and agents go on: rows and counters go back."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction

from tests.support.roles import all_rights

#: What a table is called in a backup.
_PREFIX = "backup_"


class Backup:
    """All rows and counters as they are now. The tables of a backup go with it: call `drop`."""

    def __init__(self) -> None:
        with all_rights(), transaction.atomic():
            self._columns = _columns()
            for table in self._columns:
                _run(f'CREATE TABLE "{_PREFIX}{table}" AS TABLE "{table}"')
            self._counters = dict(
                _run("SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'public'")
            )

    def restore(self) -> None:
        """Everything is as it was, at once; what was handed out since then is forgotten."""
        with all_rights(), transaction.atomic():
            _run("SET LOCAL session_replication_role = replica")  # as a restore: no trigger, no reference
            for table, columns in self._columns.items():
                names = ", ".join(f'"{name}"' for name in columns)
                _run(f'DELETE FROM "{table}"')
                _run(
                    f'INSERT INTO "{table}" ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM "{_PREFIX}{table}"'
                )
            for counter, last in self._counters.items():
                _run(f"SELECT setval('\"{counter}\"', %s, %s)", [last or 1, last is not None])

    def drop(self) -> None:
        with all_rights():
            for table in self._columns:
                _run(f'DROP TABLE IF EXISTS "{_PREFIX}{table}"')


def _columns() -> dict[str, list[str]]:
    """The tables of our schema with the columns that are written, without those that the database works out."""
    found: dict[str, list[str]] = {}
    for table, column in _run(
        "SELECT c.table_name, c.column_name FROM information_schema.columns c JOIN information_schema.tables t"
        " USING (table_schema, table_name) WHERE table_schema = 'public' AND t.table_type = 'BASE TABLE'"
        " AND c.is_generated = 'NEVER' AND table_name <> 'django_migrations' ORDER BY 1, c.ordinal_position"
    ):
        found.setdefault(table, []).append(column)
    return found


def _run(statement: str, values: Any = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else []
