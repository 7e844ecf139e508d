"""The OpenAPI schema of the API: its tags, and the problem that any operation may answer with."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django_filters.rest_framework import DjangoFilterBackend
from drf_spectacular.contrib.django_filters import DjangoFilterExtension
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema

from infra.api.problems import PROBLEM_TYPE
from infra.api.rest import Whole
from infra.api.views import is_list, location_of


class Schema(AutoSchema):
    """Names operations after their routes, and leaves the errors to `describe_errors`."""

    def get_tags(self) -> list[str]:
        view_tags = getattr(self.view, "schema_tags", None)
        return list(view_tags) if view_tags else super().get_tags()

    def _get_response_headers_for_code(self, status_code: str, direction: Any = "response") -> dict[str, Any]:
        headers: dict[str, Any] = super()._get_response_headers_for_code(status_code, direction)
        if str(status_code) == "201" and location_of(self.view):
            headers["Location"] = {
                "description": "Its address.",
                "schema": {"type": "string", "format": "uri-reference"},
            }
        return headers

    # No list of this API is a bare array: it has pages, or is given whole inside of `results`.

    def _get_paginator(self) -> Any:
        return super()._get_paginator() or Whole()  # type: ignore[no-untyped-call]

    def get_paginated_name(self, serializer_name: str) -> str:
        paged = getattr(self.view, "pagination_class", None) is not None
        return super().get_paginated_name(serializer_name) if paged else f"{serializer_name}Whole"

    def _get_filter_parameters(self) -> list[dict[str, Any]]:
        if is_list(self.view, self.method) and getattr(self.view, "filterset_class", None) is not None:
            described: list[dict[str, Any]] = DjangoFilterExtension(
                DjangoFilterBackend()
            ).get_schema_operation_parameters(self)
            return described
        return []


class BearerScheme(OpenApiAuthenticationExtension):
    """`Authorization: Bearer muster_pat_…`"""

    target_class = "accounts.api.authentication.BearerAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "A token made under Tokens in the portal."}


class SessionScheme(OpenApiAuthenticationExtension):
    """The portal's own session."""

    target_class = "accounts.api.authentication.SessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME}


_PROBLEM_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "description": "RFC 9457 problem details.",
    "required": ["type", "title", "status", "detail", "code", "errors", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "Stable and made for programs."},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "field", "message", "code"],
                "properties": {
                    "pointer": {"type": "string", "description": "JSON pointer into the body."},
                    "field": {"type": "string"},
                    "message": {"type": "string"},
                    "code": {"type": "string"},
                },
            },
        },
        "way_out": {"type": "string"},
        "request_id": {"type": "string"},
    },
}


def describe_errors(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Every operation may answer with a problem."""
    result.setdefault("components", {}).setdefault("schemas", {})["Problem"] = _PROBLEM_SCHEMA
    answer = {
        "description": "A problem (RFC 9457).",
        "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for operations in result.get("paths", {}).values():
        for method, operation in operations.items():
            if isinstance(operation, dict) and "responses" in operation:
                _as_problems(operation["responses"])
                if method == "get" and "application/json" in operation["responses"].get("200", {}).get(
                    "content", {}
                ):
                    operation["responses"]["304"] = {
                        "description": "Not modified: `If-None-Match` has the weak ETag of the answer."
                    }
                operation["responses"].setdefault("default", answer)
    return result


def _as_problems(responses: dict[str, Any]) -> None:
    """An error with a schema of its own is a problem with more fields; one without a schema is a plain problem."""
    for status, response in responses.items():
        if status >= "400" and "application/json" in response.get("content", {}):
            own = response["content"]["application/json"]["schema"]
            both = {"allOf": [{"$ref": "#/components/schemas/Problem"}, own]}
            response["content"] = {PROBLEM_TYPE: {"schema": both}}
        elif status >= "400" and status != "default" and not response.get("content"):
            response["content"] = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
