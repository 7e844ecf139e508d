"""Single limits of every subject over HTTP: read with their usage, created, changed and removed."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import permissions
from accounts.api import etags
from accounts.api.etags import IF_MATCH
from accounts.api.once import KEY, once
from accounts.api.person import person
from accounts.api.serializers import StrictSerializer
from accounts.models import Organization, Project, User
from accounts.selectors import project_by_ref, visible_users
from infra.api.fields import ChoiceField
from infra.api.rest import NewestFirst, bad_choice
from infra.api.views import ApiView
from infra.errors import FieldProblem, InvalidInput, NotFound
from infra.plain_text import reason_of
from quotas.core.resources import MAX_AMOUNT
from quotas.models import Quota, QuotaResource
from quotas.selectors.limits import line_by_id, visible_lines
from quotas.selectors.quota_status import line_states, lines_on_path
from quotas.services.quota_lines import MOST_SECONDS, Subject, remove_line, set_line

REASON: Final = "Reason; recorded in the audit trail."


class LineStateSerializer(serializers.Serializer[Any]):
    """One limit with its usage; amounts in the unit of its resource, null = no limit."""

    id = serializers.IntegerField(source="line.pk")
    owner = serializers.CharField(source="line.owner", help_text='"project vision", "mia in project vision".')
    organization = serializers.CharField(source="line.organization.slug", allow_null=True, default=None)
    project = serializers.CharField(source="line.project.slug", allow_null=True, default=None)
    user = serializers.CharField(source="line.user.username", allow_null=True, default=None)
    resource = serializers.ChoiceField(source="line.resource", choices=QuotaResource.choices)
    gpu_model = serializers.CharField(source="line.gpu_model", help_text="Empty: of all models.")
    job_type = serializers.CharField(source="line.job_type", help_text="Empty: of all jobs.")
    nominal = serializers.IntegerField(source="line.nominal", allow_null=True)
    borrowing_limit = serializers.IntegerField(source="line.borrowing_limit", allow_null=True)
    lending_limit = serializers.IntegerField(source="line.lending_limit", allow_null=True)
    soft = serializers.IntegerField(source="line.soft", allow_null=True)
    hard = serializers.IntegerField(source="line.hard", allow_null=True)
    enforce = serializers.BooleanField(source="line.enforce")
    converge_after_seconds = serializers.IntegerField(source="line.converge_after_seconds", allow_null=True)
    provider = serializers.CharField(source="line.provider", help_text="Provider of the quota.")
    used = serializers.IntegerField()
    bound = serializers.IntegerField(allow_null=True, help_text="Maximum usage.")
    free = serializers.IntegerField(
        allow_null=True, help_text="Free now, under this limit and its parent limits."
    )
    borrowed = serializers.IntegerField(help_text="Usage above the nominal share.")
    lent = serializers.IntegerField(help_text="Part of the idle nominal share that others use now.")
    over = serializers.BooleanField(help_text="Usage exceeds the limit, from before the limit was lowered.")
    over_since = serializers.DateTimeField(source="line.over_since", allow_null=True)
    stops_at = serializers.DateTimeField(
        allow_null=True,
        help_text="When jobs are stopped to keep the limit; null: running jobs continue to their end.",
    )
    above = serializers.IntegerField(
        source="parent_id", help_text="Parent limit of the same resource; 0 = none."
    )
    generation = serializers.IntegerField(source="line.generation")


def _amount() -> serializers.IntegerField:
    return serializers.IntegerField(min_value=0, max_value=MAX_AMOUNT, allow_null=True, required=False)


class BoundsSerializer(StrictSerializer):
    nominal = _amount()
    borrowing_limit = _amount()
    lending_limit = _amount()
    soft = _amount()
    hard = _amount()
    enforce = serializers.BooleanField(required=False)
    converge_after_seconds = serializers.IntegerField(
        min_value=0, max_value=MOST_SECONDS, allow_null=True, required=False,
        help_text="Seconds after which jobs above a lowered limit are stopped; null: no job is stopped.",
    )  # fmt: skip
    reason = serializers.CharField(max_length=1000, help_text=REASON)


class NewLineSerializer(BoundsSerializer):
    """Name an organization, a project, a project and one of its people, or a person for all projects."""

    organization = serializers.CharField(max_length=80, required=False)
    project = serializers.CharField(max_length=120, required=False)
    user = serializers.CharField(max_length=150, required=False)
    resource = ChoiceField(choices=QuotaResource.choices)
    gpu_model = serializers.CharField(max_length=80, required=False, allow_blank=True)
    job_type = serializers.CharField(max_length=32, required=False, allow_blank=True)


class LineChangeSerializer(BoundsSerializer):
    generation = serializers.IntegerField(
        required=False,
        min_value=1,
        help_text="The generation that you read, instead of If-Match; 412 if changed since.",
    )


class LineConflictSerializer(serializers.Serializer[Any]):
    """A problem with the current and the sent values."""

    code = serializers.CharField()
    detail = serializers.CharField()
    line = serializers.IntegerField()
    generation = serializers.IntegerField()
    current = serializers.DictField()
    yours = serializers.DictField()


STALE: Final = OpenApiResponse(LineConflictSerializer, "Changed since you read it; both values.")
THERE: Final = OpenApiResponse(LineConflictSerializer, "The limit exists already; both values.")


class LinesView(ApiView):
    required_scopes = {"GET": "quota:read", "POST": "quota:write"}
    pagination_class = NewestFirst
    counted = True
    location = "/api/v1/quotas/lines/{id}"
    schema_tags = ["quota"]

    @extend_schema(
        operation_id="quotas_lines_list",
        parameters=[
            OpenApiParameter(
                "path", str, description="A project: every limit that applies to its jobs, lowest first."
            ),
            OpenApiParameter("project", str, description="Limits of this project and of people in it."),
            OpenApiParameter("organization", str, description="Limits of this organization."),
            OpenApiParameter(
                "user", str, description="Limits of this person, per project and in all projects."
            ),
            OpenApiParameter("resource", str, enum=QuotaResource.values),
            OpenApiParameter("gpu_model", str),
            OpenApiParameter("job_type", str),
        ],
        responses=LineStateSerializer(many=True),
        summary="Limits that you may see, with free, borrowed and lent amounts",
    )
    def get(self, request: Request) -> Response:
        query = request.query_params
        if query.get("resource", "") not in ("", *QuotaResource.values):
            raise bad_choice("resource", QuotaResource.values)
        if query.get("path"):
            project = project_by_ref(person(request), query["path"])
            permissions.require(request.user, "view_quota", project)
            return Response({"results": _shown(lines_on_path(project)), "next": None, "previous": None})
        rows = visible_lines(person(request))
        if query.get("project"):
            rows = rows.filter(project=project_by_ref(person(request), query["project"]))
        for name, column in (
            ("organization", "organization__slug"), ("user", "user__username"), ("resource", "resource"),
            ("gpu_model", "gpu_model"), ("job_type", "job_type"),
        ):  # fmt: skip
            if query.get(name):
                rows = rows.filter(**{column: query[name][:150]})
        pages = NewestFirst()
        page = pages.paginate_queryset(rows, request, view=self)
        return pages.get_paginated_response(_shown(page))

    @extend_schema(
        operation_id="quotas_lines_make",
        parameters=[KEY],
        request=NewLineSerializer,
        responses={201: LineStateSerializer, 409: THERE},
        summary="Create a limit; operators, and leads for people of their project",
    )
    @once
    def post(self, request: Request) -> Response:
        serializer = NewLineSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        data = dict(serializer.validated_data)
        subject = _subject(request, data)
        what = {name: data.pop(name) for name in ("resource", "gpu_model", "job_type") if name in data}
        reason = data.pop("reason")
        line = set_line(
            subject=subject, **what, changes=data, by=person(request), reason=reason, expected_generation=0
        )
        return _answer(line, status=201)


class LineView(ApiView):
    required_scopes = {"GET": "quota:read", "PATCH": "quota:write", "DELETE": "quota:write"}
    schema_tags = ["quota"]

    @extend_schema(operation_id="quotas_lines_read", responses=LineStateSerializer, summary="One limit")
    def get(self, request: Request, line_id: int) -> Response:
        return _answer(line_by_id(person(request), line_id))

    @extend_schema(
        operation_id="quotas_lines_change",
        parameters=[IF_MATCH],
        request=LineChangeSerializer,
        responses={200: LineStateSerializer, 412: STALE},
        summary="Change a limit; operators, and leads for people of their project",
    )
    def patch(self, request: Request, line_id: int) -> Response:
        line = line_by_id(person(request), line_id)
        serializer = LineChangeSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        data = dict(serializer.validated_data)
        reason = data.pop("reason")
        seen = _expected(request, line, data.pop("generation", None))
        changed = set_line(
            subject=Subject(line.organization, line.project, line.user),
            resource=line.resource,
            gpu_model=line.gpu_model,
            job_type=line.job_type,
            changes=data,
            by=person(request),
            reason=reason,
            expected_generation=line.generation if seen is None else seen,
        )
        return _answer(changed)

    @extend_schema(
        operation_id="quotas_lines_remove",
        parameters=[IF_MATCH, OpenApiParameter("reason", str, required=True, description=REASON)],
        request=None,
        responses={204: None, 412: STALE},
        summary="Remove a limit; operators, and leads for people of their project",
    )
    def delete(self, request: Request, line_id: int) -> Response:
        line = line_by_id(person(request), line_id)
        remove_line(
            line=line,
            by=person(request),
            reason=reason_of(request.query_params.get("reason") or "", most=1000),
            expected_generation=_expected(request, line, None),
        )
        return Response(status=204)


def _subject(request: Request, data: dict[str, Any]) -> Subject:
    """Whose line it is to be, from what the asker may know of."""
    found: dict[str, Any] = {}
    if (project := data.pop("project", None)) is not None:
        found["project"] = project_by_ref(person(request), project)
    if (slug := data.pop("organization", None)) is not None:
        permissions.require(request.user, "operate")
        found["organization"] = _one(Organization.objects.filter(slug=slug), "organization", slug)
    if (name := data.pop("user", None)) is not None:
        found["user"] = _one(visible_users(person(request)).filter(username=name), "user", name)
    return Subject(**found)


def _one(rows: Any, what: str, name: str) -> Organization | Project | User:
    one = rows.first()
    if one is None:
        message = f"There is no {what} {name!r}, or you may not see it."
        raise InvalidInput(message, problems=[FieldProblem(what, message, "unknown")])
    found: Organization | Project | User = one
    return found


def _shown(lines: list[Quota]) -> Any:
    states = line_states(lines)
    return LineStateSerializer([states[line.pk] for line in lines], many=True).data


def _answer(line: Quota, *, status: int = 200) -> Response:
    state = line_states([line]).get(line.pk)
    if state is None:
        raise NotFound("This limit no longer exists.", way_out="Read the list again.")
    body = LineStateSerializer(state).data
    return Response(body, status=status, headers={"ETag": etag(line)})


def etag(line: Quota) -> str:
    """Names what can be edited: usage moves without it."""
    return etags.etag("line", line.pk, line.generation)


def _expected(request: Request, line: Quota, seen: int | None) -> int | None:
    """The generation in If-Match, else in the body; None without either, or with `*`."""
    return etags.expected(request, "line", line.pk, "limit", given=seen)
