"""Writes many jobs with one statement, sending what they have in common only once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from django.db import connection, models

from infra.db.prepared import Rows, Statement, ask_together


def insert_jobs_with_events(
    job_model: type[models.Model],
    rows: Sequence[Mapping[str, Any]],
    event_model: type[models.Model],
    event: Mapping[str, Any],
    *along: Statement,
) -> tuple[dict[Any, int], list[Rows]]:
    """Insert jobs, in order, and one equal event for each; answers uuid -> number.

    A job is two rows of one number, its request and what moves; `rows` have the columns of both, by their names
    in the tables, all the same ones. Columns that are equal in all rows go over as one JSON object and each of the
    others as an array: a thousand equal jobs cost little more than one, and the driver has few values to look at.
    Statements `along` run right after it in the same round trip; their rows are answered too.
    """
    equal: dict[str, Any] = {}
    differing: dict[str, list[Any]] = {}
    for name, first in rows[0].items():
        column = [row[name] for row in rows]
        # Counted in C, where the same object counts as equal unseen: most values of a batch are.
        if column.count(first) == len(column):
            equal[name] = first
        else:
            differing[name] = column
    sql = _statement(job_model, event_model, tuple(equal), tuple(differing), tuple(event))
    types = _types(job_model)
    arrays = [[_plain(v, types[name]) for v in column] for name, column in differing.items()]
    numbers, *others = ask_together((sql, [_json(equal), *arrays, _json(event)]), *along)
    return dict(numbers), others


@lru_cache(maxsize=64)
def _statement(
    job_model: type[models.Model],
    event_model: type[models.Model],
    equal: tuple[str, ...],
    differing: tuple[str, ...],
    event: tuple[str, ...],
) -> str:
    types = _types(job_model)
    (request_model,) = job_model._meta.parents
    requests, jobs, events = (model._meta.db_table for model in (request_model, job_model, event_model))
    requested = {field.column for field in request_model._meta.concrete_fields}
    named = [*equal, *differing]
    of_request = ", ".join(["number", *(name for name in named if name in requested)])
    of_job = ", ".join(["number", *(name for name in named if name not in requested)])
    values = ", ".join(
        [*(f"c.{name}" for name in equal), *(f"v.{name}::{types[name]}" for name in differing)]
    )
    source = f"json_to_record(%s::json) AS c({', '.join(f'{name} {types[name]}' for name in equal)})"
    if differing:
        sent = [types[name] if types[name] != "jsonb" else "text" for name in differing]
        lists = ", ".join(f"%s::{kind}[]" for kind in sent)
        source += f", unnest({lists}) WITH ORDINALITY AS v({', '.join(differing)}, place) ORDER BY place"
    return f"""
        WITH new AS MATERIALIZED (
            SELECT nextval('{requests}_number_seq') AS number, given.*
              FROM (SELECT {values} FROM {source}) AS given({", ".join(named)})
        ), new_requests AS (
            INSERT INTO {requests} ({of_request}) SELECT {of_request} FROM new
        ), new_jobs AS (
            INSERT INTO {jobs} ({of_job}) SELECT {of_job} FROM new
        ), first_events AS (
            INSERT INTO {events} ({", ".join(event)}, job_id)
            SELECT {", ".join(f"e.{name}" for name in event)}, new.number
              FROM new, json_populate_record(NULL::{events}, %s::json) AS e
        )
        SELECT uuid, number FROM new
        """  # noqa: S608  nothing but names of tables, columns and types


@lru_cache
def _types(model: type[models.Model]) -> dict[str, str]:
    """Column -> type to cast to. Text stays unbounded here: a cast to varchar(n) would cut it in silence."""
    types = {}
    for field in model._meta.concrete_fields:
        kind = field.rel_db_type(connection) if field.is_relation else field.db_type(connection)
        types[str(field.column)] = "text" if str(kind).startswith("varchar") else str(kind)
    return types


def _plain(value: Any, kind: str) -> Any:
    return json.dumps(value) if kind == "jsonb" and value is not None else value


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, default=str)  # times and UUIDs read as PostgreSQL reads them
