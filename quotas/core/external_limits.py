"""Quotas kept outside Muster: which bounds go there, and whose change is whose when the two differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

#: Values that a provider keeps of one project, by its own names; a name that is not there has no bound.
Values = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Bound:
    """One line of a project that blocks, in the units of its resource."""

    resource: str
    amount: int
    gpu_model: str = ""
    job_type: str = ""

    @property
    def words(self) -> str:
        return " ".join(part for part in (self.resource, self.gpu_model, self.job_type) if part)


@dataclass(frozen=True, slots=True)
class Mapped:
    """What a provider is to keep, and the lines for which it has no word: Muster alone enforces those."""

    values: dict[str, int]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that is not the same there and here; None is no bound."""

    key: str
    here: int | None
    there: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`to_write` is ours to bring over; `drift` was changed there by somebody else.

    `overwritten` are changes of others that `to_write` replaces, for a person has set these lines anew.
    """

    to_write: dict[str, int | None]
    drift: tuple[Difference, ...] = ()
    overwritten: tuple[Difference, ...] = ()


def strictest(hard: int | None, nominal: int | None, borrowing_limit: int | None) -> int | None:
    """The bound of a line: its hard limit, or its share with all it may borrow, if that is less."""
    borrowed = None if nominal is None or borrowing_limit is None else nominal + borrowing_limit
    given = [amount for amount in (hard, borrowed) if amount is not None]
    return min(given) if given else None


def compare(wanted: Values, written: Values | None, there: Values, *, repair: bool = False) -> Comparison:
    """Tell an edit of ours, which was not brought over yet, from one that was made behind our back.

    `written` is what we last brought over; None when we never did, and then all that differs is ours to set.
    A line that was changed on both sides goes by ours. With `repair` everything goes by ours.
    """
    to_write: dict[str, int | None] = {}
    drift: list[Difference] = []
    overwritten: list[Difference] = []
    for key in sorted(wanted.keys() | there.keys() | (written or {}).keys()):
        ours, theirs = wanted.get(key), there.get(key)
        if ours == theirs:
            continue
        before = written.get(key) if written is not None else theirs
        if repair or written is None or ours != before:
            to_write[key] = ours
            if theirs != before:
                overwritten.append(Difference(key, ours, theirs))
        else:
            drift.append(Difference(key, ours, theirs))
    return Comparison(to_write, tuple(drift), tuple(overwritten))


def after_writing(there: Values, changes: Mapping[str, int | None]) -> dict[str, int]:
    """What is there once these changes were made."""
    return {key: value for key, value in ({**there, **changes}).items() if value is not None}


def whole(amount: int, unit: int) -> int:
    """Number of whole units that hold the amount.

    Rounded up: a bound outside must never be tighter than the quota, for what Muster starts would be refused
    there forever. Muster's own counter keeps the fraction.
    """
    return -(-amount // unit)


#: A member is kept as a value of 1 under this name and the account's.
MEMBER: Final = "user/"


def with_members(values: Values, members: Iterable[str]) -> dict[str, int]:
    return {**values, **{MEMBER + name: 1 for name in members}}
