"""What every view of the API does around its own work: unknown parameters are refused, new objects have an address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from drf_spectacular.plumbing import force_instance, is_serializer
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.views import APIView

from infra.api.rest import check_known, check_query, page_parameters

if TYPE_CHECKING:
    Base = APIView
else:
    Base = object

#: By view, action and method, what `known_parameters` has found; views are declared once and never change.
_known: Final[dict[tuple[type, str | None, str], frozenset[str]]] = {}


class KnownQuery(Base):
    """For view sets: refuses, with 400, a parameter that the operation does not name in the OpenAPI document."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        check_query(request)
        super().initial(request, *args, **kwargs)
        if request.query_params and request.method != "OPTIONS":
            check_known(request, *known_parameters(self, request.method or "GET"))

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """With `Location` where an object was created: the view's `location`, filled from the answer and the address.

        An answer that is given again for an `Idempotency-Key` has it too.
        """
        template = location_of(self)
        if template and response.status_code == 201 and isinstance(response.data, dict):
            filled = {name: quote(str(value), safe="") for name, value in {**response.data, **kwargs}.items()}
            response["Location"] = template.format_map(filled)
        return super().finalize_response(request, response, *args, **kwargs)


def location_of(view: Any) -> str:
    """The address of what a POST creates, with fields of its answer in braces; view sets have one by action."""
    location = getattr(view, "location", "")
    return str(location.get(getattr(view, "action", None), "") if isinstance(location, dict) else location)


class ApiView(KnownQuery, APIView):
    """A view of the API."""


def known_parameters(view: Any, method: str) -> frozenset[str]:
    """The parameters of the query that an operation takes: those of its `extend_schema`, of its filters and pages."""
    method = "GET" if method == "HEAD" else method
    key = type(view), getattr(view, "action", None), method
    if key not in _known:
        _known[key] = frozenset(_parameters_of(view, method))
    return _known[key]


def _parameters_of(view: Any, method: str) -> Iterator[str]:
    handler = getattr(view, method.lower())
    schema = getattr(handler, "kwargs", {}).get("schema")
    if schema is not None:
        described = schema()
        described.view, described.method = view, method
        for parameter in described.get_override_parameters():
            if isinstance(parameter, OpenApiParameter):
                if parameter.location == OpenApiParameter.QUERY:
                    yield parameter.name
            elif is_serializer(parameter):
                yield from force_instance(parameter).fields
    if is_list(view, method):
        filters = getattr(view, "filterset_class", None)
        yield from filters.base_filters if filters is not None else ()
        yield from page_parameters(view)


def is_list(view: Any, method: str) -> bool:
    """Whether an operation gives a list that can be filtered and has pages."""
    return method == "GET" and getattr(view, "action", "list") == "list"
