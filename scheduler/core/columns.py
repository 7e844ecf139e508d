"""Columns: the base of every struct of arrays in a snapshot or plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

if TYPE_CHECKING:
    Cells = memoryview[int]
    FloatCells = memoryview[float]
else:
    Cells = FloatCells = memoryview

_Column = TypeVar("_Column", bound=npt.NDArray[Any])

#: By class of a table, its fields.
_COLUMNS: Final[dict[Any, tuple[Field[Any], ...]]] = {}

#: At most this number of different rows is looked for by comparing with each.
_FEW: Final = 8

_MISSING: Any = None  # a column that was not given: filled with its default in __post_init__


def cells(column: Ints) -> Cells:
    """A column as single numbers, in the same memory: one is read or written in half the time that NumPy takes."""
    return column.data


def float_cells(column: npt.NDArray[np.float64]) -> FloatCells:
    """The same of a column of floats."""
    return column.data  # type: ignore[return-value]  # they hold floats


def ints(default: int | None = None) -> Any:
    """A column of int64; with a default it may be left out."""
    return field(default=_MISSING, metadata={"kind": "ints", "default": default})


def bools(default: bool | None = None) -> Any:
    """A column of booleans; with a default it may be left out."""
    return field(default=_MISSING, metadata={"kind": "bools", "default": default})


def objects(default: Any = None) -> Any:
    """A tuple of plain values (texts, tuples of numbers); with a default it may be left out."""
    return field(default=_MISSING, metadata={"kind": "objects", "default": default})


@dataclass(frozen=True, eq=False)
class Columns:
    """A table kept as one read-only array or tuple a column, all of the same length.

    Columns are given by keyword, as anything NumPy can read; those with a default may be left out.
    The first column is the key (`id` or `job_id`).
    """

    def __post_init__(self) -> None:
        columns = _columns_of(type(self))
        key = getattr(self, columns[0].name)
        count = 0 if key is None else len(key)
        for column in columns:
            value = _coerce(column, getattr(self, column.name), count)
            if len(value) != count:
                raise ValueError(f"{type(self).__name__}.{column.name} has {len(value)} rows, not {count}")
            object.__setattr__(self, column.name, value)

    def __len__(self) -> int:
        return len(getattr(self, _columns_of(type(self))[0].name))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_equal(getattr(self, f.name), getattr(other, f.name)) for f in _columns_of(type(self)))

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]], columns: Sequence[str] | None = None) -> Self:
        """Make the table from tuples, one a row, in the order of `columns` (default: as declared, and the
        last may be left out).
        """
        table = list(zip(*rows, strict=True))
        if not table:
            return cls()
        names = columns if columns is not None else [f.name for f in _columns_of(cls)][: len(table)]
        return cls(**dict(zip(names, table, strict=True)))

    @classmethod
    def from_columns(cls, **columns: Iterable[Any]) -> Self:
        """Make the table from one sequence a column, by name: as the constructor, for values as they are read."""
        values: dict[str, Any] = columns
        return cls(**values)

    def take(self, rows: Ints | Bools) -> Self:
        """The table with only these rows, in this order (an index array or a mask)."""
        positions: Ints = np.flatnonzero(rows) if rows.dtype == np.bool_ else np.asarray(rows, dtype=np.int64)
        picked: dict[str, Any] = {}
        for column in _columns_of(type(self)):
            value = getattr(self, column.name)
            if isinstance(value, tuple):
                picked[column.name] = tuple(value[i] for i in positions.tolist())
            else:
                picked[column.name] = rows_taken(value, positions)
        return type(self)(**picked)

    def sorted_by_key(self) -> Self:
        """The table in ascending order of its key; itself when it already is. Raises on a key met twice."""
        key: Ints = getattr(self, _columns_of(type(self))[0].name)
        steps = np.diff(key)
        if (steps > 0).all():
            return self
        order = np.argsort(key, kind="stable")
        if (np.diff(key[order]) == 0).any():
            twice = int(key[order][:-1][np.diff(key[order]) == 0][0])
            raise ValueError(f"{type(self).__name__} has the key {twice} twice")
        return self.take(order)


def _columns_of(table: Any) -> tuple[Field[Any], ...]:
    """The fields of a table's class: looked up once."""
    found = _COLUMNS.get(table)
    if found is None:
        found = _COLUMNS[table] = fields(table)
    return found


