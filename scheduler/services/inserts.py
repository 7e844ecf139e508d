"""Writes many rows of one table with one statement, sending what they have in common only once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from django.db import connection, models


def insert_jobs_with_events(
    job_model: type[models.Model],
    rows: Sequence[Mapping[str, Any]],
    event_model: type[models.Model],
    event: Mapping[str, Any],
) -> dict[Any, int]:
    """Insert job rows, in order, and one equal event for each; answers uuid -> number.

    Equal columns go over as one value and the others as one array each: a thousand equal jobs cost little
    more than one. `rows` all have the same columns, by their names in the table.
    """
    jobs, job_values = _select(job_model, rows)
    events, event_values = _select(event_model, [event], beside={"job_id": "new.number"})
    sql = (
        f"WITH new AS ({jobs} RETURNING number, uuid), told AS ({events.replace('FROM one', 'FROM new')}) "  # noqa: S608
        "SELECT uuid, number FROM new"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [*job_values, *event_values])
        return dict(cursor.fetchall())


def _select(
    model: type[models.Model], rows: Sequence[Mapping[str, Any]], *, beside: Mapping[str, str] | None = None
) -> tuple[str, list[Any]]:
    types = _types(model)
    names, expressions, values = [], [], []
    arrays, array_values = [], []
    for name in rows[0]:
        column = [row[name] for row in rows]
        kind = types[name]
        first = column[0]
        # `is` first: equal values of a batch are mostly the same object, and comparing objects costs.
        if all(value is first or value == first for value in column):
            expressions.append(f"%s::{kind}")
            values.append(_plain(first, kind))
        else:
            expressions.append(f"v.{name}::{kind}")
            arrays.append((name, "text" if kind == "jsonb" else kind))
            array_values.append([_plain(value, kind) for value in column])
        names.append(name)
    for name, expression in (beside or {}).items():
        names.append(name)
        expressions.append(expression)
    source = "one"
    if arrays:
        lists = ", ".join(f"%s::{kind}[]" for _, kind in arrays)
        source = (
            f"unnest({lists}) WITH ORDINALITY AS v({', '.join(n for n, _ in arrays)}, place) ORDER BY place"
        )
    elif not beside:
        source = "(SELECT 1) AS one"
    table = model._meta.db_table
    sql = f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(expressions)} FROM {source}"  # noqa: S608
    return sql, [*values, *array_values]


@lru_cache
def _types(model: type[models.Model]) -> dict[str, str]:
    """Column -> type to cast to. Text stays unbounded here: a cast to varchar(n) would cut it in silence."""
    types = {}
    for field in model._meta.concrete_fields:
        kind = field.rel_db_type(connection) if field.is_relation else field.db_type(connection)
        types[field.column] = "text" if str(kind).startswith("varchar") else str(kind)
    return types


def _plain(value: Any, kind: str) -> Any:
    if kind == "jsonb" and value is not None:
        return json.dumps(value)
    return value
