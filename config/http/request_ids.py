"""Gives every request a name that its log lines, its errors and its audit rows share."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

HEADER = "X-Request-ID"
ACCEPTABLE = re.compile(r"[A-Za-z0-9._-]{8,64}")


def request_id_of(given: str) -> str:
    """The id of a request whose caller gave this one, or "": the same where it is harmless, a new one otherwise."""
    return given if ACCEPTABLE.fullmatch(given) else uuid.uuid4().hex


class RequestIdMiddleware:
    """Takes a caller's X-Request-ID when it is harmless, makes one otherwise, and gives it back."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request_id = request_id_of(request.headers.get(HEADER, ""))
        request.request_id = request_id  # type: ignore[attr-defined]
        # django-structlog takes it from here.
        request.META["HTTP_X_REQUEST_ID"] = request_id
        request.__dict__.pop("headers", None)
        response = self.get_response(request)
        response[HEADER] = request_id
        return response
