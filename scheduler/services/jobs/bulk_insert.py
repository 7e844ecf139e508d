"""Writes many jobs with one statement, sending what they have in common only once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from django.db import connection, models

from infra.db.prepared import Rows, Statement, ask_together
from scheduler.models import Job, JobEvent, JobRequest

#: What new jobs may have beside their columns: it tells their first events apart, and stands in these alone.
TRACEPARENT: Final = "traceparent"


@dataclass(slots=True)
class NewRows:
    """Columns of new rows, by their names in the table: what all rows have in common, and lists of what differs."""

    equal: dict[str, Any] = field(default_factory=dict)
    differing: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, name: str, column: Sequence[Any]) -> None:
        """A column with one value for each row, in their order."""
        # Counted in C, where the same object counts as equal unseen: most values of a batch are.
        if column.count(column[0]) == len(column):
            self.equal[name] = column[0]
        else:
            self.differing[name] = list(column)


def insert_jobs_with_events(
    rows: NewRows, events: Sequence[Mapping[str, Any]], *along: Statement
) -> tuple[dict[Any, int], list[Rows]]:
    """Insert jobs, in order, and the first event of each; answers uuid -> number.

    A job is two rows of one number, its request and what moves; `rows` have the columns of both, by their names
    in the tables. Columns that are equal in all rows go over as one JSON object and each of the others as an array: a
    thousand equal jobs cost little more than one, and the driver has few values to look at. Of `events`, which all
    have the same columns, a job gets the one of its person (`actor_id`) and its door (`via` of the details); where rows
    have a `traceparent`, which is no column of theirs, also of its trace.
    Statements `along` run right after it in the same round trip; their rows are answered too.
    """
    sql = _statement(tuple(rows.equal), tuple(rows.differing), tuple(events[0]))
    types = _types_of_rows()
    arrays = [[_plain(v, types[name]) for v in column] for name, column in rows.differing.items()]
    numbers, *others = ask_together((sql, [_json(rows.equal), *arrays, _json(list(events))]), *along)
    return dict(numbers), others


@lru_cache(maxsize=64)
def _statement(equal: tuple[str, ...], differing: tuple[str, ...], event: tuple[str, ...]) -> str:
    types = _types_of_rows()
    requests, jobs, events = (model._meta.db_table for model in (JobRequest, Job, JobEvent))
    requested = {column.column for column in JobRequest._meta.concrete_fields}
    named = [*equal, *differing]
    of_request = ", ".join(["number", *(name for name in named if name in requested)])
    of_job = ", ".join(["number", *(name for name in named if name not in {*requested, TRACEPARENT})])
    same_trace = f"AND e.details->>'{TRACEPARENT}' IS NOT DISTINCT FROM nullif(new.{TRACEPARENT}, '')"
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
            INSERT INTO {requests} ({of_request}, array_number)
            SELECT {of_request}, CASE WHEN array_id IS NOT NULL THEN min(number) OVER (PARTITION BY array_id) END
              FROM new
        ), new_jobs AS (
            INSERT INTO {jobs} ({of_job}) SELECT {of_job} FROM new
        ), first_events AS (
            INSERT INTO {events} ({", ".join(event)}, job_id)
            SELECT {", ".join(f"e.{name}" for name in event)}, new.number
              FROM new JOIN json_populate_recordset(NULL::{events}, %s::json) AS e
                ON e.actor_id = new.user_id AND e.details->>'via' = new.submitted_via
                {same_trace if TRACEPARENT in named else ""}
        )
        SELECT uuid, number FROM new
        """  # noqa: S608  nothing but names of tables, columns and types


@lru_cache
def _types(model: type[models.Model]) -> dict[str, str]:
    """Column -> type to cast to. Text stays unbounded here: a cast to varchar(n) would cut it in silence."""
    types = {}
    for column in model._meta.concrete_fields:
        kind = column.rel_db_type(connection) if column.is_relation else column.db_type(connection)
        types[str(column.column)] = "text" if str(kind).startswith("varchar") else str(kind)
    return types


@lru_cache
def _types_of_rows() -> dict[str, str]:
    return {**_types(Job), TRACEPARENT: "text"}


def _plain(value: Any, kind: str) -> Any:
    return json.dumps(value) if kind == "jsonb" and value is not None else value


def _json(values: Any) -> str:
    return json.dumps(values, default=str)  # times and UUIDs read as PostgreSQL reads them
