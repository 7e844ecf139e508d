"""Middleware of others, without its need of the database: a page about an error must not fail in turn.

Whose request it is, both ask for every request. Where the database does not say, the log has no name, and a
view that is reached all the same gets the error as before: refusals that need no database come before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django_structlog.middlewares import RequestMiddleware
from pghistory.middleware import HistoryMiddleware as TheirHistoryMiddleware


class RequestLogMiddleware(RequestMiddleware):
    """Writes one line a request."""

    @staticmethod
    def bind_user_id(request: HttpRequest) -> None:
        try:
            RequestMiddleware.bind_user_id(request)
        except (OperationalError, InterfaceError):
            return


class HistoryMiddleware(TheirHistoryMiddleware):
    """Says whose change it is beside each row that keeps its history."""

    def get_context(self, request: HttpRequest) -> dict[str, Any]:
        try:
            return dict(super().get_context(request))
        except (OperationalError, InterfaceError) as error:
            request.nobody_known = error  # type: ignore[attr-defined]
            return {"user": None, "url": request.path}

    def process_view(
        self, request: HttpRequest, view: Callable[..., HttpResponse], args: Any, kwargs: Any
    ) -> None:
        """No view may change a row in the name of nobody."""
        if error := getattr(request, "nobody_known", None):
            raise error
