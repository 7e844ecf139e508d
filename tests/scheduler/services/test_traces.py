"""The trace of a job: of the request that submitted it, the planner that started it, and the agents that ran it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from infra import tracing
from scheduler.models import Job, JobEvent, MetricCursor, Task
from scheduler.services import traces
from scheduler.services.execution.reports import apply_reports
from scheduler.services.jobs.write_jobs import NewJobs, Submission, write_submissions
from scheduler.services.planning.cycles import run_cycle
from tests.scheduler.portal import Portal, a_portal, read
from tests.support.otlp import Collector, Span, collecting

pytestmark = pytest.mark.django_db(transaction=True)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def collector(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector, and tracing on."""
    with collecting() as collector:
        settings.OTEL_EXPORTER_OTLP_ENDPOINT = collector.url
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        tracing.reset()
        yield collector
        tracing.reset()


def submitted(portal: Portal, caller: str) -> tuple[Job, str]:
    """A job that a traced request submits, and the id of the span of that request."""
    with tracing.ServedRequest("POST", {"traceparent": caller}) as request:
        job = portal.submit()
        request.end("api/v1/jobs", 201)
    return job, request.traceparent.split("-")[2]


def report(task: Task, state: str, **more: Any) -> None:
    apply_reports(
        node=task.node, reports=[{"task": task.pk, "epoch": task.attempt.epoch, "state": state, **more}]
    )


def test_a_trace_of_one_job_shows_spans_of_web_planner_and_agent(collector: Collector) -> None:
    portal = a_portal()
    traces.send()  # counting begins
    job, served = submitted(portal, CALLER)
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    task = Task.objects.select_related("node", "attempt").get()
    report(task, "running", pid=1, started_ago_ms=0)
    report(task, "failed", pid=1, started_ago_ms=5, ended_ago_ms=1, exit_code=3)

    traces.send()
    tracing.flush()

    spans = collector.of_trace(TRACE)
    by_name = {span.name: span for span in spans}
    assert {(span.service, span.name) for span in spans} == {
        ("muster-web", "POST /api/v1/jobs"),
        *(("muster-planner", name) for name in ("wait", "cycle", "load", "plan", "apply")),
        *(("muster-agent", name) for name in ("launch", "run", "end")),
    }
    web, cycle, run = by_name["POST /api/v1/jobs"], by_name["cycle"], by_name["run"]
    assert (web.parent, web.id) == ("00f067aa0ba902b7", served)
    assert {by_name[name].parent for name in ("wait", "cycle")} == {web.id}
    assert {by_name[name].parent for name in ("load", "plan", "apply", "launch", "run", "end")} == {cycle.id}
    assert all(span.began <= span.ended for span in spans)
    assert by_name["launch"].ended == run.began < run.ended == by_name["end"].began
    assert (run.host, run.failed, run.attributes["muster.exit_code"]) == (task.node.name, True, 3)
    assert run.attributes["muster.job"] == job.number


def test_jobs_that_are_written_together_keep_their_own_traces(collector: Collector) -> None:
    """And what is not sampled, or has no trace, stores nothing."""
    portal = a_portal()
    other = CALLER.replace("4bf9", "1234")
    unsampled = CALLER.replace("-01", "-00")
    with tracing.ServedRequest("POST", {"traceparent": unsampled}) as request:
        found = [request.traceparent]
    found += [CALLER, other, ""]
    outcomes = write_submissions(
        [Submission(specs=[read(portal)], by=portal.cast.owner, via="api", traceparent=one) for one in found]
    )

    kept = []
    for outcome in outcomes:
        assert isinstance(outcome, NewJobs)
        kept += JobEvent.objects.filter(job=outcome.number(0)).values_list("details", flat=True)
    assert kept == [
        {"via": "api"},
        {"via": "api", "traceparent": CALLER},
        {"via": "api", "traceparent": other},
        {"via": "api"},
    ]


def test_what_the_collector_does_not_take_is_sent_again_for_ten_minutes(collector: Collector) -> None:
    portal = a_portal()
    traces.send()
    submitted(portal, CALLER)
    run_cycle(cluster_id=portal.cluster.pk, trigger="test")
    collector.status = 400

    traces.send()
    assert planner_spans(collector) == []
    collector.status = 200
    traces.send()
    assert len(planner_spans(collector)) == 5
    traces.send()
    assert len(planner_spans(collector)) == 5

    MetricCursor.objects.update(position=0, moved_at=timezone.now() - timedelta(minutes=11))
    collector.spans.clear()
    traces.send()
    assert planner_spans(collector) == []


def planner_spans(collector: Collector) -> list[Span]:
    return [span for span in collector.spans if span.service == traces.PLANNER]


def test_without_a_collector_nothing_is_kept_or_sent(settings: Any) -> None:
    assert not settings.OTEL_EXPORTER_OTLP_ENDPOINT
    assert not [name for name in settings.MIDDLEWARE if "tracing" in name]
    job = a_portal().submit()

    traces.send()

    assert JobEvent.objects.get(job=job).details == {"via": "api"}
    assert not MetricCursor.objects.filter(source=traces.SOURCE).exists()
