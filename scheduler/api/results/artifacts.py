"""The files of a job that are stored beyond its node: which there are, and the bytes of one."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduler.api.base import person, reason_of
from scheduler.api.job_reads import bad_query, query_integer
from scheduler.api.jobs import JobView
from scheduler.api.results.binary import ARCHIVE_ANSWERS, FILE_ANSWERS, KIND, RANGE, kind_of
from scheduler.api.serializers import moment
from scheduler.models import Artifact, ArtifactUpload, UploadState
from scheduler.services.artifacts.reading import (
    MOST_LISTED,
    artifact_of,
    artifacts_of,
    download_artifact,
    download_artifacts,
)
from scheduler.services.artifacts.removal import remove_artifacts

MOST_ID: int = 2**63 - 1


class ArtifactUploadSerializer(serializers.Serializer[Any]):
    """The upload of the files of one task."""

    attempt = serializers.IntegerField()
    rank = serializers.IntegerField()
    state = serializers.ChoiceField(UploadState.choices)
    message = serializers.CharField(
        allow_blank=True, help_text="Why files are missing, or why storing is tried again."
    )
    next_try_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)


class ArtifactSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(help_text="Id of the file, for the download.")
    attempt = serializers.IntegerField()
    rank = serializers.IntegerField()
    path = serializers.CharField(
        help_text="Inside the working folder; bytes that are no UTF-8 as \\xNN, a backslash as \\\\."
    )
    size_bytes = serializers.IntegerField()
    sha256 = serializers.CharField(help_text="Of all its bytes, hexadecimal.")
    stored_at = serializers.DateTimeField()
    leaves_at = serializers.DateTimeField(allow_null=True, help_text="Time of removal.")


class JobArtifactsSerializer(serializers.Serializer[Any]):
    patterns = serializers.ListField(child=serializers.CharField())
    kept_days = serializers.IntegerField(help_text="How long artefacts are stored; 0: as long as their job.")
    uploads = ArtifactUploadSerializer(many=True)
    results = ArtifactSerializer(many=True)
    next = serializers.IntegerField(allow_null=True, help_text="Give it as `after` for the next page.")


class ArtifactsRemovedSerializer(serializers.Serializer[Any]):
    files = serializers.IntegerField(
        help_text="Number of removed artefacts; their bytes are deleted within minutes."
    )


def _upload(upload: ArtifactUpload) -> dict[str, Any]:
    return {
        "attempt": upload.epoch,
        "rank": upload.rank,
        "state": upload.state,
        "message": upload.message,
        "next_try_at": moment(upload.next_try_at),
        "ended_at": moment(upload.ended_at),
    }


def _file(artifact: Artifact) -> dict[str, Any]:
    return {
        "id": artifact.pk,
        "attempt": artifact.epoch,
        "rank": artifact.rank,
        "path": artifact.path,
        "size_bytes": artifact.size_bytes,
        "sha256": artifact.sha256,
        "stored_at": moment(artifact.stored_at),
        "leaves_at": moment(artifact.leaves_at),
    }


class ArtifactsView(JobView):
    serializer_class: Any
    schema_tags = ["results"]
    required_scopes = {"GET": "jobs:read", "DELETE": "jobs:write"}


class JobArtifacts(ArtifactsView):
    """`/jobs/{id}/artifacts`"""

    serializer_class = JobArtifactsSerializer

    @extend_schema(
        operation_id="jobs_artifacts",
        parameters=[
            OpenApiParameter("after", int, description="`next` of the page before."),
            OpenApiParameter("limit", int, default=MOST_LISTED, description=f"At most {MOST_LISTED}."),
        ],
        responses=JobArtifactsSerializer,
    )
    def get(self, request: Request, ref: str) -> Response:
        """The stored files, and the state of the upload of each task."""
        job = self.find(request, ref)
        found = artifacts_of(
            job,
            by=person(request),
            after=query_integer(request, "after", least=0, most=MOST_ID) or 0,
            most=query_integer(request, "limit", least=1, most=MOST_LISTED, default=MOST_LISTED)
            or MOST_LISTED,
        )
        return Response(
            {
                "patterns": job.artifacts,
                "kept_days": settings.MUSTER_KEEP_ARTIFACTS_DAYS,
                "uploads": [_upload(one) for one in found.uploads],
                "results": [_file(one) for one in found.files],
                "next": found.files[-1].pk if found.more else None,
            }
        )

    @extend_schema(
        operation_id="jobs_artifacts_remove",
        parameters=[OpenApiParameter("reason", str, description="Reason, recorded in the audit trail.")],
        responses={200: ArtifactsRemovedSerializer},
    )
    def delete(self, request: Request, ref: str) -> Response:
        """Remove all stored artefacts of a job before their expiry."""
        removed = remove_artifacts(job=self.find(request, ref), by=person(request), reason=reason_of(request))
        return Response({"files": removed})


class JobArtifactFile(ArtifactsView):
    """`/jobs/{id}/artifacts/file`"""

    @extend_schema(
        operation_id="jobs_artifacts_file",
        parameters=[
            OpenApiParameter("id", int, required=True, description="As the list of artefacts says."),
            RANGE,
        ],
        responses=FILE_ANSWERS,
    )
    def get(self, request: Request, ref: str) -> HttpResponseBase:
        """One file, byte for byte; `ETag` is its SHA-256, and `Range` resumes an interrupted download."""
        number = query_integer(request, "id", least=1, most=MOST_ID)
        if number is None:
            raise bad_query("id", "Name the file by its id in the list of artefacts.")
        artifact = artifact_of(self.find(request, ref), number, by=person(request))
        return download_artifact(request._request, artifact)


class JobArtifactArchive(ArtifactsView):
    """`/jobs/{id}/artifacts/archive`"""

    @extend_schema(operation_id="jobs_artifacts_archive", parameters=[KIND], responses=ARCHIVE_ANSWERS)
    def get(self, request: Request, ref: str) -> HttpResponseBase:
        """All artefacts as one file; an incomplete transfer ends with a broken connection.

        Where several tasks or attempts have stored files, those of each are in a folder of their own.
        """
        return download_artifacts(self.find(request, ref), by=person(request), kind=kind_of(request))
