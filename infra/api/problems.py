"""Errors of the API as RFC 9457 problems: what happened, where, and the way out."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.core.exceptions import ValidationError as DjangoValidationError
from django.db import DataError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.response import Response

from infra.api.error_codes import CODE_OF_STATUS, MEANINGS
from infra.db.error_messages import to_error
from infra.errors import FieldProblem, MusterError

log = logging.getLogger(__name__)

PROBLEM_TYPE: Final = "application/problem+json"
API_PREFIX: Final = "/api/"
#: Where a person reads what a code means; see `config.error_pages`.
ERROR_PAGES: Final = "/docs/errors/"
SEND_JSON: Final = "Send one JSON object in UTF-8, without NUL characters."


class BadInput(exceptions.APIException):
    """Input that was refused before any field of it was looked at."""

    status_code = 400

    def __init__(self, problem: MusterError) -> None:
        super().__init__(problem.message, problem.code)
        self.as_problem = problem
        self.status_code = problem.status


def problem(
    request: HttpRequest | Request | None,
    *,
    status: int,
    code: str,
    detail: str,
    way_out: str = "",
    problems: list[FieldProblem] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body of a problem: what happened, where, and what to do about it."""
    body: dict[str, Any] = {
        "type": f"{ERROR_PAGES}{code if code in MEANINGS else 'error'}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "errors": [
            {
                "pointer": "/" + p.field.replace("~", "~0").lstrip("/"),
                "field": p.field,
                "message": p.message,
                "code": p.code,
            }
            for p in problems or []
        ],
        "way_out": way_out,
        "request_id": request_id(request),
    }
    return {**(extra or {}), **body}


def handle_exception(error: Exception, context: dict[str, Any]) -> Response:
    """The problem for what a view raised. An unexpected error is logged, and its text is not shown.

    The audit row of a refusal is written by `accounts.api.refusals`, which calls this.
    """
    request: Request | None = context.get("request")
    view = context.get("view")
    known = known_error(error)
    if known is None:
        log.error("unexpected_error", exc_info=error, extra={"request_id": request_id(request)})
        known = MusterError(
            message="Internal error. The error was logged.",
            code="internal-error",
            status=500,
            way_out="Try again. If the error persists, give an operator the request_id.",
        )
    response = Response(
        problem(
            request,
            status=known.status,
            code=known.code,
            detail=known.message,
            way_out=known.way_out,
            problems=known.problems,
            extra=_jsonable(known.extra),
        ),
        status=known.status,
        content_type=PROBLEM_TYPE,
    )
    for name, value in _headers(error, known, view, request).items():
        response[name] = value
    # A client that asked for text gets its problem in JSON all the same.
    response.exception = True
    return response


def known_error(error: Exception) -> MusterError | None:
    """The error as a `MusterError`, or None for one that nobody foresaw."""
    if isinstance(error, MusterError):
        return error
    if isinstance(error, exceptions.APIException):
        return _from_drf(error)
    if isinstance(error, Http404):
        return MusterError(
            message="Not found, or not visible to you.",
            code="not-found",
            status=404,
            way_out="See /api/v1/docs for all addresses.",
        )
    if isinstance(error, PermissionDenied):
        return MusterError(message=str(error) or "Permission denied.", code="not-allowed", status=403)
    if isinstance(error, RequestDataTooBig):
        return too_big()
    if isinstance(error, DjangoValidationError):
        return MusterError(message="; ".join(error.messages), code="invalid", status=422)
    if isinstance(error, (BadRequest, SuspiciousOperation)):
        return MusterError(message="The request is malformed.", code="bad-request", status=400)
    if isinstance(error, DataError):
        # The last line of defence: no value that the database cannot hold may look like our failure.
        log.warning("data_error", exc_info=error)
        return MusterError(
            message="A value in the request cannot be stored.",
            code="invalid",
            status=422,
            way_out="Check for amounts that are too large and characters that are not text.",
        )
    if (known := to_error(error)) is not None:
        log.warning("database_unavailable", extra={"code": known.code, "error": str(error).strip()})
    return known


_DRF_CODES: Final[dict[type[exceptions.APIException], tuple[str, str]]] = {
    exceptions.NotAuthenticated: (
        "not-signed-in",
        "Send Authorization: Bearer with a token; create one under Tokens in the portal.",
    ),
    exceptions.NotFound: ("not-found", "See /api/v1/docs for all addresses."),
    exceptions.MethodNotAllowed: ("method-not-allowed", "The Allow header lists the accepted methods."),
    exceptions.NotAcceptable: ("not-acceptable", "Send Accept: application/json."),
    exceptions.UnsupportedMediaType: ("unsupported-media-type", "Send Content-Type: application/json."),
    exceptions.Throttled: ("too-many-requests", "Wait as long as Retry-After says."),
    exceptions.PermissionDenied: ("not-allowed", ""),
}


