"""Rows as parameters of one statement: a table of (name, type, value) that becomes an `unnest` with names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from scheduler.state.db.sql import int_array, text_array

R = TypeVar("R")

#: Arrays of these types go as text (see `int_array`); others as the driver writes them.
_AS_TEXT: Final[Mapping[str, Callable[[Iterable[Any]], str]]] = {
    "bigint": int_array,
    "int": int_array,
    "text": text_array,
}


class ParameterRows(Generic[R]):
    """Columns by name, each with its PostgreSQL type and the value that a row has for it.

    `source` goes into the FROM of a statement: there a row is called `alias`, has the declared columns, and
    `place`, its number from 1 on. `parameters` are what `source` has placeholders for.
    """

    def __init__(self, alias: str, columns: Mapping[str, tuple[str, Callable[[R], Any]]]) -> None:
        self._columns = dict(columns)
        self.names = ", ".join(columns)
        arrays = ", ".join(f"%s::{kind}[]" for kind, _ in columns.values())
        self.source = f"unnest({arrays}) WITH ORDINALITY AS {alias}({self.names}, place)"

    def parameters(self, rows: Iterable[R]) -> list[Any]:
        rows = list(rows)
        return [
            _AS_TEXT.get(kind, list)([value(row) for row in rows]) for kind, value in self._columns.values()
        ]
