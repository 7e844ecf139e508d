"""Notices about quotas and budgets, one's own; and what the reconciler found, for operators and auditors."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import permissions
from accounts.api.person import person
from infra.api.rest import NewestFirst
from infra.api.views import ApiView
from infra.errors import NotAllowed
from quotas.models import DriftFinding
from quotas.services.alerts import read_notice, unread_notices


class AlertSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField()
    text = serializers.CharField()
    at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True, help_text="When the alert ended.")


class NoticeSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    read_at = serializers.DateTimeField(allow_null=True)
    alerts = AlertSerializer(many=True)


class DriftFindingSerializer(serializers.Serializer[DriftFinding]):
    """A counter that differed from its source."""

    id = serializers.IntegerField()
    kind = serializers.CharField()
    project = serializers.CharField(source="project.slug", allow_null=True, default=None)
    subject = serializers.CharField()
    was = serializers.IntegerField()
    found = serializers.IntegerField()
    found_at = serializers.DateTimeField()
    repaired_at = serializers.DateTimeField(allow_null=True)
    reason = serializers.CharField()


class NoticesView(ApiView):
    required_scopes = {"GET": "quota:read"}
    schema_tags = ["quota"]

    @extend_schema(responses=NoticeSerializer(many=True), summary="Your unread notices")
    def get(self, request: Request) -> Response:
        return Response({"results": NoticeSerializer(unread_notices(person(request)), many=True).data})


class NoticeReadView(ApiView):
    required_scopes = {"POST": "quota:read"}
    schema_tags = ["quota"]

    @extend_schema(request=None, responses=NoticeSerializer, summary="Dismiss a notice")
    def post(self, request: Request, notice_id: int) -> Response:
        return Response(NoticeSerializer(read_notice(notice_id=notice_id, by=person(request))).data)


class DriftView(ApiView):
    required_scopes = {"GET": "quota:read"}
    pagination_class = NewestFirst
    schema_tags = ["quota"]

    @extend_schema(
        responses=DriftFindingSerializer(many=True),
        summary="Counter drift that the reconciler found; operators and auditors only",
    )
    def get(self, request: Request) -> Response:
        if not (permissions.may(request.user, "operate") or permissions.may(request.user, "audit")):
            raise NotAllowed(
                "Only operators and auditors see drift.", way_out="Ask an operator of this site."
            )
        pages = NewestFirst()
        page = pages.paginate_queryset(DriftFinding.objects.select_related("project"), request, view=self)
        return pages.get_paginated_response(DriftFindingSerializer(page, many=True).data)
