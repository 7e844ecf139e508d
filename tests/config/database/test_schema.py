"""An empty database gets from `schema.sql` what all migrations would have made of it."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from psycopg import sql

from config.database import schema
from config.management.commands.write_schema import dump
from config.up.servers import roles
from config.up.servers.postgres import DATABASE
from tests.support import embedded

pytestmark = pytest.mark.django_db


@pytest.fixture
def server() -> Iterator[Callable[[str], dict[str, Any]]]:
    """Makes a database without a table, owned as ours is; its settings name the superuser."""
    if not embedded.started_here:
        pytest.skip(
            "DATABASE_URL names a server: only a server that this suite started has the migrated database"
        )
    superuser = {"USER": roles.SUPERUSER, "PASSWORD": embedded.PASSWORD}
    where = {**connection.settings_dict, **superuser, "NAME": DATABASE}
    made: list[str] = []
    with connected({**where, "NAME": "postgres"}) as server:

        def drop(name: str) -> None:
            server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

        def make(name: str) -> dict[str, Any]:
            drop(name)
            made.append(name)
            owned = sql.SQL("CREATE DATABASE {} OWNER {}")
            server.execute(owned.format(sql.Identifier(name), sql.Identifier(roles.OWNER)))
            return {**where, "NAME": name}

        try:
            yield make
        finally:
            for name in made:
                drop(name)


def connected(where: dict[str, Any]) -> psycopg.Connection[Any]:
    return psycopg.connect(
        host=where["HOST"], port=where["PORT"], user=where["USER"], password=where["PASSWORD"],
        dbname=where["NAME"], autocommit=True,
    )  # fmt: skip


def migrated(where: dict[str, Any], *options: str) -> str:
    """What `manage.py migrate` says of the tables it made in this database."""
    url = f"postgres://{{}}:{embedded.PASSWORD}@{where['HOST']}:{where['PORT']}/{where['NAME']}"
    done = subprocess.run(
        [sys.executable, "manage.py", "migrate", "--skip-checks", *options],
        cwd=embedded.ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "config.settings.test",
            "DATABASE_URL": url.format(roles.APPLICATION),
            roles.OWNER_URL: url.format(roles.OWNER),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(1800)  # a minute of a processor that others may use as well, where a migration is new
def test_the_file_makes_the_same_tables_as_the_migrations(server: Callable[[str], dict[str, Any]]) -> None:
    """What the migrations make is kept from run to run, as long as their text stays."""
    by_file = server("by_file")

    assert "Loaded config/database/schema.sql" in migrated(by_file), (
        "a migration was changed: run `make schema`"
    )
    assert "No migrations to apply" in migrated(by_file)

    def each_migration() -> str:
        by_each = server("by_each")
        assert "Loaded" not in migrated(by_each, "--each")
        return reloaded(schema.plain(dump(by_each)), server("reloaded"))

    tables = reloaded(schema.plain(dump(by_file)), server("reloaded"))
    expected = embedded.made_by_each_migration(schema.server_version(connection), each_migration)
    assert tables.count("CREATE TABLE") > 90
    difference = list(
        difflib.unified_diff(expected.splitlines(), tables.splitlines(), "migrations", "file", n=1)
    )
    assert not difference, "run `make schema`:\n" + "\n".join(difference[:60])


def reloaded(dumped: str, where: dict[str, Any]) -> str:
    """A dump of what a dump makes: PostgreSQL writes an expression otherwise than it read it, but the same twice."""
    with connected(where) as connection:
        connection.execute(dumped.encode())
    return schema.plain(dump(where))


def test_a_database_with_tables_is_left_to_the_migrations() -> None:
    assert schema.load_into_empty(connection) == 0


def test_a_file_is_used_with_the_migrations_and_the_postgresql_that_made_it_alone() -> None:
    text = schema.FILE.read_text()
    (key, value), *_ = schema.migrations_of(text)
    line = f"-- migration {'.'.join(key)} {value}\n"
    assert line in text

    assert schema.usable(text, connection)
    assert not schema.usable(text.replace(value, "0" * 16), connection), "the migration was changed"
    assert not schema.usable(text.replace(line, ""), connection), "another of the file needs it"
    assert not schema.usable(text.replace(key[1], "0000_removed", 1), connection)
    version = schema.version_of(text)
    assert not schema.usable(text.replace(f"-- postgresql {version}", "-- postgresql 9"), connection)


def test_a_file_is_not_written_from_a_database_with_tables() -> None:
    with pytest.raises(CommandError, match="has tables"):
        call_command("write_schema")


def test_the_head_of_the_file_is_read_as_it_was_written() -> None:
    text = "-- postgresql 18\n-- migration infra.0001_initial 0123456789abcdef\nCREATE TABLE x ();\n"

    assert schema.version_of(text) == 18
    assert list(schema.migrations_of(text)) == [(("infra", "0001_initial"), "0123456789abcdef")]
