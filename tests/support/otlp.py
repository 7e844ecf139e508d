"""A small collector of OpenTelemetry on this machine: takes OTLP over HTTP, in protobuf, and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """One span as it arrived."""

    service: str
    host: str
    name: str
    trace: str
    id: str
    parent: str
    began: int
    ended: int
    failed: bool
    attributes: dict[str, Any]


@dataclass
class Collector:
    """`status` is what it answers."""

    port: int = 0
    status: int = 200
    spans: list[Span] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def of_trace(self, trace: str) -> list[Span]:
        """Each once, by begin: the same span may be sent again."""
        found = {span.id: span for span in list(self.spans) if span.trace == trace}
        return sorted(found.values(), key=lambda span: (span.began, span.name))


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/traces" and collector.status == 200:
                collector.spans += spans_of(body)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def spans_of(body: bytes) -> list[Span]:
    """The spans of one request."""
    found = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        about = _plain(resource.resource.attributes)
        found += [
            Span(
                service=about["service.name"], host=about.get("host.name", ""), name=span.name,
                trace=span.trace_id.hex(), id=span.span_id.hex(), parent=span.parent_span_id.hex(),
                began=span.start_time_unix_nano, ended=span.end_time_unix_nano, failed=span.status.code == 2,
                attributes=_plain(span.attributes),
            )
            for scope in resource.scope_spans
            for span in scope.spans
        ]  # fmt: skip
    return found


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
