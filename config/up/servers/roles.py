"""The roles of the embedded PostgreSQL: who may do what there, and how older data folders come to have them.

SUPERUSER made the data folder; the supervisor alone connects as it. OWNER has the tables and changes them.
APPLICATION owns nothing: it gets from the owner what `config.database.rights` lists, after each migration.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from config.up.state import StateFolder, write_private

if TYPE_CHECKING:  # see `config.up.servers.postgres`
    from psycopg import Connection

#: Earlier versions did everything as this role.
SUPERUSER: Final = "muster"
OWNER: Final = "muster_owner"
APPLICATION: Final = "muster_app"
#: Names the owner to commands that migrate.
OWNER_URL: Final = "MUSTER_OWNER_DATABASE_URL"

_FILES: Final = {
    SUPERUSER: "postgres_password",
    OWNER: "postgres_owner_password",
    APPLICATION: "postgres_app_password",
}
_PLAIN: Final = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS"

#: Everything in the schema that the superuser made for an earlier version. What belongs to an extension stays with
#: it, and a sequence of a column follows its table.
_HAND_OVER: Final = """
DO $do$
DECLARE thing record;
BEGIN
    FOR thing IN
        SELECT format('TABLE %s', c.oid::regclass) AS words FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace AND c.relowner <> {owner}::regrole
            AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND NOT EXISTS (
                SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                    AND (d.deptype = 'e' OR (c.relkind = 'S' AND d.deptype IN ('a', 'i'))))
        UNION ALL
        SELECT format('ROUTINE %s', p.oid::regprocedure) FROM pg_proc p
        WHERE p.pronamespace = 'public'::regnamespace AND p.proowner <> {owner}::regrole AND NOT EXISTS (
            SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
        UNION ALL
        SELECT format('STATISTICS %I.%I', 'public', s.stxname) FROM pg_statistic_ext s
        WHERE s.stxnamespace = 'public'::regnamespace AND s.stxowner <> {owner}::regrole
    LOOP
        EXECUTE format('ALTER %s OWNER TO %I', thing.words, {owner});
    END LOOP;
END
$do$
"""


class Passwords:
    """The password of each role, in a file of the state folder that its owner alone can read."""

    def __init__(self, state: StateFolder) -> None:
        self._state = state

    def of(self, role: str) -> str:
        return self._state.secret(_FILES[role])

    def url(self, role: str, *, like: str) -> str:
        """The same database for another role."""
        where = urlsplit(like)
        place = f"{role}:{quote(self.of(role))}@{where.hostname}:{where.port}"
        return where._replace(netloc=place).geturl()

    def change(self, connection: Connection[Any], role: str) -> None:
        """Give a role a new password, which is written down before the database knows it."""
        fresh = secrets.token_urlsafe(48)
        write_private(self._next_file(role), fresh + "\n")
        _set_password(connection, role, fresh)
        self.believe_next(role)

    def following(self, role: str) -> str | None:
        """What a change that was cut short may have made the password; None where there was none."""
        try:
            return self._next_file(role).read_text().strip()
        except FileNotFoundError:
            return None

    def believe_next(self, role: str) -> None:
        os.replace(self._next_file(role), self._state.path / _FILES[role])

    def _next_file(self, role: str) -> Path:
        return self._state.path / f"{_FILES[role]}.next"


def is_of_earlier(connection: Connection[Any], database: str) -> bool:
    """Whether the data is of a version whose every process was the superuser."""
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_database WHERE datname = %s)"
        " AND NOT EXISTS (SELECT FROM pg_roles WHERE rolname = %s)",
        [database, OWNER],
    ).fetchone()
    return bool(row and row[0])


def make(connection: Connection[Any], passwords: Passwords, database: str) -> None:
    """Make the roles and the database where they are missing."""
    from psycopg import sql

    known = {str(name) for (name,) in connection.execute("SELECT rolname FROM pg_roles").fetchall()}
    for role in (OWNER, APPLICATION):
        verb = "ALTER" if role in known else "CREATE"
        connection.execute(sql.SQL(f"{verb} ROLE {{}} {_PLAIN}").format(sql.Identifier(role)))
        _set_password(connection, role, passwords.of(role))
    found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database]).fetchone()
    if found is None:
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(database), sql.Identifier(OWNER))
        )
    for name in ("postgres", "template1"):
        connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name)))
    close_database(connection, database)


def close_database(connection: Connection[Any], database: str) -> None:
    """The owner has this database, and the application may connect: no more, not even a temporary table."""
    from psycopg import sql

    words = {
        "database": sql.Identifier(database),
        "owner": sql.Identifier(OWNER),
        "app": sql.Identifier(APPLICATION),
    }
    for statement in (
        "ALTER DATABASE {database} OWNER TO {owner}",
        "REVOKE ALL ON DATABASE {database} FROM PUBLIC",
        "GRANT CONNECT ON DATABASE {database} TO {app}",
    ):
        connection.execute(sql.SQL(statement).format(**words))


def hand_over(connection: Connection[Any]) -> None:
    """Give the owner what the superuser made in this database."""
    from psycopg import sql

    connection.execute(sql.SQL(_HAND_OVER).format(owner=sql.Literal(OWNER)))


def _set_password(connection: Connection[Any], role: str, password: str) -> None:
    """Sent as its verifier: no statement, and so no log, holds the password."""
    from psycopg import sql

    verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    connection.execute(
        sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(verifier))
    )
