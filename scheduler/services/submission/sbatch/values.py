"""Values of options: numbers, times, amounts of memory, moments, lists of node names."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from django.utils import timezone

from quotas.core.resources import parse_mib
from scheduler.services.submission.fields import MAX_SECONDS, BadValue, read_moment

#: Of one list of names with ranges.
MAX_NAMES: Final = 1000

_TIME: Final = re.compile(r"(?:(\d{1,6})-(\d{0,7})|(\d{1,7}))(?::(\d{1,7}))?(?::(\d{1,7}))?", re.ASCII)


def minutes(text: str) -> int | None:
    """Seconds of Slurm's times: `minutes`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`; None: no limit."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return None
    match = _TIME.fullmatch(text)
    if match is None or (match[1] is not None and not match[2] and match[4] is not None):
        raise BadValue(f"{text[:40]!r} is not a time; write minutes, HH:MM:SS or D-HH:MM:SS")
    if match[1] is not None:
        seconds = (
            int(match[1]) * 86_400 + int(match[2] or 0) * 3600 + int(match[4] or 0) * 60 + int(match[5] or 0)
        )
    elif match[5] is not None:
        seconds = int(match[3]) * 3600 + int(match[4]) * 60 + int(match[5])
    elif match[4] is not None:
        seconds = int(match[3]) * 60 + int(match[4])
    else:
        seconds = int(match[3]) * 60
    if seconds > MAX_SECONDS:
        raise BadValue(f"{text[:40]!r} is longer than the {MAX_SECONDS} seconds that a job may have")
    return seconds or None


def count(text: str, *, least: int = 1) -> int:
    """A whole number without unit; Slurm reads one with a plus, too."""
    if not re.fullmatch(r"\+?\d{1,9}", text, re.ASCII) or int(text) < least:
        raise BadValue(f"{text[:40]!r} is not a whole number of at least {least}")
    return int(text)


def mebibytes(text: str) -> int:
    """MiB of `500`, `4G`, `4GB`, `4194304K`: units are binary, a bare number counts MiB, parts round up."""
    match = re.fullmatch(r"(\d{1,15})([KMGTkmgt]?)[Bb]?", text, re.ASCII)
    if match is None or (not match[2] and text[-1] in "Bb"):
        raise BadValue(f"{text[:40]!r} is not an amount of memory; write MiB as 4000, or 4G")
    return parse_mib(f"{match[1]}{match[2].upper()}i" if match[2] else match[1], bare_unit="mi")


# ---------------------------------------------------------------- moments

_UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_WORDS: Final = {"midnight": (0, 0), "noon": (12, 0), "fika": (15, 0), "teatime": (16, 0)}


def moment(value: str) -> datetime:
    """`now+1hour`, `now+60`, `16:00`, `4:30PM`, `tomorrow`, `013127`, `01/31`, `2027-01-31T18:00:00`; UTC."""
    now, text = timezone.now(), value.strip().lower()
    match = re.fullmatch(r"now(?:\s*([+-])\s*(\d{1,9})\s*([a-z]*?)s?)?", text)
    if match:
        unit = match[3] or "second"
        if unit not in _UNITS:
            raise BadValue(f"{value[:40]!r} counts in {unit!r}; write seconds, minutes, hours, days or weeks")
        seconds = int(match[2] or 0) * _UNITS[unit]
        if seconds > MAX_SECONDS:
            raise BadValue(f"{value[:40]!r} is too far in the future")
        return now + timedelta(seconds=-seconds if match[1] == "-" else seconds)
    if text in ("today", "tomorrow"):
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return now if text == "today" else midnight + timedelta(days=1)
    clock = _clock(text)
    if clock is not None:
        found = now.replace(hour=clock[0], minute=clock[1], second=clock[2], microsecond=0)
        return found if found > now else found + timedelta(days=1)
    return _date(text, now) or read_moment(value.strip())


def _clock(text: str) -> tuple[int, int, int] | None:
    """Hour, minute and second of a time of day."""
    if text in _WORDS:
        return (*_WORDS[text], 0)
    match = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*([ap]m)?", text, re.ASCII)
    if match is None:
        return None
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if match[4]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match[4] == "pm" else 0)
    return (hour, minute, second) if hour < 24 and minute < 60 and second < 60 else None


def _date(text: str, now: datetime) -> datetime | None:
    """The first moment of a day in the American order: `MMDDYY`, `MM/DD`, `MM/DD/YY`, `MM.DD.YY`."""
    match = re.fullmatch(r"(\d{2})(\d{2})(\d{2})", text, re.ASCII) or re.fullmatch(
        r"(\d{1,2})[/.](\d{1,2})(?:[/.](\d{2}))?", text, re.ASCII
    )
    if match is None:
        return None
    try:
        if match[3]:
            return datetime(2000 + int(match[3]), int(match[1]), int(match[2]), tzinfo=UTC)
        found = datetime(now.year, int(match[1]), int(match[2]), tzinfo=UTC)
        return found if found.date() >= now.date() else found.replace(year=now.year + 1)
    except ValueError:
        return None


# ---------------------------------------------------------------- node names


def node_names(text: str) -> list[str]:
    """The names of a list as Slurm writes it: `n1,n2`, `node[1-4,7]`, `gpu[01-03]`."""
    found: list[str] = []
    for part in _parts(text):
        for name in _ranged(part.strip()):
            if len(found) >= MAX_NAMES:
                raise BadValue(f"names more than {MAX_NAMES} nodes")
            found.append(name)
    if not found:
        raise BadValue(f"{text[:60]!r} names no node")
    return list(dict.fromkeys(found))


def _parts(text: str) -> list[str]:
    """What commas outside brackets divide."""
    parts: list[list[str]] = [[]]
    within = False
    for letter in text:
        within = letter == "[" or (within and letter != "]")
        if letter == "," and not within:
            parts.append([])
        else:
            parts[-1].append(letter)
    return ["".join(part) for part in parts if part]


def _ranged(part: str) -> list[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([0-9,-]+)\]([^\[\]]*)", part)
    if match is None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,250}", part):
            raise BadValue(f"{part[:60]!r} is not the name of a node; write for example n1,n[4-7]")
        return [part]
    found: list[str] = []
    for numbers in match[2].split(","):
        first, dash, last = numbers.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first) > 9 or len(last) > 9:
            raise BadValue(f"{part[:60]!r} has a range that cannot be read")
        for number in range(int(first), int(last or first) + 1):
            if len(found) > MAX_NAMES:
                break
            found.append(f"{match[1]}{number:0{len(first)}d}{match[3]}")
    return found
