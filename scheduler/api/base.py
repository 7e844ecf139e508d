"""What the views of this API share: clean queries, bodies that are objects, POSTs that can be repeated."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from rest_framework.generics import GenericAPIView
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.errors import FieldProblem, InvalidInput
from accounts.models import User
from config.rest import check_query
from scheduler.services.idempotency import Answer, do_once, request_hash


class ApiView(GenericAPIView):
    """A view whose query values can be compared and whose errors are problems."""

    pagination_class = None
    filter_backends: list[Any] = []

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        check_query(request)
        super().initial(request, *args, **kwargs)


def person(request: Request) -> User:
    """Who asks; permissions have seen to it that it is somebody."""
    assert isinstance(request.user, User)
    return request.user


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
            problems=[FieldProblem("", "Has to be a JSON object.", "not-an-object")],
        )
    return data


def once(handler: Callable[..., Response]) -> Callable[..., Response]:
    """Lets a POST carry an `Idempotency-Key`: repeated, it does nothing and gets the first answer again."""

    @functools.wraps(handler)
    def repeatable(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return handler(view, request, *args, **kwargs)
        first: list[Response] = []

        def do() -> Answer:
            response = handler(view, request, *args, **kwargs)
            first.append(response)
            return Answer(response.status_code, json.loads(JSONRenderer().render(response.data) or b"null"))

        answer = do_once(user=person(request), key=key, request_hash=_hash(request), do=do)
        if first:
            return first[0]
        return Response(answer.body, status=answer.status, headers={"Idempotent-Replayed": "true"})

    return repeatable


def _hash(request: Request) -> str:
    # The parsed body, in one order: spaces between two tries make no difference.
    body = json.dumps(request.data, sort_keys=True, separators=(",", ":"), default=str)
    return request_hash(request.method or "", request.get_full_path(), body.encode("utf-8", "surrogatepass"))
