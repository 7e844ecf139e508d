"""ETags that name what can be edited (usage moves without them), and what `If-Match` says was seen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from accounts.errors import FieldProblem, InvalidInput

IF_MATCH: Final = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="The ETag that was seen; 412 with what is there now when it is no longer so.",
)


def etag(kind: str, number: int, generation: int) -> str:
    return f'"{kind}-{number}-{generation}"'


def expected(request: Request, kind: str, number: int, what: str) -> int | None:
    """The generation in If-Match; None without the header or with `*`."""
    given = request.headers.get("If-Match", "").strip()
    if given in ("", "*"):
        return None
    prefix, suffix = f'"{kind}-{number}-', '"'
    digits = given[len(prefix) : -len(suffix)] if given.startswith(prefix) and given.endswith(suffix) else ""
    if not (digits.isascii() and digits.isdecimal()):
        raise InvalidInput(
            f"If-Match is not an ETag of this {what}.",
            code="bad-if-match",
            way_out="Send back the ETag of your last GET as it is.",
            status=400,
        )
    return int(digits[:18])


def bad_choice(name: str, choices: Iterable[str]) -> InvalidInput:
    """A value of a query that is none of the choices: an empty list would hide the mistake."""
    message = f"Has to be one of {', '.join(choices)}."
    return InvalidInput(
        f"{name}: {message}",
        code="bad-filter",
        status=400,
        problems=[FieldProblem(name, message, "unknown-choice")],
        way_out="Correct the query and ask again.",
    )
