"""Traces for OpenTelemetry: nothing is loaded and nothing is kept unless OTEL_EXPORTER_OTLP_ENDPOINT is set.

The packages are an extra (requirements-tracing.txt). They read the other standard variables themselves, such as
OTEL_TRACES_SAMPLER. What is made of spans here: one for each request that a web process answers, and finished ones that
`export` sends, of what has left its times in rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.conf import settings

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, SpanContext, Tracer

HEADERS: Final = ("traceparent", "tracestate")

#: The W3C `traceparent` of the request under way, where its trace is recorded.
_current: ContextVar[str] = ContextVar("muster_traceparent", default="")


def is_on() -> bool:
    return bool(settings.OTEL_EXPORTER_OTLP_ENDPOINT)


def current() -> str:
    """The `traceparent` of the request under way; "" where its trace is not recorded."""
    return _current.get()


# ---------------------------------------------------------------- requests


class ServedRequest:
    """The span of a request; one that is never ended is never sent."""

    def __init__(self, method: str, headers: Mapping[str, str]) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        caller = TraceContextTextMapPropagator().extract(headers)
        self._method = method
        self._span: Span = _tracer().start_span(
            method, context=caller, kind=SpanKind.SERVER, attributes={"http.request.method": method}
        )
        context = self._span.get_span_context()
        self.traceparent = _written(context) if context.trace_flags.sampled else ""

    def __enter__(self) -> ServedRequest:
        self._before = _current.get()
        _current.set(self.traceparent)
        return self

    def __exit__(self, *_: object) -> None:
        _current.set(self._before)

    def end(self, route: str, status: int) -> None:
        """The request was answered; `route` is a pattern, never a path."""
        from opentelemetry.trace import StatusCode

        if route:
            self._span.update_name(f"{self._method} /{route.lstrip('/')}")
            self._span.set_attribute("http.route", f"/{route.lstrip('/')}")
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


@cache
def _provider() -> TracerProvider:
    """Made with the first request of a process, so that what was forked has a sender of its own."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=_resource("muster-web"))
    provider.add_span_processor(BatchSpanProcessor(_exporter()))
    return provider


@cache
def _tracer() -> Tracer:
    return _provider().get_tracer("muster")


def flush() -> None:
    """Send what this process has of requests now."""
    _provider().force_flush()


def reset() -> None:
    """Forget the senders, which keep the address of the collector; tests start others."""
    if _provider.cache_info().currsize:
        _provider().shutdown()
    for made in (_provider, _tracer, _row_exporter):
        made.cache_clear()


# ---------------------------------------------------------------- what rows say


class Parent(NamedTuple):
    """A span, by the ids that a `traceparent` has."""

    trace_id: int
    span_id: int


def parse(traceparent: str) -> Parent:
    """The span that a stored `traceparent` names."""
    _, trace_id, span_id, _ = traceparent.split("-")
    return Parent(int(trace_id, 16), int(span_id, 16))


def span_id_of(trace_id: int, *names: object) -> int:
    """The id of a span that a row makes: the same each time, so that sending it again changes nothing."""
    digest = sha256("/".join(map(str, (trace_id, *names))).encode()).digest()
    return int.from_bytes(digest[:8], "big") or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSpan:
    """A span of what is over. `service` is what `service.name` gets; `host` is the name of a node."""

    service: str
    name: str
    span_id: int
    parent: Parent
    began_at: datetime
    ended_at: datetime
    host: str = ""
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    #: Why it did not succeed; "" where it did.
    failure: str = ""


def export(spans: Sequence[FinishedSpan]) -> bool:
    """Send them; False where the collector did not take them. Never call it inside a transaction."""
    from opentelemetry.sdk.trace.export import SpanExportResult

    if not spans:
        return True
    return _row_exporter().export([_readable(span) for span in spans]) is SpanExportResult.SUCCESS


@cache
def _row_exporter() -> SpanExporter:
    return _exporter()


def _exporter() -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


@cache
def _resource(service: str, host: str = "") -> Resource:
    from opentelemetry.sdk.resources import Resource

    return Resource.create({"service.name": service, **({"host.name": host} if host else {})})


def _readable(span: FinishedSpan) -> ReadableSpan:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Status, StatusCode

    return ReadableSpan(
        name=span.name,
        context=_context(Parent(span.parent.trace_id, span.span_id)),
        parent=_context(span.parent),
        resource=_resource(span.service, span.host),
        attributes=dict(span.attributes),
        status=Status(StatusCode.ERROR, span.failure) if span.failure else Status(StatusCode.UNSET),
        start_time=_nanoseconds(span.began_at),
        end_time=_nanoseconds(max(span.began_at, span.ended_at)),
        instrumentation_scope=InstrumentationScope("muster"),
    )


def _context(span: Parent) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(span.trace_id, span.span_id, is_remote=False, trace_flags=sampled)


def _written(context: Any) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


def _nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1_000
