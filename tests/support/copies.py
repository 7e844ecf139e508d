"""A world that thousands of tests begin with: made once in each worker, then copied into the database for each test.

`a_portal` and its like take some dozens of statements. What the first call in an empty database writes is kept: its
rows in a function of the database, which writes them again in one statement, and its objects in a pickle. Rows and
objects of a copy have the ids of the first ones, and times that are as much later as the copy is. A copy is given only
to a database without rows in any of these tables; in any other the world is made, as the first one was.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from functools import wraps
from types import SimpleNamespace
from typing import Any, TypeVar

from django.db import connection
from django.db.models import Model
from django.utils import timezone
from psycopg import connect, sql

from tests.support import embedded

Made = TypeVar("Made")
#: What a database has in it before any test.
THERE = ("django_content_type", "auth_permission", "django_migrations")
SCHEMA = "copies"


@dataclass(frozen=True, slots=True)
class Kept:
    function: str
    objects: bytes
    at: datetime


def copied(make: Callable[[], Made]) -> Callable[[], Made]:
    """`make`, which needs some milliseconds from its second call on."""
    kept: list[Kept] = []

    @wraps(make)
    def copy_or_make() -> Made:
        if kept:
            later = timezone.now() - kept[0].at
            if written(kept[0].function, later):
                return moved(pickle.loads(kept[0].objects), later)
            return make()
        # Only a server that the suite started and throws away is written to beside the tests.
        if not embedded.started_here or rows():
            return make()
        at, made = timezone.now(), make()
        objects = pickle.dumps(made)
        function = f"{make.__module__}.{make.__name__}".replace(".", "_")
        keep_rows(function, rows())
        kept.append(Kept(function, objects, at))
        return made

    return copy_or_make


def rows() -> dict[str, str]:
    """The rows of each table that has any, as JSON."""
    names = [name for name in connection.introspection.table_names() if name not in THERE]
    with connection.cursor() as cursor:
        cursor.execute(
            sql.SQL(" UNION ALL ").join(
                sql.SQL("SELECT {}, jsonb_agg(t)::text FROM {} t HAVING count(*) > 0").format(
                    sql.Literal(name), sql.Identifier(name)
                )
                for name in sorted(names)
            )
        )
        return dict(cursor.fetchall())


def keep_rows(function: str, found: dict[str, str]) -> None:
    """Make a function of these rows, outside of the transaction that will take them back."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name, data_type = 'timestamp with time zone' FROM information_schema.columns"
            " WHERE table_schema = 'public' AND is_generated = 'NEVER' ORDER BY ordinal_position"
        )
        columns = cursor.fetchall()
    empty = sql.SQL(" OR ").join(sql.SQL("EXISTS (SELECT FROM {})").format(sql.Identifier(t)) for t in found)
    writes = [
        write(table, text, [(c, t) for name, c, t in columns if name == table])
        for table, text in found.items()
    ]
    body = sql.SQL("BEGIN IF {} THEN RETURN false; END IF; {} RETURN true; END").format(
        empty, sql.SQL(" ").join(writes)
    )
    # As a superuser, with triggers and foreign keys left aside: what they would write is among the rows.
    made = sql.SQL(
        "CREATE SCHEMA IF NOT EXISTS {schema}; GRANT USAGE ON SCHEMA {schema} TO PUBLIC;"
        "CREATE OR REPLACE FUNCTION {schema}.{name}(later interval) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER"
        " SET session_replication_role = replica SET search_path = public AS {body}"
    ).format(
        schema=sql.Identifier(SCHEMA), name=sql.Identifier(function), body=sql.Literal(body.as_string(None))
    )
    where = connection.settings_dict
    with connect(
        host=where["HOST"], port=where["PORT"], user=where["USER"], password=where["PASSWORD"],
        dbname=where["NAME"], autocommit=True,
    ) as beside:  # fmt: skip
        beside.execute("SET ROLE none")
        beside.execute(made)


def write(table: str, text: str, columns: Iterable[tuple[str, bool]]) -> sql.Composed:
    names = [(sql.Identifier(column), is_time) for column, is_time in columns]
    return sql.SQL(
        "INSERT INTO {table} ({into}) SELECT {values} FROM jsonb_populate_recordset(NULL::{table}, {rows});"
    ).format(
        table=sql.Identifier(table),
        into=sql.SQL(", ").join(name for name, _ in names),
        values=sql.SQL(", ").join(
            sql.SQL("{} + later").format(name) if is_time else name for name, is_time in names
        ),
        rows=sql.Literal(text),
    )


def written(function: str, later: timedelta) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {SCHEMA}.{function}(%s)", [later])
        [answer] = cursor.fetchone()
    return bool(answer)


def moved(thing: Any, later: timedelta) -> Any:
    """The same object, with each of its times so much later, and those of the rows that it names."""
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Model):
            for name, value in vars(one).items():
                if isinstance(value, datetime):
                    vars(one)[name] = value + later
            waiting += vars(one._state).get("fields_cache", {}).values()
        elif is_dataclass(one):
            waiting += [getattr(one, field.name) for field in fields(one)]
        elif isinstance(one, SimpleNamespace):
            waiting += vars(one).values()
    return thing
