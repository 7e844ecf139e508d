"""The files that a job has left in its working folder: which there are, and the bytes of one or of all."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduler.api.base import person, reason_of
from scheduler.api.job_reads import query_integer
from scheduler.api.jobs import JobView
from scheduler.api.results.binary import ARCHIVE_ANSWERS, FILE_ANSWERS, KIND, RANGE, kind_of
from scheduler.api.serializers import moment
from scheduler.models import Job, KeptResult, LeaveReason
from scheduler.services.results.downloads import download_archive, download_file
from scheduler.services.results.kept import policy_of
from scheduler.services.results.reading import Folder, folder_of, folders_of, list_entries
from scheduler.services.results.removal import remove_results

MOST_LISTED: Final = 500

ATTEMPT = OpenApiParameter(
    "attempt", int, description="Of this attempt; the latest with a folder when absent."
)
RANK = OpenApiParameter("rank", int, description="Of this task; the first with a folder when absent.")
PATH = OpenApiParameter(
    "path",
    str,
    description="As the list of files writes it: bytes that are no UTF-8 as \\xNN, a backslash as \\\\.",
)


class ResultFolderSerializer(serializers.Serializer[Any]):
    """The working folder of one task on its node."""

    attempt = serializers.IntegerField()
    rank = serializers.IntegerField()
    node = serializers.CharField()
    node_answers = serializers.BooleanField(help_text="The task is running; its files can be read now.")
    node_last_seen_at = serializers.DateTimeField(allow_null=True)
    running = serializers.BooleanField(help_text="Of a task that runs; nothing was counted yet.")
    files = serializers.IntegerField(allow_null=True)
    size_bytes = serializers.IntegerField(allow_null=True)
    counted_whole = serializers.BooleanField(help_text="False: there is more than was counted.")
    kept_at = serializers.DateTimeField(allow_null=True)
    leaves_at = serializers.DateTimeField(
        allow_null=True, help_text="Time after which the results may be removed."
    )
    leaves_because = serializers.ChoiceField(["", *LeaveReason.values], allow_blank=True)
    fetched_at = serializers.DateTimeField(allow_null=True, help_text="Time of the last complete download.")


class ResultPolicySerializer(serializers.Serializer[Any]):
    """How long results are kept; 0: without expiry."""

    days = serializers.IntegerField()
    until_fetched = serializers.BooleanField()
    job_mib = serializers.IntegerField()
    person_mib = serializers.IntegerField(
        help_text="Limit of one person on one node; the oldest results are removed first."
    )
    node_mib = serializers.IntegerField()
    notice_hours = serializers.IntegerField(help_text="Between the notice and the removal.")


class JobResultsSerializer(serializers.Serializer[Any]):
    working_dir = serializers.CharField(
        allow_blank=True,
        help_text="A folder of the job's own choice: nothing there is kept, listed or removed.",
    )
    policy = ResultPolicySerializer()
    folders = ResultFolderSerializer(many=True)


class ResultFileSerializer(serializers.Serializer[Any]):
    path = serializers.CharField()
    kind = serializers.ChoiceField(["file", "folder", "link", "other"], help_text="Only a file can be read.")
    size_bytes = serializers.IntegerField()
    modified_at = serializers.DateTimeField()


class ResultFilesSerializer(serializers.Serializer[Any]):
    attempt = serializers.IntegerField()
    rank = serializers.IntegerField()
    results = ResultFileSerializer(many=True)
    next = serializers.CharField(allow_null=True, help_text="Give it as `after` for the next page.")


class RemovedSerializer(serializers.Serializer[Any]):
    folders = serializers.IntegerField(
        help_text="Number of removed results; the nodes delete them within minutes."
    )


def _folder(folder: Folder) -> dict[str, Any]:
    kept: KeptResult | None = folder.kept
    return {
        "attempt": folder.epoch,
        "rank": folder.rank,
        "node": folder.node.name,
        "node_answers": folder.node_answers,
        "node_last_seen_at": moment(folder.last_seen_at),
        "running": kept is None,
        "files": kept.files if kept else None,
        "size_bytes": kept.size_bytes if kept else None,
        "counted_whole": kept.counted_whole if kept else False,
        "kept_at": moment(kept.kept_at) if kept else None,
        "leaves_at": moment(kept.leaves_at) if kept else None,
        "leaves_because": kept.leaves_because if kept else "",
        "fetched_at": moment(kept.fetched_at) if kept else None,
    }


class ResultsView(JobView):
    serializer_class: Any
    schema_tags = ["results"]
    required_scopes = {"GET": "jobs:read", "DELETE": "jobs:write"}

    def folder(self, request: Request, job: Job) -> Folder:
        return folder_of(
            job,
            by=person(request),
            epoch=query_integer(request, "attempt", least=1, most=2**31 - 1),
            rank=query_integer(request, "rank", least=0, most=2**31 - 1),
        )


class JobResults(ResultsView):
    """`/jobs/{id}/results`"""

    serializer_class = JobResultsSerializer

    @extend_schema(operation_id="jobs_results", responses=JobResultsSerializer)
    def get(self, request: Request, ref: str) -> Response:
        """The readable working folders, newest attempt first, with their expiry."""
        job = self.find(request, ref)
        folders = folders_of(job, by=person(request))
        policy = policy_of(job.queue)
        return Response(
            {
                "working_dir": job.working_dir,
                "policy": asdict(policy),
                "folders": [_folder(folder) for folder in folders],
            }
        )

    @extend_schema(
        operation_id="jobs_results_remove",
        parameters=[OpenApiParameter("reason", str, description="Reason, recorded in the audit trail.")],
        responses={200: RemovedSerializer},
    )
    def delete(self, request: Request, ref: str) -> Response:
        """Remove all kept results of a job before their expiry."""
        removed = remove_results(job=self.find(request, ref), by=person(request), reason=reason_of(request))
        return Response({"folders": removed})


class JobResultFiles(ResultsView):
    """`/jobs/{id}/results/files`"""

    serializer_class = ResultFilesSerializer

    @extend_schema(
        operation_id="jobs_results_files",
        parameters=[
            ATTEMPT,
            RANK,
            PATH,
            OpenApiParameter("after", str, description="`next` of the page before."),
            OpenApiParameter("limit", int, default=MOST_LISTED, description=f"At most {MOST_LISTED}."),
        ],
        responses=ResultFilesSerializer,
    )
    def get(self, request: Request, ref: str) -> Response:
        """Files and folders below a path, in the order of their paths, read from the node now."""
        folder = self.folder(request, self.find(request, ref))
        entries, more = list_entries(
            folder,
            path=request.query_params.get("path", ""),
            after=request.query_params.get("after", ""),
            most=query_integer(request, "limit", least=1, most=MOST_LISTED, default=MOST_LISTED),
        )
        files = [
            {
                "path": entry.path,
                "kind": entry.kind,
                "size_bytes": entry.size_bytes,
                "modified_at": moment(entry.modified_at),
            }
            for entry in entries
        ]
        following = entries[-1].path if more and entries else None
        return Response({"attempt": folder.epoch, "rank": folder.rank, "results": files, "next": following})


class JobResultFile(ResultsView):
    """`/jobs/{id}/results/file`"""

    @extend_schema(
        operation_id="jobs_results_file",
        parameters=[
            ATTEMPT,
            RANK,
            OpenApiParameter("path", str, required=True, description=PATH.description),
            RANGE,
        ],
        responses=FILE_ANSWERS,
    )
    def get(self, request: Request, ref: str) -> HttpResponseBase:
        """One file, byte for byte; `Range` resumes an interrupted download."""
        folder = self.folder(request, self.find(request, ref))
        return download_file(request._request, folder, request.query_params.get("path", ""))


class JobResultArchive(ResultsView):
    """`/jobs/{id}/results/archive`"""

    @extend_schema(
        operation_id="jobs_results_archive",
        parameters=[ATTEMPT, RANK, KIND],
        responses=ARCHIVE_ANSWERS,
    )
    def get(self, request: Request, ref: str) -> HttpResponseBase:
        """The whole folder as one file; an incomplete transfer ends with a broken connection."""
        kind = kind_of(request)
        folder = self.folder(request, self.find(request, ref))
        return download_archive(request._request, folder, kind)
