"""The OpenAPI schema of the API: its tags, and the problem that any operation may answer with."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.openapi import AutoSchema

from config.problems import PROBLEM_TYPE


class Schema(AutoSchema):
    """Names operations after their routes, and leaves the errors to `describe_errors`."""

    def get_tags(self) -> list[str]:
        view_tags = getattr(self.view, "schema_tags", None)
        return list(view_tags) if view_tags else super().get_tags()


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
        for operation in operations.values():
            if isinstance(operation, dict) and "responses" in operation:
                operation["responses"].setdefault("default", answer)
    return result
