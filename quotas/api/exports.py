"""The ledger as a file: every entry, streamed."""

from __future__ import annotations

from typing import Final

from django.conf import settings
from django.db.models import QuerySet
from django.http import StreamingHttpResponse

from infra.exports import FEWER_ROWS, file_response
from infra.request_cost import check_export, count_up_to
from quotas.models import LedgerEntry

#: Rows that are read at a time while they are streamed.
CHUNK: Final = 2000

_COLUMNS: Final = (
    "id", "kind", "project", "user", "job", "attempt", "gpu_model", "cpu_millis", "memory_mib", "gpu_millis",
    "storage_mib", "held_seconds", "charged_seconds", "held_micros", "charged_micros", "starts_at", "ends_at",
    "at", "reason", "unused_seconds", "rolled_up_at",
)  # fmt: skip
_VALUES: Final = (
    "id", "kind", "project__slug", "user__username", "job_number", "attempt_id", *_COLUMNS[6:-1], "roll_up__at",
)  # fmt: skip


def ledger_file(entries: QuerySet[LedgerEntry], export: str) -> StreamingHttpResponse:
    """All these entries of the ledger; raises InvalidInput beyond MUSTER_MAX_EXPORT_ROWS."""
    check_export(count_up_to(entries, settings.MUSTER_MAX_EXPORT_ROWS), way_out=FEWER_ROWS)
    rows = entries.values_list(*_VALUES).iterator(chunk_size=CHUNK)
    return file_response("ledger", _COLUMNS, rows, export)
