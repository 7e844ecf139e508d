"""What the views of this API share: clean queries, bodies that are objects, POSTs that can be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter
from rest_framework.generics import GenericAPIView
from rest_framework.pagination import BasePagination
from rest_framework.request import Request

from accounts.api.once import once
from accounts.api.person import person
from infra.api.views import KnownQuery
from infra.errors import FieldProblem, InvalidInput

#: Of a DELETE, which has no body.
REASON: Final = OpenApiParameter("reason", str, description="Reason, recorded in the audit trail.")

__all__ = ["REASON", "ApiView", "body_of", "once", "person"]


class ApiView(KnownQuery, GenericAPIView[Any]):
    """A view whose query values can be compared and whose errors are problems."""

    pagination_class: type[BasePagination] | None = None
    filter_backends: list[Any] = []


def body_of(request: Request, *, optional: bool = False) -> Mapping[str, Any]:
    """The body as one JSON object."""
    data = request.data
    if optional and not data:
        return {}
    if not isinstance(data, Mapping):
        raise InvalidInput(
            message="The body has to be one JSON object.",
            code="not-an-object",
            way_out="Send for example {} with the fields inside.",
            problems=[FieldProblem("", "Must be a JSON object.", "not-an-object")],
        )
    return data
