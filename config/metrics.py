"""What Prometheus scrapes: requests of all web processes, and the state of the portal read at each scrape."""

from __future__ import annotations

import os
import time
from collections import Counter as Counted
from collections.abc import Callable, Iterable

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

import accounts.metrics
import notifications.metrics
import quotas.metrics
from config.health import may_look_inside
from infra.circuits.shared import open_circuits
from infra.models import System
from scheduler import slurm_metrics as slurm
from scheduler.metrics import collect

REQUESTS = Counter("muster_http_requests", "Requests answered.", ["method", "route", "status"])
SECONDS = Histogram(
    "muster_http_request_seconds",
    "Time to answer a request.",
    ["route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMetricsMiddleware:
    """Counts and times requests by route, never by path: a path with an id in it would be a new series."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        started = time.perf_counter()
        response = self.get_response(request)
        match = request.resolver_match
        count_request(
            request.method or "", match.route if match else "none", response.status_code,
            seconds=time.perf_counter() - started,
        )  # fmt: skip
        return response


def count_request(method: str, route: str, status: int, *, seconds: float) -> None:
    """Count one answered request and the time that it took."""
    REQUESTS.labels(method if method in METHODS else "other", route, status).inc()
    SECONDS.labels(route).observe(seconds)


class PortalCollector(Collector):
    """Gauges over jobs, nodes and quotas, read from rows at each scrape."""

    def collect(self) -> Iterable[Metric]:
        yield from collect()
        yield from accounts.metrics.collect()
        yield from quotas.metrics.collect()
        yield from notifications.metrics.collect()
        yield from circuits()

    def describe(self) -> Iterable[Metric]:
        return []  # registering must not query


def circuits() -> Iterable[Metric]:
    """Systems outside Muster that are left alone, or about to be tried, by kind."""
    found = Counted(row.system for row in open_circuits())
    gauge = GaugeMetricFamily(
        "muster_circuits_open",
        "Systems outside Muster that failed several times and are left alone for a while; more than 0 is an alarm.",
        labels=["system"],
    )
    for system in System.values:
        gauge.add_metric([system], float(found[system]))
    yield gauge


REGISTRY.register(PortalCollector())


@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus text, for the bearer of MUSTER_METRICS_TOKEN, and for operators who are signed in."""
    return _answer(request, _registry)


@never_cache
def slurm_metrics(request: HttpRequest) -> HttpResponse:
    """The same for boards that are made for exporters of Slurm, by the names of these."""
    return _answer(request, lambda: SLURM)


def _answer(request: HttpRequest, registry: Callable[[], CollectorRegistry]) -> HttpResponse:
    if not may_look_inside(request):
        return HttpResponse(
            "Metrics are for the bearer of MUSTER_METRICS_TOKEN, and for operators who are signed in.\n"
            "`make run` keeps the token in the file metrics_token of its state folder.\n",
            content_type="text/plain",
            status=403,
        )
    return HttpResponse(generate_latest(registry()), content_type=CONTENT_TYPE_LATEST)


class SlurmCollector(Collector):
    """Gauges by the names of exporters of Slurm, read from rows at each scrape."""

    def collect(self) -> Iterable[Metric]:
        yield from slurm.collector.collect()

    def describe(self) -> Iterable[Metric]:
        return []


SLURM = CollectorRegistry()
SLURM.register(SlurmCollector())


def _registry() -> CollectorRegistry:
    """This process's counters or, where several web processes share a port, the sums of all."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    registry.register(PortalCollector())
    return registry
