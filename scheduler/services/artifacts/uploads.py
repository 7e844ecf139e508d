"""Brings the artefacts of ended tasks from their nodes into the storage.

A worker takes one task at a time. Its files are asked of the node's agent in pieces, as downloads of results are: as
much as was stored, of the same state of the same file, with no link followed. A worker that is killed, a node that is
away and a storage that fails cost time: the upload is tried again for as long as the node keeps the folder.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from infra.errors import Conflict, MusterError, NotFound
from infra.storage import Storage, configured_storage
from quotas.core.resources import show_bytes, show_mib
from scheduler import outbox
from scheduler.agent.results.patterns import FilePattern
from scheduler.core.lifecycle import JobState
from scheduler.models import (
    Artifact,
    ArtifactUpload,
    Job,
    KeptResult,
    NodeHeartbeat,
    Task,
    UploadState,
)
from scheduler.services.results.reading import FileEntry, Folder, all_entries, rest_of
from scheduler.state.settle.events import Event, write_events

log = structlog.get_logger(__name__)

MIB: Final = 1024 * 1024
#: A worker that says nothing for so long has been killed.
LEASE: Final = timedelta(seconds=120)
#: How often it says that it works, within one file.
RENEW_SECONDS: Final = 20.0
#: Between two tries: at first and at most.
RETRY_SECONDS: Final = 10
MOST_RETRY_SECONDS: Final = 900
#: A node that is away for longer has lost what was to be stored.
GIVE_UP: Final = timedelta(days=30)
#: Files of one task.
MOST_FILES: Final = 10_000
#: Entries of a folder that are looked at.
MOST_LOOKED: Final = 200_000
#: A call takes no further task after this time; the next one goes on.
CALL_SECONDS: Final = 60.0
#: The states of a job whose attempt goes on or was its last.
_NOT_AGAIN: Final = (JobState.SCHEDULED, JobState.STARTING, JobState.RUNNING, JobState.STOPPING)

#: One at a time in each worker process: its other threads are for short work.
_busy = threading.Lock()


class Superseded(Exception):
    """Another worker has taken this upload over."""


@dataclass(slots=True)
class _Outcome:
    """The upload of the files of one task."""

    stored: int = 0
    size: int = 0
    #: Why files were left out, a sentence each.
    left_out: list[str] = field(default_factory=list)


def store_due() -> int:
    """Store the artefacts of tasks that wait for it; answers of how many. One call at a time works, others return."""
    if not _busy.acquire(blocking=False):
        return 0
    done, until = 0, time.monotonic() + CALL_SECONDS
    try:
        while time.monotonic() < until and (upload := _take()) is not None:
            with suppress(Superseded):
                _store(upload)
            done += 1
    finally:
        _busy.release()
    return done


def _take() -> ArtifactUpload | None:
    """One that is due, ours for the time of the lease."""
    now = timezone.now()
    with transaction.atomic():
        upload = (
            ArtifactUpload.objects.select_for_update(skip_locked=True, of=("self",))
            .filter(state=UploadState.WAITING, next_try_at__lte=now)
            .order_by("next_try_at")
            .first()
        )
        if upload is not None:
            upload.tries += 1
            upload.next_try_at = now + LEASE
            upload.save(update_fields=["tries", "next_try_at"])
    return upload


def _store(upload: ArtifactUpload) -> None:
    job = Job.objects.get(pk=upload.job_id)
    if not _is_last(job, upload.epoch):
        _end(upload, UploadState.SKIPPED)
        return
    kept = (
        KeptResult.objects.select_related("node")
        .filter(job=job, epoch=upload.epoch, rank=upload.rank, left_at=None)
        .first()
    )
    if kept is None:
        _fail(upload, "The files of the task are no longer on the node.")
        return
    seen = NodeHeartbeat.objects.filter(node=kept.node).values_list("last_seen_at", flat=True).first()
    task = Task.objects.filter(attempt__job=job, attempt__epoch=upload.epoch, rank=upload.rank)
    number = task.values_list("pk", flat=True).first() or 0
    folder = Folder(job.number, upload.epoch, upload.rank, kept.node, kept, number, seen)
    try:
        outcome = _store_files(configured_storage(), upload, folder, job.artifacts)
    except MusterError as error:
        if not _is_last(Job.objects.get(pk=job.pk), upload.epoch):
            _end(upload, UploadState.SKIPPED)
        elif timezone.now() - upload.created_at > GIVE_UP:
            _fail(upload, f"Given up after {GIVE_UP.days} days: {error.message}")
        else:
            log.warning("artifacts_not_stored", job=job.number, tries=upload.tries, error=str(error))
            _again(upload, error)
        return
    message = " ".join(outcome.left_out)[:500]
    if outcome.stored or not outcome.left_out:
        _end(upload, UploadState.STORED, message, _event(upload, outcome))
    else:
        _fail(upload, message)


def _is_last(job: Job, epoch: int) -> bool:
    """Whether no later attempt goes on in the folder of this one."""
    return job.epoch == epoch and (job.is_terminal or job.state in _NOT_AGAIN)


# ---------------------------------------------------------------- files


def _store_files(storage: Storage, upload: ArtifactUpload, folder: Folder, texts: Sequence[str]) -> _Outcome:
    """Store what the patterns name, in the order of the paths; what is there already from an earlier try stays."""
    outcome = _Outcome()
    of_job = Artifact.objects.filter(job_id=upload.job_id)
    before = {one.path: one for one in of_job.filter(epoch=upload.epoch, rank=upload.rank)}
    room = settings.MUSTER_ARTIFACTS_JOB_MIB * MIB or None
    if room is not None:
        others = of_job.exclude(epoch=upload.epoch, rank=upload.rank)
        room -= others.aggregate(all=Sum("size_bytes"))["all"] or 0
    for entry in _wanted(folder, texts, outcome):
        if outcome.stored >= MOST_FILES:
            outcome.left_out.append(f"Only the first {MOST_FILES:,} files were stored.")
            break
        if room is not None and outcome.size + entry.size_bytes > room:
            limit = show_mib(settings.MUSTER_ARTIFACTS_JOB_MIB)
            outcome.left_out.append(
                f"{entry.path[:100]} and later files were not stored: a job stores {limit} at most "
                "(MUSTER_ARTIFACTS_JOB_MIB)."
            )
            break
        try:
            _store_file(storage, upload, folder, entry, before.get(entry.path))
        except (Conflict, NotFound) as error:
            if isinstance(error, NotFound) or error.code != "not-given-out":
                raise
            outcome.left_out.append(f"{entry.path[:100]}: {error.message}")
            continue
        outcome.stored += 1
        outcome.size += entry.size_bytes
    return outcome


def _wanted(folder: Folder, texts: Sequence[str], outcome: _Outcome) -> Iterator[FileEntry]:
    """The regular files that a pattern names, and at the end the patterns that named none."""
    patterns = [(text, FilePattern.of(text)) for text in texts]
    unused = dict.fromkeys(texts)
    for number, entry in enumerate(all_entries(folder)):
        if number >= MOST_LOOKED:
            outcome.left_out.append(
                f"The folder has more than {MOST_LOOKED:,} entries; the rest was not searched."
            )
            return
        if entry.kind == "folder":
            continue
        named = [text for text, pattern in patterns if pattern.matches(entry.path)]
        if not named:
            continue
        if entry.kind != "file":
            outcome.left_out.append(
                f"{entry.path[:100]} is not a regular file: links and devices are not stored."
            )
            continue
        for text in named:
            unused.pop(text, None)
        yield entry
    outcome.left_out += [f"No file matches {text[:100]}." for text in unused]


def _store_file(
    storage: Storage, upload: ArtifactUpload, folder: Folder, entry: FileEntry, before: Artifact | None
) -> None:
    """One file: its row first, then its bytes, then their checksum; raises MusterError."""
    if before is not None and before.sha256 and before.size_bytes == entry.size_bytes:
        return
    key = before.key if before else f"artifacts/{upload.job_id}/{secrets.token_hex(16)}"
    with transaction.atomic():
        _renew(upload)
        row, _ = Artifact.objects.update_or_create(
            job_id=upload.job_id, epoch=upload.epoch, rank=upload.rank, path=entry.path,
            defaults={"key": key, "size_bytes": entry.size_bytes, "sha256": "", "stored_at": None},
        )  # fmt: skip
    body = _NodeFile(upload, rest_of(folder, entry, 0, entry.size_bytes))
    storage.put(key, body, entry.size_bytes)
    now = timezone.now()
    days = settings.MUSTER_KEEP_ARTIFACTS_DAYS
    with transaction.atomic():
        _renew(upload)
        Artifact.objects.filter(pk=row.pk).update(
            sha256=body.digest.hexdigest(),
            stored_at=now,
            leaves_at=now + timedelta(days=days) if days else None,
        )


class _NodeFile:
    """A file on a node as a body for the storage: summed, and its lease kept, while it is read."""

    def __init__(self, upload: ArtifactUpload, pieces: Iterator[bytes]) -> None:
        self.digest = hashlib.sha256()
        self._upload, self._pieces = upload, pieces
        self._rest = b""
        self._renewed = time.monotonic()

    def read(self, size: int = -1, /) -> bytes:
        if size < 0:
            return b"".join(iter(lambda: self.read(MIB), b""))
        if not self._rest:
            self._rest = next(self._pieces, b"")
            self.digest.update(self._rest)
            if time.monotonic() - self._renewed > RENEW_SECONDS:
                _renew(self._upload)
                self._renewed = time.monotonic()
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


# ---------------------------------------------------------------- what becomes of an upload


def _mine(upload: ArtifactUpload) -> dict[str, object]:
    return {"pk": upload.pk, "tries": upload.tries, "state": UploadState.WAITING}


def _renew(upload: ArtifactUpload) -> None:
    if not ArtifactUpload.objects.filter(**_mine(upload)).update(next_try_at=timezone.now() + LEASE):
        raise Superseded


def _again(upload: ArtifactUpload, error: MusterError) -> None:
    seconds = min(RETRY_SECONDS * 2 ** min(upload.tries - 1, 10), MOST_RETRY_SECONDS)
    ArtifactUpload.objects.filter(**_mine(upload)).update(
        next_try_at=timezone.now() + timedelta(seconds=seconds), message=error.message[:500]
    )
    outbox.announce(outbox.job_topic(upload.job_id))


def _fail(upload: ArtifactUpload, message: str) -> None:
    event = Event(
        upload.job_id, upload.epoch, "job.artifacts_missing", f"no artefacts were stored: {message}"[:500]
    )
    _end(upload, UploadState.FAILED, message, event)


def _event(upload: ArtifactUpload, outcome: _Outcome) -> Event:
    text = f"{outcome.stored} {'file' if outcome.stored == 1 else 'files'} stored as artefacts, "
    text += show_bytes(outcome.size)
    if outcome.left_out:
        text += f"; {' '.join(outcome.left_out)}"
    return Event(upload.job_id, upload.epoch, "job.artifacts_stored", text[:500])


@transaction.atomic
def _end(upload: ArtifactUpload, state: UploadState, message: str = "", event: Event | None = None) -> None:
    """Over, unless another worker has taken it: the row, its event, and nothing of what is half on its way."""
    now: datetime = timezone.now()
    ended = ArtifactUpload.objects.filter(**_mine(upload)).update(
        state=state, message=message[:500], next_try_at=None, ended_at=now
    )
    if not ended:
        return
    half = Artifact.objects.filter(job_id=upload.job_id, epoch=upload.epoch, rank=upload.rank)
    half = half if state == UploadState.SKIPPED else half.filter(sha256="")
    half.update(leaves_at=now)
    if event is not None:
        write_events([event], at=now)
    outbox.announce(outbox.job_topic(upload.job_id))
