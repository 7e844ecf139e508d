"""What people do with uploads: begin one, send its pieces, finish, list and delete them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.db import connection, transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, NotFound, TooMany
from infra.storage import StorageError, configured_storage
from quotas.core.resources import MIB, show_mib
from scheduler.agent.protocol import UploadManifest
from scheduler.models import FolderUpload, FolderUploadState, Job
from scheduler.services.uploads import stored
from scheduler.services.uploads.manifest import checked_manifest
from scheduler.services.uploads.removal import remove_leaving

#: Uploads of one person that are there at a time.
MOST_UPLOADS: Final = 200
#: Jobs that a refusal names.
_MOST_NAMED: Final = 5
#: How often the row says that pieces come.
_SEEN_SECONDS: Final = 10.0
#: The class of the advisory locks on a person's uploads.
_PERSON_LOCK: Final = 0x4D53
#: States with bytes in the storage that count for their person.
THERE: Final = (FolderUploadState.RECEIVING, FolderUploadState.READY)


def uploads_of(by: User) -> QuerySet[FolderUpload]:
    """The uploads of this person; by a token that is held to a project, those that were made with such a token."""
    found = FolderUpload.objects.filter(user=by)
    held_to = permissions.token_project_id(by)
    return found if held_to is None else found.filter(held_to=held_to)


def upload_of(ref: str, *, by: User) -> FolderUpload:
    """One of them by its id; raises NotFound, also for one of somebody else."""
    try:
        row = uploads_of(by).filter(pk=uuid.UUID(ref)).first()
    except ValueError:
        row = None
    if row is None:
        raise NotFound(
            message=f"You have no upload {ref[:40]!r}.", code="no-such-upload", way_out="List your uploads."
        )
    return row


# ---------------------------------------------------------------- send


def begin(*, body: Mapping[str, Any], by: User) -> tuple[FolderUpload, UploadManifest]:
    """Announce a folder with all its files: the row under whose id its pieces are to come, and in which order.

    Raises InvalidInput for a manifest that is refused, TooMany, and StorageError where the site has no storage.
    """
    configured_storage()
    manifest = checked_manifest(
        body, most_mib=settings.MUSTER_UPLOAD_MIB, most_files=settings.MUSTER_UPLOAD_FILES
    )
    row = _created(by, manifest["name"], len(manifest["files"]), manifest["size"])
    try:
        stored.put_manifest(row.pk, manifest)
    except StorageError:
        FolderUpload.objects.filter(pk=row.pk).update(
            state=FolderUploadState.LEAVING, text="It was not stored."
        )
        raise
    return row, manifest


def order_of(row: FolderUpload) -> list[str]:
    """The paths of its files in the order of their bytes; raises Conflict, StorageError."""
    return [one["path"] for one in stored.stored_manifest(row)["files"]]


@transaction.atomic
def _created(by: User, name: str, files: int, size: int) -> FolderUpload:
    with connection.cursor() as cursor:  # two at once would both find that there is place
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_PERSON_LOCK, by.pk % 2**31])
    there = FolderUpload.objects.filter(user=by, state__in=THERE)
    held = there.aggregate(size=Sum("size_bytes"))["size"] or 0
    most = settings.MUSTER_UPLOADS_PERSON_MIB
    if most and held + size > most * MIB:
        raise TooMany(
            message=f"Your uploads have {show_mib(-(-held // MIB))}; with this one they would have more than "
            f"{show_mib(most)}.",
            code="too-many-uploads",
            way_out="Delete uploads that no job needs any more.",
        )
    if there.count() >= MOST_UPLOADS:
        raise TooMany(
            message=f"You have {MOST_UPLOADS} uploads already.",
            code="too-many-uploads",
            way_out="Delete uploads that no job needs any more.",
        )
    now = timezone.now()
    row = FolderUpload.objects.create(
        user=by, held_to_id=permissions.token_project_id(by), name=name, files=files, size_bytes=size,
        created_at=now, seen_at=now,
    )  # fmt: skip
    after = {"name": name, "files": files, "bytes": size}
    audit.record(by=by, action="upload.create", thing=row, after=after)
    return row


def take_piece(*, row: FolderUpload, number: int, data: bytes) -> None:
    """Store one piece; the same one again changes nothing. Raises Conflict, InvalidInput, StorageError."""
    if row.state != FolderUploadState.RECEIVING:
        raise _not_receiving(row)
    stored.put_piece(row, number, data)
    now = timezone.now()
    if now - row.seen_at > timedelta(seconds=_SEEN_SECONDS):
        FolderUpload.objects.filter(pk=row.pk, state=FolderUploadState.RECEIVING).update(seen_at=now)


def missing(row: FolderUpload) -> list[int]:
    """The pieces that have not come; raises StorageError."""
    there = stored.received(row)
    return [number for number in range(stored.pieces_of(row)) if number not in there]


def finish(*, row: FolderUpload) -> FolderUpload:
    """All pieces have come: jobs may name the upload from now on. A second time changes nothing.

    Raises Conflict where pieces are missing, or where one number came with different bytes; StorageError.
    """
    if row.state == FolderUploadState.READY:
        return row
    if row.state != FolderUploadState.RECEIVING:
        raise _not_receiving(row)
    there = stored.received(row)
    wanted = range(stored.pieces_of(row))
    if gone := [number for number in wanted if number not in there]:
        raise Conflict(
            message=f"{len(gone):,} of {len(wanted):,} pieces have not come; the first is piece {gone[0]}.",
            code="upload-not-whole",
            way_out="Send the missing pieces, then finish again.",
        )
    if twice := [number for number in wanted if len(there[number]) > 1]:
        raise Conflict(
            message=f"Piece {twice[0]} came twice with different bytes: a file changed while it was sent.",
            code="upload-not-whole",
            way_out="Delete the upload and send the folder again.",
        )
    manifest = stored.stored_manifest(row)
    manifest["pieces"] = [next(iter(there[number])) for number in wanted]
    stored.put_manifest(row.pk, manifest)
    now = timezone.now()
    FolderUpload.objects.filter(pk=row.pk, state=FolderUploadState.RECEIVING).update(
        state=FolderUploadState.READY, ready_at=now, seen_at=now
    )
    row.refresh_from_db()
    return row


def _not_receiving(row: FolderUpload) -> Conflict:
    return Conflict(
        message=f"Upload {row.name} is {row.get_state_display()}; it takes no more bytes.",
        code="upload-not-whole",
        way_out="Begin a new upload.",
    )


# ---------------------------------------------------------------- used and deleted


def hold_for_jobs(ids: set[uuid.UUID]) -> set[uuid.UUID]:
    """Lock those of these uploads that are ready, and note that jobs name them; answers which these are.

    Part of the transaction that writes the jobs: an upload that is deleted at the same moment waits, and finds them.
    """
    if not ids:
        return set()
    held = FolderUpload.objects.select_for_update().filter(pk__in=ids, state=FolderUploadState.READY)
    found = set(held.order_by("pk").values_list("pk", flat=True))
    FolderUpload.objects.filter(pk__in=found).update(used_at=timezone.now())
    return found


@transaction.atomic
def _leave(row: FolderUpload, by: User) -> bool:
    locked = FolderUpload.objects.select_for_update(of=("self",)).get(pk=row.pk)
    if locked.state not in THERE:
        return False
    needing = Job.objects.not_over().filter(upload=row.pk).order_by("number")
    if numbers := list(needing.values_list("number", flat=True)[: _MOST_NAMED + 1]):
        words = ", ".join(map(str, numbers[:_MOST_NAMED])) + (
            " and others" if len(numbers) > _MOST_NAMED else ""
        )
        raise Conflict(
            message=f"Upload {locked.name} is needed by job{'s' if len(numbers) > 1 else ''} {words}.",
            code="upload-in-use",
            way_out="Wait until they have ended, or cancel them.",
        )
    FolderUpload.objects.filter(pk=row.pk).update(
        state=FolderUploadState.LEAVING, text=f"Deleted by {by.username}."
    )
    before = {"name": locked.name, "files": locked.files, "bytes": locked.size_bytes}
    audit.record(by=by, action="upload.delete", thing=locked, before=before)
    return True


def delete(*, row: FolderUpload, by: User) -> None:
    """Remove an upload for good; a second time changes nothing. Raises Conflict while a job needs it."""
    if _leave(row, by):
        remove_leaving(upload=row.pk)
