"""Sections of the document whose rows services write: people, organizations, projects, prices, budgets and limits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple

from accounts.models import User
from scheduler.configuration.kinds import WrongType, expect
from scheduler.configuration.rows import Change, Refused, Wrong


class Within(NamedTuple):
    """The entry that a section is inside of; empty at the top of the document."""

    section: str = ""
    name: str = ""


#: Reads one value of the document; raises WrongType.
Reader = Callable[[Any], Any]


def text(value: Any) -> str:
    return str(expect(value, str, "a text; put it in quotes"))


def text_or_none(value: Any) -> str | None:
    return None if value is None else text(value)


def whole(value: Any) -> int:
    return int(expect(value, int, "a whole number"))


def whole_or_none(value: Any) -> int | None:
    return None if value is None else whole(value)


def flag(value: Any) -> bool:
    return bool(expect(value, bool, "true or false"))


def moment(value: Any) -> datetime:
    """A time such as 2026-11-30T00:00:00Z; without a zone it is UTC."""
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(text(value))
    except ValueError:
        raise WrongType("has to be a time such as 2026-11-30T00:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def moment_or_none(value: Any) -> datetime | None:
    return None if value is None else moment(value)


def said(value: Any) -> Any:
    """A value as the document has it."""
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


class Section(ABC):
    """Rows of one kind. `key` are the fields that name a row; of these only the first has to be given."""

    name: ClassVar[str]
    key: ClassVar[tuple[str, ...]]
    readers: ClassVar[Mapping[str, Reader]]
    stage: ClassVar[int]
    inside: ClassVar[tuple[Section, ...]] = ()
    #: Without which a row cannot be made.
    needed: ClassVar[tuple[str, ...]] = ()
    can_remove: ClassVar[bool] = False

    @property
    def fields(self) -> tuple[str, ...]:
        """In the order in which they are exported."""
        return (*self.readers,)

    @abstractmethod
    def found(self, section: str, name: str | None) -> Iterable[tuple[str, Any]]:
        """The rows inside one entry of a section, or inside all of them for None, each with the name of that entry, in
        the order in which they are exported; at the top of the document the section and the names are "".
        """

    @abstractmethod
    def values(self, row: Any) -> dict[str, Any]:
        """All fields of a row."""

    @abstractmethod
    def make(self, given: dict[str, Any], scope: Within, *, by: User, reason: str) -> Any:
        """Create the row, and answer it."""

    @abstractmethod
    def change(self, row: Any, changes: dict[str, Any], *, by: User, reason: str) -> None:
        """Change these fields of the row."""

    def remove(self, row: Any, *, by: User, reason: str) -> None:
        """Delete the row, where `can_remove` says that this may be asked for."""
        raise TypeError(f"rows of {self.name} are not deleted by a document: can_remove is False")

    # ------------------------------------------------------------ the same for all

    def known(self, section: str) -> dict[tuple[str, tuple[str, ...]], Any]:
        """All rows inside entries of a section by the name of the entry and their own; of two alike the first."""
        found: dict[tuple[str, tuple[str, ...]], Any] = {}
        for name, row in self.found(section, None):
            found.setdefault((name, self.name_of(self.plain(row))), row)
        return found

    def is_same(self, given: Mapping[str, Any], row: Any) -> bool:
        """Whether the row has all these values already."""
        there = self.values(row)
        try:
            return all(there[name] == self.readers[name](value) for name, value in given.items())
        except WrongType:
            return False

    def write(
        self, given: Mapping[str, Any], row: Any, scope: Within, *, by: User, reason: str
    ) -> Change | None:
        """Make the row where it is None, or change what differs; raises Refused, Blocked, and errors of services."""
        read, wrong = {}, []
        for name, value in given.items():
            try:
                read[name] = self.readers[name](value)
            except WrongType as error:
                wrong.append(Wrong(name, f"{name} {error}."))
        if wrong:
            raise Refused(wrong)
        called = self.called(read, scope)
        if row is None:
            missing = [name for name in self.needed if name not in read]
            if missing:
                raise Refused([Wrong("", f"{missing[0]}: a new entry of {self.name} needs this field.")])
            row = self.make(read, scope, by=by, reason=reason)
            return Change(self.name, called, "create", {}, self.plain(row))
        before = self.values(row)
        changes = {name: value for name, value in read.items() if before[name] != value}
        if not changes:
            return None
        self.change(row, changes, by=by, reason=reason)
        return Change(
            self.name, called, "change",
            {name: said(before[name]) for name in changes}, {name: said(value) for name, value in changes.items()},
        )  # fmt: skip

    def name_of(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        """What names a row among those beside it."""
        found = []
        for part in self.key:
            try:
                found.append(str(said(self.readers[part](given[part]))) if part in given else "")
            except WrongType:  # said at its line
                found.append("")
        return tuple(found)

    def called(self, given: Mapping[str, Any], scope: Within) -> str:
        """What a change is listed under."""
        own = " ".join(part for part in self.name_of(given) if part)
        return f"{scope.name}/{own}" if scope.name else own

    def remove_others(
        self, named: Collection[tuple[str, ...]], scope: Within, *, by: User, reason: str
    ) -> Sequence[Change]:
        """Delete the rows that are not named."""
        gone = []
        for _, row in self.found(*scope):
            given = self.plain(row)
            if self.name_of(given) not in named:
                self.remove(row, by=by, reason=reason)
                gone.append(Change(self.name, self.called(given, scope), "delete", given))
        return gone

    def plain(self, row: Any) -> dict[str, Any]:
        return {name: said(value) for name, value in self.values(row).items()}

    def export(self, section: str = "") -> dict[str, list[dict[str, Any]]]:
        """By the entry that they are inside of, the rows as the document has them, with the sections inside."""
        within = {inner: inner.export(self.name) for inner in self.inside}
        found: dict[str, list[dict[str, Any]]] = {}
        for name, row in self.found(section, None):
            entry = self.plain(row)
            for inner, by_name in within.items():
                entry[inner.name] = by_name.get(entry[self.key[0]], [])
            found.setdefault(name, []).append(entry)
        return found
