"""Masks the values of secrets in what tasks print: byte by byte, so that every place in a stream stays where it is.

A value that is in the output whole is replaced by asterisks, wherever the pieces are cut in which the output is read.
Of a value of several lines, each line of `LEAST_BYTES` and more is masked as well. What a task prints in another form
(base64, reversed, in parts) is not recognised.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final

#: Shorter values are refused when they are set, and shorter lines of a value are not masked.
LEAST_BYTES: Final = 8
_ASTERISKS: Final = bytes(byte if byte == 0x0A else 0x2A for byte in range(256))


class Mask:
    """What is masked in the output of one task; None for `values` masks all of it, since they are not known."""

    def __init__(self, values: Iterable[str] | None) -> None:
        self._all = values is None
        self._patterns = sorted({pattern for value in values or () for pattern in _patterns(value)})
        #: A byte belongs to no occurrence that reaches further than this beyond it.
        self._reach = max((len(pattern) for pattern in self._patterns), default=1) - 1

    def cover(self, data: bytes) -> bytes:
        """The bytes, with all values that are whole in them replaced."""
        if self._all:
            return data.translate(_ASTERISKS)
        covered: bytearray | None = None
        for pattern in self._patterns:
            at = data.find(pattern)
            while at >= 0:
                covered = bytearray(data) if covered is None else covered
                end = _end_of_run(data, pattern, at)
                covered[at:end] = data[at:end].translate(_ASTERISKS)
                at = data.find(pattern, end - len(pattern) + 1)
        return data if covered is None else bytes(covered)

    def text(self, text: str) -> str:
        """The same for a text."""
        return self.cover(text.encode(errors="surrogatepass")).decode(errors="replace")

    def read(self, file: int, offset: int, limit: int, *, ended: bool) -> bytes:
        """Up to `limit` bytes of a file from `offset`, masked.

        While the file may grow (not `ended`), the beginning of a value at its end is held back: the rest may follow.
        At the end, such a beginning of `LEAST_BYTES` and more is masked. Raises OSError.
        """
        start = max(0, offset - self._reach)
        wanted = offset - start + limit + self._reach
        window = _pread(file, wanted, start)
        covered = self.cover(window)
        upto = min(len(window), offset - start + limit)
        if len(window) < wanted and (begun := self._begun(window)):
            tail = len(window) - begun
            if not ended:
                upto = min(upto, tail)
            elif begun >= LEAST_BYTES:
                covered = covered[:tail] + covered[tail:].translate(_ASTERISKS)
        return covered[offset - start : upto]

    def _begun(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a value; 0 where none may."""
        return max((_overlap(data, pattern) for pattern in self._patterns), default=0)


def _patterns(value: str) -> Iterator[bytes]:
    whole = value.strip()
    if len(whole.encode()) >= LEAST_BYTES:
        yield whole.encode()
    if "\n" in whole:
        for line in whole.splitlines():
            if len(line.strip().encode()) >= LEAST_BYTES:
                yield line.strip().encode()


def _end_of_run(data: bytes, pattern: bytes, at: int) -> int:
    """The end of the pattern at this place, and of those that follow it at equal distances and overlap it.

    Each further one is known by as many bytes as the distance is: a pattern that repeats itself may be there at each
    byte, and comparing it whole each time would cost the product of both lengths.
    """
    end = at + len(pattern)
    following = data.find(pattern, at + 1, end + len(pattern) - 1)
    if following < 0:
        return end
    distance = following - at
    unit = pattern[-distance:]
    end += distance
    while data.startswith(unit, end):
        end += distance
    return end


def _overlap(data: bytes, pattern: bytes) -> int:
    """The length of the longest end of `data` that `pattern` begins with, without being whole."""
    at = max(0, len(data) - len(pattern) + 1)
    while (at := data.find(pattern[:LEAST_BYTES], at)) >= 0:
        if pattern.startswith(data[at:]):
            return len(data) - at
        at += 1
    return next(
        (n for n in range(LEAST_BYTES - 1, 0, -1) if pattern.startswith(data[-n:]) and len(data) >= n), 0
    )


def _pread(file: int, size: int, offset: int) -> bytes:
    """As os.pread, but short only at the end of the file."""
    pieces = []
    while size > 0 and (piece := os.pread(file, size, offset)):
        pieces.append(piece)
        size -= len(piece)
        offset += len(piece)
    return b"".join(pieces)
