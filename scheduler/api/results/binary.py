"""What operations that answer with bytes have in common: their answers, and the parameters of a download."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework.request import Request

from infra.archives import KINDS
from infra.downloads import CONTENT_TYPES
from scheduler.api.job_reads import bad_query

#: One range of one file.
RANGE: Final = OpenApiParameter("Range", str, OpenApiParameter.HEADER, description="One range of bytes.")
FILE_ANSWERS: Final[dict[Any, Any]] = {
    (200, "application/octet-stream"): OpenApiResponse(OpenApiTypes.BINARY, "The bytes of the file."),
    (206, "application/octet-stream"): OpenApiResponse(OpenApiTypes.BINARY, "The range of them."),
    416: OpenApiResponse(description="The range is outside of the file."),
}
KIND: Final = OpenApiParameter("kind", str, enum=list(KINDS), default="tar")
ARCHIVE_ANSWERS: Final[dict[Any, Any]] = {
    (200, content_type): OpenApiResponse(OpenApiTypes.BINARY, "A tar or zip file.")
    for content_type in CONTENT_TYPES.values()
}


def kind_of(request: Request) -> str:
    """`tar` or `zip`, as the query asks; raises InvalidInput."""
    kind = request.query_params.get("kind") or KINDS[0]
    if kind not in KINDS:
        raise bad_query("kind", f"Must be one of {', '.join(KINDS)}.")
    return str(kind)
