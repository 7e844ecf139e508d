"""The checkpoints of a job: listed, taken now, read, removed."""

from __future__ import annotations

from typing import Any

from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.once import KEY
from scheduler.api.base import REASON, once, person, reason_of
from scheduler.api.jobs import JobView, ReasonBodySerializer
from scheduler.api.results.binary import ARCHIVE_ANSWERS, KIND, kind_of
from scheduler.api.serializers import JobSerializer, moment
from scheduler.models import Checkpoint, CheckpointReason, CheckpointState
from scheduler.services.checkpoints.removal import remove_checkpoint
from scheduler.services.checkpoints.verbs import (
    MOST_LISTED,
    ask_checkpoint,
    checkpoint_of,
    checkpoints_of,
    download_checkpoint,
    manifest_of,
)


class CheckpointSerializer(serializers.Serializer[Any]):
    """A checkpoint of one task."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    attempt = serializers.IntegerField()
    rank = serializers.IntegerField()
    node = serializers.CharField()
    state = serializers.ChoiceField(
        CheckpointState.choices, help_text="An attempt continues only from a complete checkpoint."
    )
    reason = serializers.ChoiceField(CheckpointReason.choices, help_text="Reason for the checkpoint.")
    text = serializers.CharField(help_text="Why the checkpoint was not stored, or was removed.")
    files = serializers.IntegerField()
    size_bytes = serializers.IntegerField()
    taken_at = serializers.DateTimeField()
    stored_at = serializers.DateTimeField(allow_null=True)


class CheckpointsSerializer(serializers.Serializer[Any]):
    results = CheckpointSerializer(many=True)


class CheckpointFileSerializer(serializers.Serializer[Any]):
    path = serializers.CharField()
    size = serializers.IntegerField(help_text="bytes")
    sha256 = serializers.CharField()


class ManifestSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    size = serializers.IntegerField(help_text="bytes")
    files = CheckpointFileSerializer(many=True)
    folders = serializers.ListField(child=serializers.CharField())


def _row(row: Checkpoint) -> dict[str, Any]:
    return {
        "id": str(row.pk),
        "name": row.name,
        "attempt": row.epoch,
        "rank": row.rank,
        "node": row.node.name,
        "state": row.state,
        "reason": row.reason,
        "text": row.text,
        "files": row.files,
        "size_bytes": row.size_bytes,
        "taken_at": moment(row.taken_at),
        "stored_at": moment(row.stored_at),
    }


class JobCheckpoints(JobView):
    """`/jobs/{id}/checkpoints`"""

    serializer_class: Any = CheckpointsSerializer
    required_scopes = {"GET": "jobs:read", "POST": "jobs:write"}

    @extend_schema(
        operation_id="jobs_checkpoints",
        responses=CheckpointsSerializer,
        description=f"The newest {MOST_LISTED} checkpoints of a job, including removed ones.",
    )
    def get(self, request: Request, ref: str) -> Response:
        """The checkpoints of a job, newest first."""
        rows = checkpoints_of(self.find(request, ref), by=person(request))
        return Response({"results": [_row(row) for row in rows]})

    @extend_schema(
        operation_id="jobs_checkpoints_take",
        parameters=[KEY],
        request=ReasonBodySerializer,
        responses={202: JobSerializer},
    )
    @once
    def post(self, request: Request, ref: str) -> Response:
        """Request a checkpoint of a running job now; the checkpoint is listed once written."""
        job = ask_checkpoint(job=self.find(request, ref), by=person(request), reason=reason_of(request))
        return Response(self.again(request, job), status=status.HTTP_202_ACCEPTED)


class JobCheckpointDetail(JobView):
    """`/jobs/{id}/checkpoints/{checkpoint}`"""

    serializer_class: Any = CheckpointSerializer
    required_scopes = {"GET": "jobs:read", "DELETE": "jobs:write"}

    @extend_schema(operation_id="jobs_checkpoint_detail", responses=CheckpointSerializer)
    def get(self, request: Request, ref: str, checkpoint: str) -> Response:
        """One checkpoint."""
        return Response(_row(checkpoint_of(self.find(request, ref), checkpoint, by=person(request))))

    @extend_schema(
        operation_id="jobs_checkpoint_remove",
        parameters=[REASON],
        request=None,
        responses={204: OpenApiResponse(description="The bytes are deleted; this cannot be undone.")},
    )
    def delete(self, request: Request, ref: str, checkpoint: str) -> Response:
        """Delete the bytes of a checkpoint; its row stays."""
        job, by = self.find(request, ref), person(request)
        row = checkpoint_of(job, checkpoint, by=by)
        remove_checkpoint(job=job, checkpoint=row, by=by, reason=reason_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class JobCheckpointManifest(JobView):
    """`/jobs/{id}/checkpoints/{checkpoint}/manifest`"""

    serializer_class: Any = ManifestSerializer
    required_scopes = {"GET": "jobs:read"}

    @extend_schema(operation_id="jobs_checkpoint_manifest", responses=ManifestSerializer)
    def get(self, request: Request, ref: str, checkpoint: str) -> Response:
        """The files of a complete checkpoint, with sizes and checksums."""
        return Response(manifest_of(self.find(request, ref), checkpoint, by=person(request)))


class JobCheckpointArchive(JobView):
    """`/jobs/{id}/checkpoints/{checkpoint}/archive`"""

    serializer_class: Any = CheckpointSerializer
    required_scopes = {"GET": "jobs:read"}

    @extend_schema(operation_id="jobs_checkpoint_archive", parameters=[KIND], responses=ARCHIVE_ANSWERS)
    def get(self, request: Request, ref: str, checkpoint: str) -> HttpResponseBase:
        """All files of a checkpoint as one, for the owner of the job and leads of its project.

        Checksums are compared on the way: an incomplete transfer ends with a broken connection.
        """
        job, by = self.find(request, ref), person(request)
        return download_checkpoint(job, checkpoint, by=by, kind=kind_of(request))
