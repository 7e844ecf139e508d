"""ETags that name what can be edited (usage moves without them), and what `If-Match` says was seen."""

from __future__ import annotations

from typing import Final

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from infra.errors import InvalidInput

IF_MATCH: Final = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="ETag of an earlier read; 412 with the current values if the object has changed.",
)


def etag(kind: str, number: int, generation: int) -> str:
    return f'"{kind}-{number}-{generation}"'


def expected(request: Request, kind: str, number: int, what: str, *, given: int | None = None) -> int | None:
    """The generation in If-Match, else the one that was `given` in the body; None = whatever is there."""
    header = request.headers.get("If-Match", "").strip()
    if header in ("", "*"):
        return given
    prefix, suffix = f'"{kind}-{number}-', '"'
    digits = (
        header[len(prefix) : -len(suffix)] if header.startswith(prefix) and header.endswith(suffix) else ""
    )
    if not (digits.isascii() and digits.isdecimal()):
        raise InvalidInput(
            f"If-Match is not an ETag of this {what}.",
            code="bad-if-match",
            way_out="Send back the ETag of your last GET as it is.",
            status=400,
        )
    return int(digits[:18])
