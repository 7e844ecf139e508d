"""Queries that declare their SELECT list by name: what they find does not depend on the order of columns."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from scheduler.state.db.parameter_rows import ParameterRows
from scheduler.state.db.query import Batch, ColumnQuery, RowQuery, fetch, joined, only
from scheduler.state.db.sql import run

pytestmark = pytest.mark.django_db

NUMBERS = "SELECT {columns} FROM generate_series(1, %s) AS number {which} ORDER BY number"


class Square(NamedTuple):
    number: int
    square: int


COLUMNS = ColumnQuery({"number": "number", "square": "number * number"}, NUMBERS)
ROWS = RowQuery(Square, {"number": "number", "square": "number * number"}, NUMBERS)


def test_columns_and_rows_are_read_by_name() -> None:
    assert fetch(COLUMNS, [3], which="") == {"number": (1, 2, 3), "square": (1, 4, 9)}
    assert fetch(ROWS, [2], which="") == [Square(1, 1), Square(2, 4)]


def test_every_column_is_there_without_a_row() -> None:
    assert fetch(COLUMNS, [0], which="") == {"number": (), "square": ()}


def test_a_query_needs_the_fields_of_its_row() -> None:
    with pytest.raises(TypeError, match="Square has the fields"):
        RowQuery(Square, {"square": "1", "number": "2"}, NUMBERS)


def test_a_batch_answers_each_query_by_itself() -> None:
    batch = Batch()
    columns = batch.add(COLUMNS, [1], which="")
    batch.lock("SELECT 1")
    left_out = batch.add(ROWS, [9], which="", when=False)
    rows = batch.add(ROWS, [9], which="WHERE number = 3")
    with pytest.raises(RuntimeError, match="not been sent"):
        columns.read()

    batch.send()

    assert columns.read() == {"number": (1,), "square": (1,)}
    assert rows.read() == [Square(3, 9)]
    assert left_out.read() == []


def test_tables_are_filtered_and_joined_by_a_column() -> None:
    table = fetch(COLUMNS, [3], which="")

    few = only(table, "square", {1, 9})

    assert few == {"number": (1, 3), "square": (1, 9)}
    assert joined(few, table, key="number") == {"number": (1, 3, 2), "square": (1, 9, 4)}


def test_rows_become_parameters_by_name() -> None:
    rows: ParameterRows[tuple[int, str | None]] = ParameterRows(
        "given",
        {
            "number": ("bigint", lambda row: row[0]),
            "words": ("text", lambda row: f'{row[1]} says "a\\b"'),
            "flag": ("boolean", lambda row: row[1] is None),
        },
    )

    found = run(
        f"SELECT place, number, words, flag FROM {rows.source} ORDER BY place",
        rows.parameters([(7, "x"), (8, None)]),
    )

    assert found == [(1, 7, 'x says "a\\b"', False), (2, 8, 'None says "a\\b"', True)]
