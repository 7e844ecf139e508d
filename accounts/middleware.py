"""Sets the request context around each request, and answers for refusals that no door caught."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from django.db import DataError
from django.http import HttpRequest, HttpResponse

from accounts import context
from accounts.database_errors import in_words
from accounts.errors import MusterError
from accounts.services import audit
from accounts.web.pages import no_such_value, refusal, unavailable

log = structlog.get_logger(__name__)


class ContextMiddleware:
    """Stands after the middleware that names the request and the one that signs the person in."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        address = context.client_address(request)
        structlog.contextvars.bind_contextvars(ip=address)  # for every line that the request leaves
        with context.acting(
            request_id=getattr(request, "request_id", ""),
            address=address,
            proxied=context.is_proxied(request),
        ):
            return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """A view that is not ours, as those of the admin, let a refusal through: it becomes an audit row and a page.

        So does a value that the database cannot hold, nor look for, and a database that does not answer. The API
        answers for itself, in JSON.
        """
        if isinstance(exception, DataError):
            log.warning("data_error", exc_info=exception)
            exception = no_such_value(request)
        elif (known := in_words(exception)) is not None:
            log.warning("database_unavailable", code=known.code, error=str(exception).strip())
            return None if request.path.startswith("/api/") else unavailable(request, known)
        elif isinstance(exception, MusterError):
            audit.record_refusal(exception, by=getattr(request, "user", None))
        else:
            return None
        return None if request.path.startswith("/api/") else refusal(request, exception)
