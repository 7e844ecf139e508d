"""Secrets over HTTP: names and dates are listed, values are only ever taken."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import selectors
from accounts.api.person import person
from accounts.api.serializers import StrictSerializer
from accounts.models import Project, Secret, User
from accounts.services import secrets as services
from infra.api.rest import CleanJSONParser
from infra.api.views import ApiView
from infra.errors import InvalidInput

REF = OpenApiParameter("ref", str, OpenApiParameter.PATH, description="The project's slug, id or exact name.")
NAME = OpenApiParameter("name", str, OpenApiParameter.PATH, description="The name of the secret.")
_ABOUT_VALUE = (
    f"{services.LEAST_BYTES} to {services.MOST_BYTES} bytes of text. No response contains the value; set a new "
    "value to change it."
)


class SecretSerializer(serializers.ModelSerializer[Secret]):
    """A secret without its value."""

    set_by: serializers.SlugRelatedField[User] = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = Secret
        fields = ["name", "version", "created_at", "set_at", "set_by"]
        read_only_fields = fields


class SecretListSerializer(serializers.Serializer[Any]):
    results = SecretSerializer(many=True)


class SecretValueSerializer(StrictSerializer):
    """A new value."""

    value = serializers.CharField(
        write_only=True, trim_whitespace=False, help_text=_ABOUT_VALUE, style={"input_type": "password"}
    )


class _ValueParser(CleanJSONParser):
    """A value is text of any kind: keys and certificates have several lines."""

    several_lines = frozenset({"value"})


class _SecretsView(ApiView):
    parser_classes = (_ValueParser,)
    required_scopes = {"GET": "secrets:write", "PUT": "secrets:write", "DELETE": "secrets:write"}
    schema_tags = ["secrets"]
    pagination_class = None

    def list_of(self, request: Request, owner: User | Project) -> Response:
        rows = services.listed(owner, person(request))
        return Response({"results": SecretSerializer(rows, many=True).data})

    def put_into(self, request: Request, owner: User | Project, name: str) -> Response:
        _refuse_key(request)
        serializer = SecretValueSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        value = serializer.validated_data["value"]
        row = services.set_secret(owner=owner, name=name, value=value, by=person(request))
        made = status.HTTP_201_CREATED if row.version == 1 else status.HTTP_200_OK
        return Response(SecretSerializer(row).data, status=made)

    def delete_from(self, request: Request, owner: User | Project, name: str) -> Response:
        services.delete_secret(owner=owner, name=name, by=person(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


def _refuse_key(request: Request) -> None:
    if "Idempotency-Key" in request.headers:
        raise InvalidInput(
            "Setting a secret accepts no Idempotency-Key: no part of such a request is stored.",
            code="idempotency-key-bad",
            status=400,
            way_out="Leave the Idempotency-Key out; PUT may be repeated as it is.",
        )


class OwnSecrets(_SecretsView):
    """Your own secrets; only your jobs can use them."""

    @extend_schema(
        responses=SecretListSerializer, operation_id="secrets_list", summary="The names of your secrets"
    )
    def get(self, request: Request) -> Response:
        return self.list_of(request, person(request))


class OwnSecret(_SecretsView):
    """One of your secrets."""

    location = "/api/v1/secrets/{name}"

    @extend_schema(
        parameters=[NAME],
        request=SecretValueSerializer,
        responses={200: SecretSerializer, 201: SecretSerializer},
        operation_id="secrets_set",
        summary="Set one of your secrets",
    )
    def put(self, request: Request, name: str) -> Response:
        return self.put_into(request, person(request), name)

    @extend_schema(
        parameters=[NAME],
        request=None,
        responses={204: None},
        operation_id="secrets_delete",
        summary="Delete one of your secrets",
    )
    def delete(self, request: Request, name: str) -> Response:
        return self.delete_from(request, person(request), name)


class ProjectSecrets(_SecretsView):
    """Secrets of a project: leads set secrets, jobs of members can use them."""

    @extend_schema(
        parameters=[REF],
        responses=SecretListSerializer,
        operation_id="projects_secrets_list",
        summary="The names of a project's secrets",
    )
    def get(self, request: Request, ref: str) -> Response:
        return self.list_of(request, selectors.project_by_ref(person(request), ref))


class ProjectSecret(_SecretsView):
    """One secret of a project."""

    location = "/api/v1/projects/{ref}/secrets/{name}"

    @extend_schema(
        parameters=[REF, NAME],
        request=SecretValueSerializer,
        responses={200: SecretSerializer, 201: SecretSerializer},
        operation_id="projects_secrets_set",
        summary="Set a secret of a project",
    )
    def put(self, request: Request, ref: str, name: str) -> Response:
        return self.put_into(request, selectors.project_by_ref(person(request), ref), name)

    @extend_schema(
        parameters=[REF, NAME],
        request=None,
        responses={204: None},
        operation_id="projects_secrets_delete",
        summary="Delete a secret of a project",
    )
    def delete(self, request: Request, ref: str, name: str) -> Response:
        return self.delete_from(request, selectors.project_by_ref(person(request), ref), name)