def _from_drf(error: exceptions.APIException) -> MusterError:
    if isinstance(error, BadInput):
        return error.as_problem
    if isinstance(error, exceptions.ParseError):
        return MusterError(
            message=_sentence(error.detail), code="malformed-json", status=400, way_out=SEND_JSON
        )
    if isinstance(error, exceptions.ValidationError):
        problems = list(_flatten(error.detail))
        first = problems[0].message if len(problems) == 1 else f"{len(problems)} fields are invalid."
        return MusterError(
            message=first, code="invalid", status=422, problems=problems,
            way_out="Correct the fields named in errors and send the request again; nothing was written.",
        )  # fmt: skip
    code, way_out = _DRF_CODES.get(type(error), (str(getattr(error, "code", "")) or "error", ""))
    if isinstance(error, exceptions.AuthenticationFailed) and type(error) is exceptions.AuthenticationFailed:
        code, way_out = "not-signed-in", _DRF_CODES[exceptions.NotAuthenticated][1]
    return MusterError(message=_sentence(error.detail), code=code, status=error.status_code, way_out=way_out)


def _flatten(detail: Any, at: str = "") -> Any:
    """The problems in DRF's nested detail, each with the path of its field."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            own = "" if name == "non_field_errors" else str(name)
            yield from _flatten(inner, "/".join(part for part in (at, own) if part))
    elif isinstance(detail, (list, tuple)):
        nested = any(isinstance(inner, (Mapping, list)) for inner in detail)
        for number, inner in enumerate(detail):
            yield from _flatten(inner, f"{at}/{number}" if nested else at)
    else:
        yield FieldProblem(at, str(detail), str(getattr(detail, "code", "invalid")).replace("_", "-"))


def _headers(error: Exception, known: MusterError, view: Any, request: Request | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    if known.status == 401 and view is not None and request is not None:
        headers["WWW-Authenticate"] = view.get_authenticate_header(request) or "Bearer"
    wait = getattr(error, "wait", None) or known.extra.get("retry_after_seconds")
    if isinstance(wait, (int, float)):
        headers["Retry-After"] = str(max(1, math.ceil(wait)))
    return headers


def too_big(most: int | None = None) -> MusterError:
    """A body that is larger than its route takes: `most` bytes, or what every route takes."""
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE if most is None else most
    size = (
        f"{most // 2**20} MiB"
        if most >= 2**20
        else f"{most // 2**10} KiB"
        if most >= 2**10
        else f"{most} bytes"
    )
    return MusterError(
        message=f"The body is larger than {size}, the maximum here.",
        code="body-too-large",
        status=413,
        way_out="Send less at once: put data into files, and jobs into several requests.",
    )


def _sentence(detail: Any) -> str:
    return " ".join(str(part) for part in detail) if isinstance(detail, list) else str(detail)


def _jsonable(extra: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(dict(extra), default=str))
    return plain


def request_id(request: HttpRequest | Request | None) -> str:
    """The id of the request in its log lines and audit rows; empty outside a request."""
    plain = getattr(request, "_request", request)
    return str(getattr(plain, "request_id", ""))


def json_problem(
    request: HttpRequest, *, status: int, code: str, detail: str, way_out: str = ""
) -> JsonResponse:
    """A problem outside any API view: no such route, or a failure before or after one."""
    body = problem(request, status=status, code=code, detail=detail, way_out=way_out)
    return JsonResponse(body, status=status, content_type=PROBLEM_TYPE)


def known_problem(request: HttpRequest, known: MusterError) -> JsonResponse:
    """The same for an error of ours, with when to come again."""
    answer = json_problem(
        request, status=known.status, code=known.code, detail=known.message, way_out=known.way_out
    )
    if seconds := known.extra.get("retry_after_seconds"):
        answer["Retry-After"] = str(seconds)
    return answer


def api_not_found(request: HttpRequest, path: str = "") -> HttpResponse:
    """Every address under /api/ that is none."""
    return json_problem(
        request,
        status=404,
        code="not-found",
        detail=f"This API has no address {request.path[:200]}.",
        way_out="See /api/v1/docs for all addresses.",
    )


# There is nothing to protect, and the poster should get the 404.
api_not_found.csrf_exempt = True  # type: ignore[attr-defined]


class ProblemMiddleware:
    """Gives /api/ answers that Django itself made (404, 405, 413, 500) the shape of all others."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if not request.path.startswith(API_PREFIX) or response.status_code < 400:
            return response
        if response.headers.get("Content-Type", "").partition(";")[0].endswith("json"):
            return response
        return self._reshaped(request, response)

    def _reshaped(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        status = response.status_code
        phrase = HTTPStatus(status).phrase
        answer = json_problem(
            request, status=status, code=CODE_OF_STATUS.get(status, "error"), detail=f"{phrase}.",
            way_out="See /api/v1/docs for all addresses." if status < 500 else "Try again in a moment.",
        )  # fmt: skip
        for name in ("Allow", "Retry-After", "WWW-Authenticate"):
            if name in response.headers:
                answer[name] = response.headers[name]
        return answer

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not request.path.startswith(API_PREFIX):
            return None
        known = known_error(error)
        if known is None:
            log.error("unexpected_error", exc_info=error, extra={"request_id": request_id(request)})
            return json_problem(
                request, status=500, code="internal-error", detail="Internal error.",
                way_out="Try again. If the error persists, give an operator the request_id.",
            )  # fmt: skip
        return known_problem(request, known)
