"""All tables of an empty database at once: `schema.sql` holds what its migrations would have made one after another.

`make schema` writes that file by running the migrations and dumping the result; a test compares both. Migrations
newer than the file run after it. Where the file cannot be trusted (PostgreSQL of another version, or a migration
that reads otherwise than the one that was run for the file) an empty database is made by the migrations as well.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.transaction import atomic

FILE: Final = Path(__file__).with_name("schema.sql")
_HEAD: Final = """\
-- The tables, functions and triggers that all migrations make of an empty database. Written by `make schema`.
-- Loaded in place of these migrations where a database is empty; config/database/schema.py says when.
"""
_VERSION: Final = re.compile(r"^-- postgresql (\d+)$", re.MULTILINE)
_MIGRATION: Final = re.compile(r"^-- migration (\w+)\.(\w+) ([0-9a-f]{16})$", re.MULTILINE)
#: What pg_dump writes for the session of psql that reads its output, and the comment of an extension, which only a
#: superuser may write.
_FOR_PSQL: Final = re.compile(
    r"^(SET \w+ = .*;|SELECT pg_catalog\.set_config\('search_path'.*|COMMENT ON EXTENSION .*|\\.*|--.*)\n",
    re.MULTILINE,
)
_BLANK_LINES: Final = re.compile(r"\n{3,}")

Key: TypeAlias = tuple[str, str]


def load_into_empty(connection: BaseDatabaseWrapper) -> int:
    """Load the file where the database has no table; answers how many migrations that was in place of."""
    if connection.introspection.table_names() or not FILE.exists():
        return 0
    text = FILE.read_text()
    if not usable(text, connection):
        return 0
    migrations = list(migrations_of(text))
    with atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute("SET LOCAL check_function_bodies = false")
        cursor.execute(text)
        recorder = MigrationRecorder(connection)
        for (app, name), _ in migrations:
            recorder.record_applied(app, name)
    return len(migrations)


def usable(text: str, connection: BaseDatabaseWrapper) -> bool:
    """Whether the migrations of a file are there as they were, need no others, and made it for this PostgreSQL."""
    migrations = dict(migrations_of(text))
    loader = MigrationLoader(connection)
    return version_of(text) == server_version(connection) and all(
        key in loader.disk_migrations
        and digest(loader.disk_migrations[key]) == value
        and all(parent in migrations for parent in loader.graph.node_map[key].parents)
        for key, value in migrations.items()
    )


def written(dump: str, connection: BaseDatabaseWrapper) -> str:
    """The content of the file: `dump` is what `pg_dump --schema-only` wrote once all migrations had run."""
    loader = MigrationLoader(connection)
    applied = [key for key in _in_order(loader) if key in loader.applied_migrations]
    lines = [f"-- postgresql {server_version(connection)}"]
    lines += [
        f"-- migration {app}.{name} {digest(loader.disk_migrations[app, name])}" for app, name in applied
    ]
    return "\n".join([_HEAD + "\n".join(lines), plain(dump)])


def plain(dump: str) -> str:
    """A dump without comments and without what is meant for psql."""
    return _BLANK_LINES.sub("\n\n", _FOR_PSQL.sub("", dump)).lstrip("\n")


def version_of(text: str) -> int:
    """The major version of the PostgreSQL that a file was dumped from."""
    found = _VERSION.search(text)
    return int(found[1]) if found else 0


def migrations_of(text: str) -> Iterator[tuple[Key, str]]:
    """The migrations that a file was made with, with their digests, in the order in which they ran."""
    for app, name, value in _MIGRATION.findall(text):
        yield (app, name), value


def server_version(connection: BaseDatabaseWrapper) -> int:
    connection.ensure_connection()
    return int(connection.pg_version) // 10_000  # type: ignore[attr-defined]


def digest(migration: Migration) -> str:
    """16 hexadecimal digits that change with the text of a migration."""
    file = inspect.getsourcefile(type(migration))
    assert file is not None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]


def _in_order(loader: MigrationLoader) -> list[Key]:
    order: dict[Key, None] = {}
    for leaf in sorted(loader.graph.leaf_nodes()):
        order.update(dict.fromkeys(loader.graph.forwards_plan(leaf)))
    return list(order)
