"""Reads the fields of what a person sent and keeps every problem instead of stopping at the first."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any, Final

from django.utils.dateparse import parse_date, parse_datetime

from accounts.services.audit import Thing
from infra.errors import FieldProblem, InvalidInput, NotAllowed
from infra.plain_text import line_problem
from quotas.core.resources import BadAmount

#: Far above any job's life and far below what a timestamp can hold.
MAX_SECONDS: Final = 10 * 366 * 86_400

#: Of a text that a reader takes apart: an amount, a time, a moment.
MAX_READ: Final = 256
#: Names that a payload has too much and that are each answered with the one that was meant.
MAX_UNKNOWN: Final = 20

_CLOCK = re.compile(r"(?:(\d{1,5})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?")
_WORDS = re.compile(r"(?:(\d{1,5})d)?(?:(\d{1,6})h)?(?:(\d{1,7})m)?(?:(\d{1,9})s)?")


class BadValue(ValueError):
    """One value that cannot be read; its text is for the person who sent it."""


class Inputs:
    """The fields of one payload; `finish()` raises what was wrong with all of them together."""

    def __init__(self, payload: Mapping[str, Any], *, under: str = "") -> None:
        self.payload = payload
        self.under = under
        # Absent, null and an empty string (as forms send) are one and the same.
        self._said = {
            name: value
            for name, value in payload.items()
            if value is not None and not (isinstance(value, str) and not value.strip())
        }
        #: The value of a field, or None when it was left out. Asked for each field of each job of a batch.
        self.given: Callable[[str], Any] = self._said.get
        self.problems: list[FieldProblem] = []
        self.denied = False

    def wrong(self, name: str, message: str, *, code: str = "invalid", denied: bool = False) -> None:
        """Keep a problem; `denied` marks one that is a refused right and not only a slip."""
        self.problems.append(FieldProblem(f"{self.under}{name}", message, code))
        self.denied = self.denied or denied

    def refuse_unknown(
        self, known: Collection[str], *, called_elsewhere: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Name each field that is not `known`, with the one that was meant.

        `called_elsewhere` maps names of other systems, in small letters with _, to ours.
        """
        names = sorted(known)
        unknown = [name for name in self.payload if name not in known]
        if len(unknown) > MAX_UNKNOWN:
            text = f"{len(unknown)} fields are unknown; known are {', '.join(names)}."
            self.wrong(str(unknown[0])[:60], text, code="unknown-field")
        else:
            for name in unknown:
                shown = str(name)[:60]
                usual = called_elsewhere.get(shown.lower().replace("-", "_"))
                near = [usual] if usual in known else difflib.get_close_matches(shown, names, n=1, cutoff=0.6)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}."
                self.wrong(shown, f"There is no field {shown!r}; {hint}", code="unknown-field")

    def text(self, name: str, *, most: int, default: str = "", lines: bool = False) -> str:
        """A text of one line; with `lines` of several, as it is."""
        value = self.given(name)
        if value is None:
            return default
        if not isinstance(value, str):
            self.wrong(name, f"Must be text, not {_kind(value)}.", code="not-text")
            return default
        trouble = text_trouble(value, most=most) or ("" if lines else line_problem(value))
        if trouble:
            self.wrong(name, trouble, code="bad-text")
            return default
        return value if lines else value.strip()

    def integer(self, name: str, *, least: int, most: int, default: int | None = None) -> int | None:
        value = self.given(name)
        if value is None:
            return default
        number = read_integer(value)
        if number is None:
            self.wrong(name, f"Must be a whole number, not {_show(value)}.", code="not-a-number")
            return default
        if not least <= number <= most:
            self.wrong(name, f"Must be from {least} to {most}; {_show(value)} is not.", code="out-of-range")
            return default
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.given(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        word = str(value).strip().lower()
        if word in ("true", "1", "yes", "on"):
            return True
        if word in ("false", "0", "no", "off"):
            return False
        self.wrong(name, f"Must be true or false, not {_show(value)}.", code="not-a-flag")
        return default

    def choice(self, name: str, options: Iterable[str], *, default: str) -> str:
        value = self.given(name)
        if value is None:
            return default
        wanted = [str(option) for option in options]
        if isinstance(value, str) and value.strip().lower() in wanted:
            return value.strip().lower()
        self.wrong(name, f"Must be one of {', '.join(wanted)}; not {_show(value)}.", code="unknown-choice")
        return default

    def word(self, name: str, words: Sequence[str], *, default: str) -> str:
        """One of a few words, in whatever case it was written, as it is written in `words`."""
        value = self.given(name)
        if value is None:
            return default
        for word in words:
            if isinstance(value, str) and value.strip().lower() == word.lower():
                return word
        self.wrong(name, f"Must be one of {', '.join(words)}.", code="unknown-choice")
        return default

    def read(
        self, name: str, reader: Callable[[Any], Any], *, default: Any = None, most: int = MAX_READ
    ) -> Any:
        """Any other form: `reader` returns the value or raises BadValue or BadAmount with the reason.

        It is given no text of more than `most` characters.
        """
        value = self.given(name)
        if value is None:
            return default
        if isinstance(value, str) and len(value) > most:
            self.wrong(name, f"Has {len(value)} characters; the maximum is {most}.", code="too-long")
            return default
        try:
            return reader(value)
        except (BadValue, BadAmount) as broken:
            self.wrong(name, f"{_sentence(str(broken))}", code="unreadable")
            return default

    def mapping(self, name: str, *, most: int) -> dict[str, Any]:
        value = self.given(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(
                name,
                f'Must be an object such as {{"key": "value"}}, not {_kind(value)}.',
                code="not-an-object",
            )
            return {}
        if len(value) > most:
            self.wrong(name, f"Has {len(value)} entries; the maximum is {most}.", code="too-many")
            return {}
        return dict(value)

    def listing(self, name: str, *, most: int, or_one: bool = False) -> list[Any]:
        """A list; with `or_one` a single value counts as a list of one."""
        value = self.given(name)
        if value is None:
            return []
        if or_one and not isinstance(value, (list, tuple)):
            return [value]
        if not isinstance(value, (list, tuple)):
            self.wrong(name, f"Must be a list, not {_kind(value)}.", code="not-a-list")
            return []
        if len(value) > most:
            self.wrong(name, f"Has {len(value)} entries; the maximum is {most}.", code="too-many")
            return []
        return list(value)

    def finish(self, message: str) -> None:
        """Raise all problems, as a denial when one of them is a refused right."""
        if not self.problems:
            return
        if self.denied:
            refused = next(p for p in self.problems if p.code in DENIALS)
            raise NotAllowed(
                message=refused.message,
                code=refused.code,
                problems=self.problems,
                way_out=WAY_OUT,
                refused=("submit", Thing("job", label=f"{refused.field}: {refused.message}")),
            )
        text = f"{message}: {len(self.problems)} problems. {self.problems[0].message}"
        if len(self.problems) <= 2:
            text = " ".join(problem.message for problem in self.problems)
        codes = [problem.code for problem in self.problems]
        code = codes[0] if all(code in HEADLINES for code in codes) else "invalid"
        raise InvalidInput(message=text, code=code, problems=self.problems, way_out=WAY_OUT)


#: Problems that are refused rights: the door writes them into the audit trail.
DENIALS: Final = frozenset(
    {"project-not-usable", "queue-not-usable", "above-priority-ceiling", "role-too-low"}
)
#: Problems that name the whole refusal when there are no others.
HEADLINES: Final = frozenset({"can-never-fit", "exceeds-quota", "exceeds-wall-time"})
WAY_OUT: Final = "Correct the fields named in errors and send the request again; nothing was written."


def text_trouble(value: str, *, most: int) -> str:
    """What keeps a text from being stored, or "" when nothing does."""
    if "\x00" in value:
        return "Contains a NUL character; remove it."
    if len(value) > most:
        return f"Has {len(value)} characters; the maximum is {most}."
    try:
        value.encode()
    except UnicodeEncodeError:
        return "Contains half a surrogate pair, which is no character; send valid Unicode."
    return ""


def read_integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", value, re.ASCII):
        return int(value)
    return None


def read_decimal(value: Any) -> Decimal:
    """A number that is finite, from JSON or from a form."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise BadValue(f"Must be a number, not {_kind(value)}")
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation as broken:
        raise BadValue(f"Must be a number, not {_show(value)}") from broken
    if not number.is_finite():
        raise BadValue(f"Must be a number, not {_show(value)}")
    return number


def read_seconds(value: Any) -> int:
    """Seconds from `3600`, `"3600"`, `"HH:MM:SS"`, `"MM:SS"`, `"D-HH[:MM[:SS]]"` or `"1h30m"`."""
    number = read_integer(value)
    if number is None and isinstance(value, str):
        number = _clock_seconds(value.strip())
    if number is None:
        raise BadValue(f"{_show(value)} is not a time; write seconds, HH:MM:SS, D-HH:MM:SS or 1h30m")
    if not 1 <= number <= MAX_SECONDS:
        raise BadValue(f"{_show(value)} is not a valid duration; write 1 to {MAX_SECONDS} seconds")
    return number


def _clock_seconds(text: str) -> int | None:
    """Seconds of a time with colons or a day, or of one with the letters d, h, m and s; None for another text."""
    match = _CLOCK.fullmatch(text)
    if match and (match[1] or match[3]):
        return _with_colons(match)
    match = _WORDS.fullmatch(text.lower()) if text else None
    if match and any(match.groups()):
        days, hours, minutes, seconds = (int(part) if part else 0 for part in match.groups())
        return days * 86_400 + hours * 3600 + minutes * 60 + seconds
    return None


def _with_colons(match: re.Match[str]) -> int | None:
    """`D-HH[:MM[:SS]]` and `HH:MM:SS`, whose minutes end at 59, or `MM:SS`; seconds end at 59."""
    days, first, second, third = (int(part) if part else 0 for part in match.groups())
    has_hours = bool(match[1] or match[4])
    hours, minutes, seconds = (first, second, third) if has_hours else (0, first, second)
    if seconds > 59 or (minutes > 59 and has_hours):
        return None
    return days * 86_400 + hours * 3600 + minutes * 60 + seconds


def read_moment(value: Any) -> datetime:
    """A moment in ISO 8601; without an offset it is UTC."""
    moment: datetime | None = None
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, str) and len(value) <= 40:
        try:
            moment = parse_datetime(value.strip())
            if moment is None and (day := parse_date(value.strip())):
                moment = datetime(day.year, day.month, day.day, tzinfo=UTC)
        except (ValueError, OverflowError):
            moment = None
    if moment is None:
        raise BadValue(f"{_show(value)} is not a date and time; write for example 2027-01-31T18:00:00Z")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Far years overflow when they are turned to another zone.
    if not 2000 <= moment.year <= 2200:
        raise BadValue(f"{_show(value)} lies outside the years 2000 to 2200")
    return moment.astimezone(UTC)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", bool: "true or false", str: "text"}
    return kinds.get(
        type(value), "a number" if isinstance(value, (int, float, Decimal)) else "an unsupported type"
    )


def _show(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return repr(text[:40] + "…" if len(text) > 40 else text)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
