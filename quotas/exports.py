"""Tables as files: every line, streamed, however many there are."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from django.conf import settings
from django.db.models import QuerySet
from django.http import StreamingHttpResponse

from accounts.bounds import at_most, check_export
from quotas.models import LedgerEntry

#: Rows that are read at a time while they are streamed.
CHUNK: Final = 2000

#: The way out of a file that would be too long.
FEWER: Final = "Ask for fewer days, or for one project, with since, until and project."

_COLUMNS: Final = (
    "id", "kind", "project", "user", "job", "attempt", "gpu_model", "cpu_millis", "memory_mib", "gpu_millis",
    "storage_mib", "held_seconds", "charged_seconds", "held_micros", "charged_micros", "starts_at", "ends_at",
    "at", "reason", "rolled_up_at",
)  # fmt: skip
_VALUES: Final = (
    "id", "kind", "project__slug", "user__username", "job_number", "attempt_id", *_COLUMNS[6:-1], "roll_up__at",
)  # fmt: skip


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


def streamed(entries: QuerySet[LedgerEntry], export: str) -> StreamingHttpResponse:
    """All lines of the ledger without holding them in memory; raises InvalidInput beyond MUSTER_MAX_EXPORT_ROWS."""
    check_export(at_most(entries, settings.MUSTER_MAX_EXPORT_ROWS), way_out=FEWER)
    return as_file("ledger", _COLUMNS, entries.values_list(*_VALUES).iterator(chunk_size=CHUNK), export)


def as_file(
    name: str, columns: Sequence[str], rows: Iterable[tuple[Any, ...]], export: str
) -> StreamingHttpResponse:
    """Any rows as a file that is written as they are read."""
    write, content_type = EXPORTS[export]
    response = StreamingHttpResponse(write(columns, rows), content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{name}.{export}"'
    return response
