"""What jobs asked for and what they used, over HTTP: the most wasteful ones, or all of them as a file."""

from __future__ import annotations

from datetime import date
from typing import Any, Final

from django.utils import timezone
from django.utils.dateparse import parse_date
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.selectors import project_by_ref
from infra.errors import FieldProblem, InvalidInput
from infra.exports import EXPORTS, file_response
from scheduler.api.base import ApiView, person
from scheduler.efficiency import COLUMNS, SORTS, Asked, exported_job_uses, job_uses, last_days

DAYS: Final = 30
MOST: Final = 500


class JobUseSerializer(serializers.Serializer[Any]):
    """A job's attempts that ended in these days: amounts times seconds, and percentages of the request."""

    number = serializers.IntegerField()
    name = serializers.CharField()
    project = serializers.CharField()
    user = serializers.CharField()
    state = serializers.CharField()
    tries = serializers.IntegerField()
    seconds = serializers.IntegerField(help_text="Total time that the attempts held their allocations.")
    asked_seconds = serializers.IntegerField(allow_null=True, help_text="Null without a time limit.")
    unused_seconds = serializers.IntegerField(allow_null=True)
    gpu_milli_seconds = serializers.IntegerField()
    lost_gpu_milli_seconds = serializers.IntegerField(help_text="Of attempts that failed or were lost.")
    gpu_measured = serializers.IntegerField(
        allow_null=True, help_text="Allocated GPU time that was measured."
    )
    gpu_used = serializers.IntegerField(
        allow_null=True, help_text="Part of the measured GPU time in which a kernel ran."
    )
    idle_gpu_milli_seconds = serializers.IntegerField()
    cpu_milli_seconds = serializers.IntegerField()
    cpu_measured = serializers.IntegerField(allow_null=True, help_text="Allocated and measured.")
    cpu_used = serializers.IntegerField(allow_null=True)
    idle_cpu_milli_seconds = serializers.IntegerField()
    memory_mib = serializers.IntegerField(help_text="Requested per task.")
    peak_memory_mib = serializers.IntegerField(allow_null=True, help_text="Highest use of one task.")
    idle_memory_mib_seconds = serializers.IntegerField()
    time_percent = serializers.FloatField(allow_null=True)
    gpu_percent = serializers.FloatField(allow_null=True)
    cpu_percent = serializers.FloatField(allow_null=True)
    memory_percent = serializers.FloatField(allow_null=True)
    advice = serializers.ListField(child=serializers.CharField(), help_text="Suggested request.")


class JobUses(ApiView):
    """`/jobs/efficiency`"""

    serializer_class = JobUseSerializer
    required_scopes = {"GET": "jobs:read"}
    schema_tags = ["jobs"]

    @extend_schema(
        operation_id="jobs_efficiency",
        parameters=[
            OpenApiParameter("project", str, description="Slug or id."),
            OpenApiParameter("user", str, description="Username."),
            OpenApiParameter("job", int, description="One job."),
            OpenApiParameter("since", OpenApiTypes.DATE, description="First day; default: 30 days ago."),
            OpenApiParameter("until", OpenApiTypes.DATE, description="The day after the last."),
            OpenApiParameter("sort", str, enum=[*SORTS], description="Sort key; most waste first."),
            OpenApiParameter("limit", int, description=f"1 to {MOST}; else 100."),
            OpenApiParameter(
                "export",
                str,
                enum=[*EXPORTS],
                description="Stream all: CSV, or a bare JSON array.",
            ),
        ],
        responses={
            (200, "application/json"): JobUseSerializer(many=True),
            (200, "text/csv"): OpenApiTypes.STR,
        },
    )
    def get(self, request: Request) -> Any:
        """Requested and used resources by job, most waste first."""
        asked, problems = _asked(request)
        limit = request.query_params.get("limit", "100")
        if not (limit.isascii() and limit.isdecimal() and len(limit) < 9 and 1 <= int(limit) <= MOST):
            problems.append(FieldProblem("limit", f"A whole number from 1 to {MOST}."))
        export = request.query_params.get("export", "")
        if export and export not in EXPORTS:
            problems.append(FieldProblem("export", "Exports are csv or json."))
        if problems or asked is None:
            raise InvalidInput(problems[0].message, code="bad-filter", status=400, problems=problems)
        if export:
            return file_response("jobs", COLUMNS, exported_job_uses(asked), export)
        return Response({"results": JobUseSerializer(job_uses(asked, limit=int(limit)), many=True).data})


def _asked(request: Request) -> tuple[Asked | None, list[FieldProblem]]:
    query, user = request.query_params, person(request)
    problems: list[FieldProblem] = []
    first, until = last_days(DAYS, timezone.now())
    days = {"since": first, "until": until}
    for name in days:
        if query.get(name) and (day := _day(query[name])) is not None:
            days[name] = day
        elif query.get(name):
            problems.append(FieldProblem(name, "A day, such as 2026-11-28."))
    job = query.get("job", "")
    if job and not (job.isascii() and job.isdecimal() and len(job) < 19):
        problems.append(FieldProblem("job", "Must be the number of a job."))
    if query.get("sort", "gpu") not in SORTS:
        problems.append(FieldProblem("sort", f"Sort by {', '.join(SORTS)}."))
    if problems:
        return None, problems
    project = project_by_ref(user, query["project"]) if query.get("project") else None
    words = (project, query.get("user", ""), int(job) if job else None, query.get("sort", "gpu"))
    return Asked(user, days["since"], days["until"], *words), []


def _day(text: str) -> date | None:
    try:
        return parse_date(text)
    except ValueError:
        return None
