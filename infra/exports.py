"""Rows as CSV or JSON files, streamed: a file of any length takes the memory of one chunk."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from django.http import StreamingHttpResponse

#: The way out of a file that would be too long.
FEWER_ROWS: Final = "Ask for fewer days, or for one project, with since, until and project."


class _Echo:
    """A file that hands back what is written, for the csv writer."""

    def write(self, text: str) -> str:
        return text


def _csv(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    writer = csv.writer(_Echo())
    yield writer.writerow(columns)
    for row in rows:
        yield writer.writerow([_cell(value) for value in row])


def _cell(value: Any) -> Any:
    """No text may be read as a formula by a spreadsheet."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value


def _json(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """One array, a line an entry."""
    yield "["
    first = True
    for row in rows:
        entry = {
            name: value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            if isinstance(value, datetime)
            else value
            for name, value in zip(columns, row, strict=True)
        }
        yield ("\n" if first else ",\n") + json.dumps(entry)
        first = False
    yield "\n]\n"


EXPORTS: Final = {"csv": (_csv, "text/csv; charset=utf-8"), "json": (_json, "application/json")}


def file_response(
    name: str, columns: Sequence[str], rows: Iterable[tuple[Any, ...]], export: str
) -> StreamingHttpResponse:
    """Rows as a CSV or JSON file, written while they are read."""
    write, content_type = EXPORTS[export]
    response = StreamingHttpResponse(write(columns, rows), content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{name}.{export}"'
    return response
