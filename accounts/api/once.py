"""POSTs that can be repeated: with an `Idempotency-Key` the second does nothing and gets the first answer again."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.models import User

KEY: Final = OpenApiParameter(
    "Idempotency-Key", str, OpenApiParameter.HEADER, description="Makes the request safe to repeat."
)


def once(handler: Callable[..., Response]) -> Callable[..., Response]:
    """Lets a POST carry an `Idempotency-Key`: repeated, it does nothing and gets the first answer again."""

    @functools.wraps(handler)
    def repeatable(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return handler(view, request, *args, **kwargs)
        user = request.user
        assert isinstance(user, User)  # permissions have seen to it
        repeats = import_module(settings.MUSTER_REPEATS)  # an app above this one keeps the answers
        first: list[Response] = []

        def do() -> Any:
            response = handler(view, request, *args, **kwargs)
            first.append(response)
            return repeats.Answer(
                response.status_code, json.loads(JSONRenderer().render(response.data) or b"null")
            )

        answer = repeats.do_once(user=user, key=key, request_hash=_hash(repeats, request), do=do)
        if first:
            return first[0]
        return Response(answer.body, status=answer.status, headers={"Idempotent-Replayed": "true"})

    return repeatable


def _hash(repeats: Any, request: Request) -> str:
    # The parsed body, in one order: spaces between two tries make no difference.
    body = json.dumps(request.data, sort_keys=True, separators=(",", ":"), default=str)
    whole: str = repeats.request_hash(
        request.method or "", request.get_full_path(), body.encode("utf-8", "surrogatepass")
    )
    return whole
