"""Patterns that name files of a working folder, such as `out/*.csv`: checked when a job is sent, and matched after it.

`*` is any run of characters within a name, `?` one of them, `[a-z]` or `[!a-z]` one of a set, and `**` as a whole name
any number of folders. A pattern that names a folder means all that is in it. Matching costs at most the length of the
pattern times that of the path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

MAX_PATTERN: Final = 300
_ANY: Final = "*"
#: What one name of a path, or one character of a name, has to be.
Matcher = Callable[[str], bool]


class BadPattern(ValueError):
    """The text is no pattern; the message says why."""


@dataclass(frozen=True, slots=True)
class FilePattern:
    """One pattern, by the names between its slashes: what each has to be; None is `**`."""

    parts: tuple[Matcher | None, ...]

    @classmethod
    def of(cls, text: str) -> FilePattern:
        """Read a pattern; raises BadPattern."""
        if not text or len(text) > MAX_PATTERN or not text.isprintable():
            raise BadPattern(f"Must have 1 to {MAX_PATTERN} printable characters")
        names = text.removesuffix("/").removeprefix("./").split("/")
        if text.startswith("/") or ".." in names:
            raise BadPattern(
                "Must be a path inside the working folder, without / at the beginning and without .."
            )
        if any(name in ("", ".") for name in names):
            raise BadPattern("Must have names between its slashes")
        return cls(tuple(None if name == "**" else _name(name) for name in names))

    def matches(self, path: str) -> bool:
        """Whether it names this file, or a folder that the file is in; `path` has names with slashes between them."""
        names = path.split("/")
        at = _fit(self.parts, names, whole=False)
        return at is not None and (self.parts[-1] is not None or at < len(names))


def _fit(wanted: Sequence[Matcher | None], given: Sequence[str], *, whole: bool) -> int | None:
    """How many of the given names or characters fit what is wanted; None where they do not fit.

    A None among what is wanted is any run of them. `whole`: all of them have to fit. Greedy: only the last None is ever
    tried again further on.
    """
    at = place = 0
    again: tuple[int, int] | None = None
    while place < len(wanted) or (whole and at < len(given)):
        expected = wanted[place] if place < len(wanted) else _nothing
        if expected is None:
            again = (place + 1, at)
            place += 1
        elif at < len(given) and expected(given[at]):
            place, at = place + 1, at + 1
        elif again is not None and again[1] < len(given):
            again = (again[0], again[1] + 1)
            place, at = again
        else:
            return None
    return at


def _name(text: str) -> Matcher:
    tokens = _tokens(text)
    return lambda name: _fit(tokens, name, whole=True) is not None


def _tokens(name: str) -> tuple[Matcher | None, ...]:
    found: list[Matcher | None] = []
    at = 0
    while at < len(name):
        character = name[at]
        at += 1
        if character == _ANY:
            if not found or found[-1] is not None:
                found.append(None)
        elif character == "?":
            found.append(lambda _: True)
        elif character == "[":
            end = name.find("]", at + (2 if name[at : at + 1] == "!" else 1))
            if end < 0:
                raise BadPattern("Has a [ without a ]")
            found.append(_set(name[at:end]))
            at = end + 1
        else:
            found.append(character.__eq__)
    return tuple(found)


def _set(text: str) -> Matcher:
    negated = text.startswith("!")
    text = text.removeprefix("!")
    ranges: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        last = text[at + 2] if text[at + 1 : at + 2] == "-" and at + 2 < len(text) else text[at]
        ranges.append((text[at], last))
        at += 1 if last is text[at] and text[at + 1 : at + 2] != "-" else 3 if at + 2 < len(text) else 1
    return lambda character: negated != any(first <= character <= last for first, last in ranges)


def _nothing(_: str) -> bool:
    return False
