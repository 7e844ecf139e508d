"""Sets the request context around each request, and records denials that no door caught."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from django.http import HttpRequest, HttpResponse

from accounts import context
from accounts.errors import MusterError
from accounts.services import audit


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

    def process_exception(self, request: HttpRequest, exception: Exception) -> None:
        """A page's view let a refusal through: it becomes an audit row here, and a page elsewhere."""
        if isinstance(exception, MusterError):
            audit.record_refusal(exception, by=getattr(request, "user", None))
