"""Which artefacts a job has, and the bytes of one; for those who may read its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from infra.archives import Content, Member
from infra.db.connections import unit_of_work
from infra.downloads import archive_download, file_download
from infra.errors import NotFound
from infra.storage import Damaged, Storage, configured_storage
from scheduler.agent.results.names import decode_path
from scheduler.models import Artifact, ArtifactUpload, Job
from scheduler.services.results.downloads import name_of

#: What one read of the storage takes into memory.
PIECE_BYTES: Final = 256 * 1024
#: Entries of a page of the list.
MOST_LISTED: Final = 500


@dataclass(frozen=True, slots=True)
class Artifacts:
    """A page of the artefacts of a job, and the uploads of its tasks."""

    uploads: list[ArtifactUpload]
    files: list[Artifact]
    more: bool


def artifacts_of(job: Job, *, by: User, after: int = 0, most: int = MOST_LISTED) -> Artifacts:
    """Up to `most` artefacts with ids beyond `after`; raises NotFound and NotAllowed."""
    permissions.require(by, "read_results", job)
    found = Artifact.objects.present(timezone.now()).filter(job=job, pk__gt=after).exclude(sha256="")
    files = list(found.order_by("pk")[: most + 1])
    uploads = list(ArtifactUpload.objects.filter(job=job)[:MOST_LISTED])
    return Artifacts(uploads, files[:most], len(files) > most)


def artifact_of(job: Job, number: int, *, by: User) -> Artifact:
    """One artefact of a job by its id; raises NotFound and NotAllowed."""
    permissions.require(by, "read_results", job)
    found = Artifact.objects.present(timezone.now()).filter(job=job, pk=number).exclude(sha256="").first()
    if found is None:
        raise NotFound(
            f"Job {job.said_number} has no such artefact.",
            code="no-such-file",
            way_out="Look at the list of artefacts again; artefacts are removed by the policy on the job's page.",
        )
    return found


def download_artifact(request: HttpRequest, artifact: Artifact) -> HttpResponseBase:
    """Its bytes, whole or a range of them; raises StorageError, before the answer begins where it can be known then."""
    storage = configured_storage()
    size = storage.size(artifact.key)
    if size != artifact.size_bytes:
        raise Damaged(
            f"{artifact.path} has {size} bytes in the storage instead of {artifact.size_bytes}.",
            way_out="Ask an administrator to check MUSTER_STORAGE_KEYS and the storage.",
        )

    def read(start: int, stop: int) -> Iterator[bytes]:
        return _pieces(storage, artifact, start, stop)

    return file_download(
        request, name=name_of(artifact.path), size=size, version=artifact.sha256, rest_of=read
    )


def download_artifacts(job: Job, *, by: User, kind: str) -> HttpResponseBase:
    """All artefacts of a job as one `tar` or `zip` file; raises NotFound, NotAllowed, StorageError.

    Where several tasks or attempts have stored files, those of each are in a folder of their own.
    """
    first = artifacts_of(job, by=by, most=1).files
    if not first:
        raise NotFound(
            f"No artefacts of job {job.said_number} are stored.",
            code="no-such-file",
            way_out="They are stored after the end of the job, and are removed by the policy on the job's page.",
        )
    storage = configured_storage()
    storage.size(first[0].key)  # what cannot be read is said before the answer begins
    present = Artifact.objects.present(timezone.now()).filter(job=job).exclude(sha256="")
    apart = present.order_by().values("epoch", "rank").distinct().count() > 1
    return archive_download(_content(storage, job.pk, apart), kind=kind, name=f"job-{job.number}-artifacts")


def _content(storage: Storage, job: int, apart: bool) -> Content:
    after = 0
    while True:
        with unit_of_work():
            present = Artifact.objects.present(timezone.now()).filter(job_id=job, pk__gt=after)
            page = list(present.exclude(sha256="").order_by("pk")[:MOST_LISTED])
        for one in page:
            names = [f"attempt-{one.epoch}", f"task-{one.rank}"] if apart else []
            path = b"/".join([*map(str.encode, names), *decode_path(one.path)])
            text = "/".join(
                [*names, one.path if "\\" in one.path else b"/".join(decode_path(one.path)).decode()]
            )
            yield (
                Member(path, text, one.stored_at or timezone.now(), one.size_bytes),
                _pieces(storage, one, 0, one.size_bytes),
            )
        if len(page) < MOST_LISTED:
            return
        after = page[-1].pk


def _pieces(storage: Storage, artifact: Artifact, start: int, stop: int) -> Iterator[bytes]:
    left = stop - start
    with storage.open(artifact.key, start, left) as found:
        while left > 0 and (piece := found.read(min(left, PIECE_BYTES))):
            left -= len(piece)
            yield piece
    if left:
        raise Damaged(f"{artifact.path} ends {left} bytes early in the storage.")
