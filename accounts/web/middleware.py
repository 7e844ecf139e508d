"""Sets the request context around each request, and answers for refusals that no door caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import structlog
from django.db import DataError
from django.http import HttpRequest, HttpResponse

from accounts.services import audit
from accounts.web.pages import no_such_value, refusal, unavailable
from infra import client_address, request_context
from infra.db.error_messages import to_error
from infra.errors import MusterError

log = structlog.get_logger(__name__)


def close_rights(response: Any) -> None:
    """Let the rest of a streaming answer ask for no rights: its rows are chosen by now, or it breaks."""
    pieces = response.streaming_content
    response.streaming_content = (
        request_context.over_async(pieces) if response.is_async else request_context.over(pieces)
    )


#: Headers in which a proxy says how it was asked; Django believes them from any peer.
SAID_BY_PROXIES: Final = ("HTTP_X_FORWARDED_PROTO", "HTTP_X_FORWARDED_HOST", "HTTP_X_FORWARDED_PORT")


class ForwardedMiddleware:
    """Takes away what only a trusted proxy may say, before anybody reads it; addresses are for `proxies`."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if (
            any(name in request.META for name in SAID_BY_PROXIES)
            and not client_address.of_request(request).trusted
        ):
            for name in SAID_BY_PROXIES:
                request.META.pop(name, None)
            request.__dict__.pop("headers", None)
        return self.get_response(request)


class ContextMiddleware:
    """Stands after the middleware that names the request and the one that signs the person in."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        caller = client_address.of_request(request)
        structlog.contextvars.bind_contextvars(ip=caller.address)  # for every line that the request leaves
        with request_context.acting(
            request_id=getattr(request, "request_id", ""), address=caller.address, proxied=caller.proxied
        ):
            response = self.get_response(request)
        if response.streaming:  # read once this has returned: no right may be asked about by then
            close_rights(response)
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """A view that is not ours, as those of the admin, let a refusal through: it becomes an audit row and a page.

        So does a value that the database cannot hold, nor look for, and a database that does not answer. The API
        answers for itself, in JSON.
        """
        if isinstance(exception, DataError):
            log.warning("data_error", exc_info=exception)
            exception = no_such_value(request)
        elif (known := to_error(exception)) is not None:
            log.warning("database_unavailable", code=known.code, error=str(exception).strip())
            return None if request.path.startswith("/api/") else unavailable(request, known)
        elif isinstance(exception, MusterError):
            audit.record_refusal(exception, by=getattr(request, "user", None))
        else:
            return None
        return None if request.path.startswith("/api/") else refusal(request, exception)
