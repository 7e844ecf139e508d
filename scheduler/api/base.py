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
from infra.plain_text import line_problem

#: Why somebody does something to a job; events keep it with a few words before it.
MAX_REASON: Final = 200
#: Of a DELETE, which has no body.
REASON: Final = OpenApiParameter("reason", str, description="Reason, recorded in the audit trail.")

__all__ = ["MAX_REASON", "REASON", "ApiView", "body_of", "once", "person", "reason_of", "text_of"]


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


def reason_of(request: Request) -> str:
    """Why somebody does it: `reason` of the body or the query."""
    body = request.data if isinstance(request.data, dict) else {}
    unknown = [name for name in body if name != "reason"]
    given = body.get("reason", request.query_params.get("reason", ""))
    problem = None
    if unknown:
        problem = FieldProblem(
            str(unknown[0])[:60], "There is no such field; known is reason.", "unknown-field"
        )
    if problem is not None:
        raise InvalidInput(message=problem.message, problems=[problem])
    return text_of(given)


def text_of(given: Any) -> str:
    """A reason as it was sent, checked."""
    problem = None
    if not isinstance(given, str) or len(given) > MAX_REASON:
        problem = FieldProblem("reason", f"Must be text of at most {MAX_REASON} characters.", "bad-text")
    elif trouble := line_problem(given):
        problem = FieldProblem("reason", trouble, "bad-text")
    if problem is not None:
        raise InvalidInput(message=problem.message, problems=[problem])
    return str(given).strip()
