"""An upload for the node where a task that begins with it is about to start."""

from __future__ import annotations

from infra.errors import Conflict
from scheduler.agent.protocol import UploadAnswer
from scheduler.core.lifecycle import LIVE_TASK
from scheduler.models import FolderUpload, FolderUploadState, Node, Task
from scheduler.services.uploads.stored import piece, stored_manifest


def upload_for(*, node: Node, task: int, epoch: int) -> UploadAnswer:
    """What the working folder of this task begins with; raises Conflict, StorageError."""
    row = _upload_of_task(node, task, epoch)
    return UploadAnswer(id=str(row.pk), manifest=stored_manifest(row))


def give_piece(*, node: Node, task: int, epoch: int, number: int, digest: str) -> bytes:
    """One piece of it; raises Conflict, StorageError."""
    return piece(_upload_of_task(node, task, epoch), number, digest)


def _upload_of_task(node: Node, task: int, epoch: int) -> FolderUpload:
    found = Task.objects.filter(pk=task, node=node, attempt__epoch=epoch, state__in=LIVE_TASK)
    upload = found.values_list("attempt__job__upload", flat=True).first()
    if upload is None:
        raise Conflict(
            message=f"No task {task} of attempt {epoch} with an upload runs on this node.", code="not-yours"
        )
    row = FolderUpload.objects.filter(pk=upload, state=FolderUploadState.READY).first()
    if row is None:
        raise Conflict(message="The upload of this job is not there any more.", code="not-expected")
    return row
