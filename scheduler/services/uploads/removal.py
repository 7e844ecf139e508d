"""The bytes of uploads that are to leave are removed from the storage."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import structlog

from infra.storage import NotConfigured, StorageError
from scheduler.models import FolderUpload, FolderUploadState
from scheduler.services.uploads.stored import remove_bytes

log = structlog.get_logger(__name__)

#: Rows that one run looks at.
_MOST: Final = 500


def remove_leaving(*, upload: UUID | None = None) -> int:
    """Remove the bytes of uploads that are to leave, of one or of all; answers how many.

    Where the storage does not answer, they stay for the next time.
    """
    rows = FolderUpload.objects.filter(state=FolderUploadState.LEAVING).order_by("seen_at")
    if upload is not None:
        rows = rows.filter(pk=upload)
    removed = 0
    for row in rows[:_MOST]:
        try:
            remove_bytes(row.pk)
        except NotConfigured:
            pass  # the site has given its storage up
        except StorageError as error:
            log.warning("upload_not_removed", upload=str(row.pk), error=error.message)
            return removed
        removed += FolderUpload.objects.filter(pk=row.pk, state=FolderUploadState.LEAVING).update(
            state=FolderUploadState.REMOVED
        )
    return removed
