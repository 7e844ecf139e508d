"""Times inside sentences: written as RFC 3339 in UTC, and shown in the zone of the person who reads them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

#: A time of RFC 3339 with its zone. Stored sentences hold times only in the form of `written`, so that a page can show
#: its reader's zone; values of JSON may have fractions of a second and other zones.
ANY_TIME: Final = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)(?!\w)")


def written(at: datetime) -> str:
    """A time as a sentence holds it: `2027-01-31T18:00:00Z`."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(text: str) -> datetime | None:
    """The time that `written` wrote, or None for a date that does not exist."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


@lru_cache(maxsize=64)
def zone_named(name: str) -> tzinfo:
    """The time zone of this name; UTC where there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return UTC


def in_zone(sentence: str, zone: tzinfo) -> str:
    """The sentence as plain text with its times in this zone: `31 Jan 2027 18:00 UTC`."""
    return "".join(
        piece if isinstance(piece, str) else f"{piece.astimezone(zone):%d %b %Y %H:%M %Z}"
        for piece in pieces(sentence)
    )


def pieces(sentence: str) -> list[str | datetime]:
    """A sentence or a value of JSON as its texts and times, in order."""
    found: list[str | datetime] = []
    end = 0
    for match in ANY_TIME.finditer(sentence):
        at = read(match[0])
        if at is None:
            continue
        found += [sentence[end : match.start()], at]
        end = match.end()
    return [*found, sentence[end:]]
