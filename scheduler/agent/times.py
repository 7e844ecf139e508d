"""Lengths of time in words."""

from __future__ import annotations


def in_words(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h`: the largest unit that is not below one, rounded down."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (size < 86_400 and seconds >= size):
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