def rows_taken(column: _Column, rows: Ints) -> _Column:
    """These rows of a column, as an array that nobody can write to."""
    taken: Any = column[rows]
    taken.setflags(write=False)
    return taken  # type: ignore[no-any-return]


def rows_of(keys: Ints, wanted: Ints, *, what: str) -> Ints:
    """The row of each wanted key in a sorted key column; raises KeyError for one that is not there."""
    rows = find_rows(keys, wanted)
    if len(rows) and int(rows.min()) < 0:
        lost = sorted(set(wanted.tolist()) - set(keys.tolist()))
        raise KeyError(f"no {what} with id {lost[0]}")
    return rows


def find_rows(keys: Ints, wanted: Ints) -> Ints:
    """The row of each wanted key in a sorted key column without doubles, -1 for one that is not there."""
    if not len(wanted) or not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    low, span = keys.item(0), keys.item(-1) - keys.item(0) + 1
    if span > 4 * (len(keys) + len(wanted)):
        rows = np.searchsorted(keys, wanted)
        rows[keys[np.minimum(rows, len(keys) - 1)] != wanted] = -1
        return rows
    # Few numbers between the first and the last are not there: a table is faster than a search.
    places: Ints = wanted - low
    if int(places.min()) < 0 or int(places.max()) >= span:
        places = np.where((places < 0) | (places >= span), span, places)
    elif span == len(keys):
        return places
    table = np.full(span + 1, -1, dtype=np.int64)
    table[keys - low] = np.arange(len(keys))
    found: Ints = table[places]
    return found


def distinct(values: Ints) -> Ints:
    """`np.unique(values)`: where the values lie close together by a table, without sorting them."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if high - low > 4 * len(values) + 1024:
        return np.unique(values)
    seen = np.zeros(high - low + 1, dtype=np.bool_)
    seen[values - low] = True
    return np.flatnonzero(seen) + low if len(values) else values


def stable_order(values: Ints) -> Ints:
    """`np.argsort(values, kind="stable")`: where value and row fit into one number, by sorting those."""
    bits = max(len(values) - 1, 0).bit_length()
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if high - low >= 1 << (62 - bits):
        return np.argsort(values, kind="stable")
    packed = (values - low) << bits
    packed |= np.arange(len(values))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def equal_rows(table: npt.NDArray[Any]) -> Ints:
    """A number of each row of a table, the same for equal rows."""
    numbers = np.full(len(table), -1, dtype=np.int64)
    left = np.arange(len(table))
    for number in range(_FEW):  # a comparison with all rows is fast while few of them differ
        if not len(left):
            return numbers
        same = (table[left] == table[left[0]]).all(axis=1)
        numbers[left[same]] = number
        left = left[~same]
    met: dict[bytes, int] = {}
    numbers[left] = [met.setdefault(table[row].tobytes(), _FEW + len(met)) for row in left.tolist()]
    return numbers


def rows_of_groups(groups: Ints, counts: Ints) -> Ints:
    """The rows of these groups, one group after another, of a table whose next `counts[g]` rows are of group g."""
    first, wanted = np.cumsum(counts) - counts, counts[groups]
    before = np.cumsum(wanted) - wanted
    return np.repeat(first[groups] - before, wanted) + np.arange(int(wanted.sum()))


def _coerce(column: Field[Any], value: Any, count: int) -> Any:
    kind, default = column.metadata["kind"], column.metadata["default"]
    if kind == "objects":
        if value is None:
            value = (default,) * count
        return value if isinstance(value, tuple) else tuple(value)
    dtype: Any = np.int64 if kind == "ints" else np.bool_
    if value is None:
        if default is None and count:
            raise ValueError(f"the column {column.name} is missing")
        array = np.full(count, default or 0, dtype=dtype)
    elif _is_fixed(value, dtype):
        return value
    else:
        array = np.array(value, dtype=dtype, ndmin=1)  # our own copy: a snapshot must not move
    array.setflags(write=False)
    return array


def _is_fixed(value: Any, dtype: Any) -> bool:
    """Whether this is a whole array that nobody can write to, as a column of another table is."""
    return (
        isinstance(value, np.ndarray)
        and value.dtype == dtype
        and value.ndim == 1
        and value.flags.owndata
        and not value.flags.writeable
    )


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return bool(np.array_equal(left, right))
    return bool(left == right)
