"""Notifications, preferences and webhooks over HTTP: one's own, and webhooks of projects that one leads."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import permissions
from accounts.api.person import person
from accounts.models import Project, User
from accounts.selectors import project_by_ref
from infra.api.rest import NewestFirst, bad_choice
from infra.api.views import ApiView
from infra.errors import NotFound
from notifications.api.serializers import (
    MadeWebhookSerializer,
    MessageSerializer,
    NewWebhookSerializer,
    NotificationSerializer,
    PreferenceChangesSerializer,
    PreferencesSerializer,
    ReadRequestSerializer,
    ReadSerializer,
    WebhookChangesSerializer,
    WebhookSerializer,
)
from notifications.core.kinds import KINDS, Kind
from notifications.models import Endpoint, MessageState
from notifications.selectors import choices_of, endpoint_of, messages_of, own_endpoints, own_notifications
from notifications.services import endpoints
from notifications.services.occurrences import mail_is_on
from notifications.services.preferences import (
    change_preferences,
    mark_all_read,
    mark_read,
    require_whole_person,
)

READS = {"GET": "notifications:read"}
WRITES = {"GET": "notifications:read", "POST": "notifications:write", "PATCH": "notifications:write",
          "DELETE": "notifications:write"}  # fmt: skip


def _valid(serializer: type[serializers.Serializer[Any]], request: Request) -> dict[str, Any]:
    checked = serializer(data=request.data)
    checked.is_valid(raise_exception=True)
    return dict(checked.validated_data)


class NotificationsView(ApiView):
    required_scopes = READS
    pagination_class = NewestFirst
    counted = True
    schema_tags = ["notifications"]

    @extend_schema(
        operation_id="notifications_list",
        parameters=[
            OpenApiParameter("kind", str, enum=[kind.value for kind in KINDS]),
            OpenApiParameter("unread", bool, description="true: only unread ones; false: only read ones."),
            OpenApiParameter("project", str, description="Only those about this project."),
        ],
        responses=NotificationSerializer(many=True),
        summary="Your notifications, newest first",
    )
    def get(self, request: Request) -> Response:
        query = request.query_params
        rows = own_notifications(person(request))
        if query.get("kind"):
            if query["kind"] not in {kind.value for kind in KINDS}:
                raise bad_choice("kind", [kind.value for kind in KINDS])
            rows = rows.filter(kind=query["kind"])
        if query.get("unread"):
            if query["unread"] not in ("true", "false"):
                raise bad_choice("unread", ("true", "false"))
            rows = rows.filter(read_at__isnull=query["unread"] == "true")
        if query.get("project"):
            rows = rows.filter(project=project_by_ref(person(request), query["project"]))
        pages = NewestFirst()
        page = pages.paginate_queryset(rows, request, view=self)
        return pages.get_paginated_response(NotificationSerializer(page, many=True).data)


class AllReadView(ApiView):
    required_scopes = WRITES
    schema_tags = ["notifications"]

    @extend_schema(
        operation_id="notifications_read_all",
        request=ReadRequestSerializer,
        responses=ReadSerializer,
        summary="Mark all notifications, or those of a kind, as read",
    )
    def post(self, request: Request) -> Response:
        kind = _valid(ReadRequestSerializer, request).get("kind")
        return Response({"read": mark_all_read(by=person(request), kind=Kind(kind) if kind else None)})


class ReadView(ApiView):
    required_scopes = WRITES
    schema_tags = ["notifications"]

    @extend_schema(request=None, responses=NotificationSerializer, summary="Mark one notification as read")
    def post(self, request: Request, number: int) -> Response:
        return Response(NotificationSerializer(mark_read(number=number, by=person(request))).data)


class UnreadView(ApiView):
    required_scopes = WRITES
    schema_tags = ["notifications"]

    @extend_schema(request=None, responses=NotificationSerializer, summary="Mark one notification as unread")
    def post(self, request: Request, number: int) -> Response:
        row = mark_read(number=number, by=person(request), read=False)
        return Response(NotificationSerializer(row).data)


class PreferencesView(ApiView):
    required_scopes = WRITES
    schema_tags = ["notifications"]

    @extend_schema(responses=PreferencesSerializer, summary="What you are notified of, and where")
    def get(self, request: Request) -> Response:
        require_whole_person(person(request))
        return self._answer(person(request))

    @extend_schema(
        request=PreferenceChangesSerializer, responses=PreferencesSerializer, summary="Turn kinds on or off"
    )
    def patch(self, request: Request) -> Response:
        user = person(request)
        changes = _valid(PreferenceChangesSerializer, request)["changes"]
        change_preferences(user=user, by=user, changes=changes)
        return self._answer(user)

    def _answer(self, user: User) -> Response:
        address = user.email if mail_is_on() and user.email else None
        return Response(
            PreferencesSerializer({"mail_address": address, "preferences": choices_of(user)}).data
        )


# ---------------------------------------------------------------- webhooks


class WebhooksView(ApiView):
    required_scopes = WRITES
    pagination_class = NewestFirst
    counted = True
    location = "/api/v1/webhooks/{id}"
    schema_tags = ["webhooks"]

    @extend_schema(
        operation_id="webhooks_list",
        responses=WebhookSerializer(many=True),
        summary="Your webhooks, and those of projects that you lead",
    )
    def get(self, request: Request) -> Response:
        pages = NewestFirst()
        page = pages.paginate_queryset(own_endpoints(person(request)), request, view=self)
        return pages.get_paginated_response(WebhookSerializer(page, many=True).data)

    # Without an Idempotency-Key: the answer would be kept, and the secret with it.
    @extend_schema(
        request=NewWebhookSerializer,
        responses={201: MadeWebhookSerializer},
        summary="Create a webhook; the response contains the secret, once",
    )
    def post(self, request: Request) -> Response:
        user = person(request)
        data = _valid(NewWebhookSerializer, request)
        project: Project | None = None
        if ref := data.pop("project", None):
            project = project_by_ref(user, ref)
            permissions.require(user, "manage", project)
        made, secret = endpoints.create_endpoint(by=user, project=project, **data)
        return Response(_with_secret(made, secret), status=status.HTTP_201_CREATED)


def _with_secret(made: Endpoint, secret: str) -> dict[str, Any]:
    return {**WebhookSerializer(made).data, "secret": secret}


class WebhookView(ApiView):
    required_scopes = WRITES
    schema_tags = ["webhooks"]

    @extend_schema(operation_id="webhook", responses=WebhookSerializer, summary="One webhook")
    def get(self, request: Request, number: int) -> Response:
        return Response(WebhookSerializer(endpoint_of(person(request), number)).data)

    @extend_schema(
        request=WebhookChangesSerializer,
        responses=WebhookSerializer,
        summary="Change, disable or enable a webhook",
    )
    def patch(self, request: Request, number: int) -> Response:
        user = person(request)
        endpoint = endpoint_of(user, number)
        data = _valid(WebhookChangesSerializer, request)
        enabled = data.pop("enabled", None)
        if data:
            endpoint = endpoints.change_endpoint(endpoint=endpoint, by=user, changes=data)
        if enabled is not None:
            endpoint = endpoints.set_enabled(endpoint=endpoint, by=user, enabled=enabled)
        return Response(WebhookSerializer(endpoint).data)

    @extend_schema(responses={204: None}, summary="Delete a webhook with its messages")
    def delete(self, request: Request, number: int) -> Response:
        user = person(request)
        endpoints.delete_endpoint(endpoint=endpoint_of(user, number), by=user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class RotateView(ApiView):
    required_scopes = WRITES
    schema_tags = ["webhooks"]

    @extend_schema(
        request=None, responses=MadeWebhookSerializer,
        summary="Rotate the secret; both sign for 24 hours, and the response contains the new secret, once",
    )  # fmt: skip
    def post(self, request: Request, number: int) -> Response:
        user = person(request)
        row, secret = endpoints.rotate_secret(endpoint=endpoint_of(user, number), by=user)
        return Response(_with_secret(row, secret))


class TestView(ApiView):
    required_scopes = WRITES
    schema_tags = ["webhooks"]

    @extend_schema(request=None, responses={202: MessageSerializer}, summary="Send a test message")
    def post(self, request: Request, number: int) -> Response:
        user = person(request)
        message = endpoints.send_test(endpoint=endpoint_of(user, number), by=user)
        return Response(MessageSerializer(message).data, status=status.HTTP_202_ACCEPTED)


class MessagesView(ApiView):
    required_scopes = WRITES
    pagination_class = NewestFirst
    counted = True
    schema_tags = ["webhooks"]

    @extend_schema(
        operation_id="webhook_messages_list",
        parameters=[OpenApiParameter("state", str, enum=MessageState.values)],
        responses=MessageSerializer(many=True),
        summary="Messages of a webhook with their tries, newest first",
    )
    def get(self, request: Request, number: int) -> Response:
        rows = messages_of(endpoint_of(person(request), number))
        if state := request.query_params.get("state"):
            if state not in MessageState.values:
                raise bad_choice("state", MessageState.values)
            rows = rows.filter(state=state)
        pages = NewestFirst()
        page = pages.paginate_queryset(rows, request, view=self)
        return pages.get_paginated_response(MessageSerializer(page, many=True).data)


class RedeliverView(ApiView):
    required_scopes = WRITES
    schema_tags = ["webhooks"]

    @extend_schema(
        request=None,
        responses={202: MessageSerializer},
        summary="Send a message again, with the same id and body",
    )
    def post(self, request: Request, number: int, message: int) -> Response:
        user = person(request)
        endpoint = endpoint_of(user, number)
        found = messages_of(endpoint).filter(pk=message).first()
        if found is None:
            raise NotFound("This webhook has no such message.", way_out="GET its messages.")
        row = endpoints.redeliver(endpoint=endpoint, message=found, by=user)
        return Response(MessageSerializer(row).data, status=status.HTTP_202_ACCEPTED)
