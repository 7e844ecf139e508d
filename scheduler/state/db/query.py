"""Queries whose SELECT list is declared as a table of (name, expression), and what they find, read by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from scheduler.state.db.sql import Rows, Statement, run, select_together

#: Column name -> the values of all rows; every column is there, also when no row is.
Table = Mapping[str, tuple[Any, ...]]

T = TypeVar("T")
R = TypeVar("R", bound=NamedTuple)

#: Runs statements in one round trip: the rows of each.
Together = Callable[..., list[Rows]]

#: Where the list goes in the text of a query.
LIST = "{columns}"


class Query(ABC, Generic[T]):
    """A statement that gives rows, and the form in which they are read.

    `text` has `{columns}` where the list goes, and may have further words in braces that each use fills in;
    literal braces are doubled. Because the list is made from the table, a column may be added, moved or
    removed anywhere without a look at the code that reads the others.
    """

    def __init__(self, columns: Mapping[str, str], text: str) -> None:
        self.columns = dict(columns)
        self.text = text
        listed = ",\n    ".join(f"{expression} AS {name}" for name, expression in self.columns.items())
        self._template = text.replace(LIST, listed)

    def sql(self, **words: str) -> str:
        return self._template.format(**words)

    @abstractmethod
    def read(self, rows: Rows) -> T:
        """The rows of `sql`, by name."""


class ColumnQuery(Query[Table]):
    """Read column by column with one transposition: for thousands of rows."""

    def read(self, rows: Rows) -> Table:
        if not rows:
            return dict.fromkeys(self.columns, ())
        return dict(zip(self.columns, zip(*rows, strict=True), strict=True))


class RowQuery(Query[list[R]]):
    """Read row by row into a named tuple, whose fields are the declared names."""

    def __init__(self, row: type[R], columns: Mapping[str, str], text: str) -> None:
        if row._fields != (*columns,):
            raise TypeError(f"{row.__name__} has the fields {row._fields}, the query {(*columns,)}")
        super().__init__(columns, text)
        self.row = row

    def read(self, rows: Rows) -> list[R]:
        return [self.row._make(row) for row in rows]


def only(table: Table, name: str, wanted: Collection[Any]) -> Table:
    """The rows of a table whose column `name` has one of these values."""
    return _take(table, [place for place, value in enumerate(table[name]) if value in wanted])


def joined(table: Table, others: Table, *, key: str = "id") -> Table:
    """The rows of a table, then those of another that has further keys."""
    known = set(table[key])
    more = _take(others, [place for place, value in enumerate(others[key]) if value not in known])
    return {name: (*column, *more[name]) for name, column in table.items()}


def _take(table: Table, places: Sequence[int]) -> Table:
    return {name: tuple([column[place] for place in places]) for name, column in table.items()}


class Answer(Generic[T]):
    """What one query of a batch found."""

    def __init__(self, query: Query[T], rows: Rows | None = None) -> None:
        self._query = query
        self.rows = rows

    def read(self) -> T:
        """By name; raises RuntimeError before the batch was sent."""
        if self.rows is None:
            raise RuntimeError("the batch has not been sent yet")
        return self._query.read(self.rows)


class Batch:
    """Statements that go to the server in one round trip, in the order in which they were added."""

    def __init__(self) -> None:
        self._statements: list[Statement] = []
        self._answers: list[Answer[Any] | None] = []

    def add(
        self, query: Query[T], parameters: Sequence[Any] = (), *, when: bool = True, **words: str
    ) -> Answer[T]:
        """Ask this query; with `when` false it is left out and has found nothing."""
        if not when:
            return Answer(query, [])
        answer = Answer(query)
        self._statements.append((query.sql(**words), parameters))
        self._answers.append(answer)
        return answer

    def lock(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement for its locks; its rows are not read."""
        self._statements.append((sql, parameters))
        self._answers.append(None)

    def write(self, statements: Sequence[Statement]) -> None:
        """Run statements that write; their rows are not read."""
        self._statements += statements
        self._answers += [None] * len(statements)

    def send(self, together: Together = select_together) -> None:
        """Run them with `select_together`, or with `ask_together` as statements that are planned once."""
        if not self._statements:
            return
        for answer, rows in zip(self._answers, together(*self._statements), strict=True):
            if answer is not None:
                answer.rows = rows


def fetch(query: Query[T], parameters: Sequence[Any] = (), **words: str) -> T:
    """One query by itself."""
    return query.read(run(query.sql(**words), parameters))
