"""Spans of requests, where OTEL_EXPORTER_OTLP_ENDPOINT is set: only then is this among the middleware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django.http import HttpRequest, HttpResponse

from infra import tracing

#: Probes and files: many, and of no interest.
LEFT_OUT: Final = ("/livez", "/readyz", "/metrics", "/static/")


class TracingMiddleware:
    """Gives each request a span; the trace of its caller (W3C `traceparent`) goes on in it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path.startswith(LEFT_OUT):
            return self.get_response(request)
        headers = {name: request.headers[name] for name in tracing.HEADERS if name in request.headers}
        with tracing.ServedRequest(request.method or "", headers) as span:
            response = self.get_response(request)
            match = request.resolver_match
            span.end(match.route if match else "", response.status_code)
        return response
