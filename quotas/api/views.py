"""Quotas over HTTP: read, change with a reason, recount."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import permissions
from accounts.api import etags
from accounts.api.etags import IF_MATCH
from accounts.api.person import person
from accounts.models import Project
from accounts.selectors import project_by_ref
from infra.api.views import ApiView
from quotas.api.serializers import (
    QuotaChangesSerializer,
    QuotaSerializer,
    RepairSerializer,
    SyncedQuotaSerializer,
    changes_from,
)
from quotas.models import Provider
from quotas.providers.base import QuotaSheet
from quotas.providers.registry import quota_sheet
from quotas.providers.view import ProviderView, provider_views
from quotas.services.project_quota import set_quota, sync_quota
from quotas.services.providers import exchange_quota, repair_provider

PROJECT = OpenApiParameter("project_id", str, OpenApiParameter.PATH, description="The project's id or slug.")


class QuotaView(ApiView):
    """The quota of a project and its usage."""

    required_scopes = {"GET": "quota:read", "PATCH": "quota:write"}
    schema_tags = ["quota"]

    @extend_schema(parameters=[PROJECT], responses=QuotaSerializer, summary="A project's quota and usage")
    def get(self, request: Request, project_id: str) -> Response:
        project = project_by_ref(person(request), project_id)
        permissions.require(request.user, "view_quota", project)
        return _answer(project, quota_sheet(project))

    @extend_schema(
        parameters=[PROJECT, IF_MATCH],
        request=QuotaChangesSerializer,
        responses=QuotaSerializer,
        summary="Change a quota; for operators, with a reason",
    )
    def patch(self, request: Request, project_id: str) -> Response:
        project = project_by_ref(person(request), project_id)
        permissions.require(request.user, "edit_quota", project)
        serializer = QuotaChangesSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        data = serializer.validated_data
        sheet = set_quota(
            project=project,
            changes=changes_from(data),
            by=person(request),
            reason=data["reason"],
            expected_generation=_expected(request, project),
        )
        return _answer(project, sheet)


class QuotaSyncView(ApiView):
    """Recount the usage of a project, repair its counters, and compare with the external provider, if any."""

    required_scopes = {"POST": "quota:write"}
    schema_tags = ["quota"]

    @extend_schema(
        parameters=[PROJECT],
        request=None,
        responses=SyncedQuotaSerializer,
        summary="Recount and repair; for operators",
    )
    def post(self, request: Request, project_id: str) -> Response:
        project = project_by_ref(person(request), project_id)
        drift = sync_quota(project=project, by=person(request))
        exchange_quota(project=project, by=person(request))
        sheet = quota_sheet(project)
        context = {"project": project, "drift": drift, "provider_state": _outside(sheet)}
        body = SyncedQuotaSerializer(sheet, context=context).data
        return Response(body, headers={"ETag": etag(sheet)})


class QuotaRepairView(ApiView):
    """Overwrite the limits at an external provider with those of Muster."""

    required_scopes = {"POST": "quota:write"}
    schema_tags = ["quota"]

    @extend_schema(
        parameters=[PROJECT],
        request=RepairSerializer,
        responses=QuotaSerializer,
        summary="Overwrite the provider's limits with those of Muster; operators only, with a reason",
    )
    def post(self, request: Request, project_id: str) -> Response:
        project = project_by_ref(person(request), project_id)
        permissions.require(request.user, "edit_quota", project)
        serializer = RepairSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        repair_provider(project=project, by=person(request), reason=serializer.validated_data["reason"])
        return _answer(project, quota_sheet(project))


def etag(sheet: QuotaSheet) -> str:
    """Names what can be edited: usage moves without it."""
    return etags.etag("quota", sheet.project_id, sheet.generation)


def _answer(project: Project, sheet: QuotaSheet) -> Response:
    body = QuotaSerializer(sheet, context={"project": project, "provider_state": _outside(sheet)}).data
    return Response(body, headers={"ETag": etag(sheet)})


def _outside(sheet: QuotaSheet) -> ProviderView | None:
    if sheet.provider == Provider.LOCAL:
        return None
    return provider_views([sheet.project_id]).get(sheet.project_id)


def _expected(request: Request, project: Project) -> int | None:
    return etags.expected(request, "quota", project.pk, "quota")
