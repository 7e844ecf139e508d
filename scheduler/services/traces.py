"""Spans of jobs for OpenTelemetry, made of rows that exist anyway: cycles, attempts and the tasks of agents.

A job carries its trace in the details of its first event: the W3C `traceparent` of the request that submitted it, where
that is recorded. A task follows the events by a cursor, as metrics do (docs/decisions/0088), and sends spans after the
fact: planning and settling do nothing for it, and agents need no package and no address of a collector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import structlog
from django.db import connection
from django.utils import timezone

from infra import tracing
from infra.db.commit_order import largest_of, settled_up_to
from infra.tracing import FinishedSpan, Parent, span_id_of
from scheduler.models import MetricCursor

log = structlog.get_logger(__name__)

SOURCE: Final = "traces"
TABLE: Final = "scheduler_jobevent"
PLANNER: Final = "muster-planner"
AGENT: Final = "muster-agent"
#: Events of one export, and exports of one run: after a pause the next run goes on.
BATCH: Final = 2_000
MOST_BATCHES: Final = 20
#: Where the collector was away for longer, what is older is not sent any more.
PATIENCE: Final = timedelta(minutes=10)
#: Of a gang, the ranks below have spans of their own.
MOST_TASKS: Final = 64

_EVENTS: Final = """
SELECT event.kind = 'job.scheduled', submitted.traceparent, job.number, queue.slug, project.slug, attempt.id,
    attempt.epoch, greatest(coalesce(before.ended_at, submitted.at), CASE WHEN job.eligible_at <= attempt.scheduled_at
    THEN job.eligible_at END), attempt.scheduled_at, attempt.ended_at, attempt.state, attempt.exit_code,
    attempt.failure_class, cycle.started_at, cycle.load_us, cycle.plan_us, cycle.apply_us
FROM scheduler_jobevent event
    JOIN LATERAL (
        SELECT first.at, first.details->>'traceparent' AS traceparent FROM scheduler_jobevent first
        WHERE first.job_id = event.job_id AND first.kind = 'job.submitted' ORDER BY first.id LIMIT 1
    ) submitted ON submitted.traceparent IS NOT NULL
    JOIN scheduler_job job ON job.number = event.job_id
    JOIN scheduler_queue queue ON queue.id = job.queue_id
    JOIN accounts_project project ON project.id = job.project_id
    JOIN scheduler_attempt attempt ON attempt.job_id = event.job_id AND attempt.epoch = event.epoch
    LEFT JOIN scheduler_attempt before ON before.job_id = job.number AND before.epoch = attempt.epoch - 1
    LEFT JOIN scheduler_cycle cycle ON cycle.id = attempt.cycle_id
WHERE event.id > %s AND event.id <= %s AND (event.kind = 'job.scheduled'
    OR event.at = attempt.ended_at AND event.kind <> 'job.queued')
ORDER BY event.id
"""
_TASKS: Final = """
SELECT task.attempt_id, task.id, task.rank, node.name, task.state, task.exit_code, task.started_at, task.ended_at
FROM scheduler_task task JOIN scheduler_node node ON node.id = task.node_id
WHERE task.attempt_id = ANY(%s) AND task.rank < %s ORDER BY task.attempt_id, task.rank
"""


class _Row(NamedTuple):
    """An attempt of a traced job that was scheduled, or that ended."""

    scheduled: bool
    traceparent: str
    number: int
    queue: str
    project: str
    attempt: int
    epoch: int
    came_at: datetime
    scheduled_at: datetime
    ended_at: datetime | None
    state: str
    exit_code: int | None
    failure: str
    cycle_at: datetime | None
    load_us: int
    plan_us: int
    apply_us: int

    @property
    def parent(self) -> Parent:
        """The span of the request that submitted the job."""
        return tracing.parse(self.traceparent)

    @property
    def cycle(self) -> Parent:
        """The span of the cycle that started the attempt."""
        return self._own("cycle")

    def _own(self, *names: object) -> Parent:
        trace_id = self.parent.trace_id
        return Parent(trace_id, span_id_of(trace_id, self.attempt, *names))

    @property
    def said(self) -> dict[str, str | int]:
        job = {"muster.job": self.number, "muster.attempt": self.epoch}
        return {**job, "muster.queue": self.queue, "muster.project": self.project}

    def span(
        self, service: str, name: str, parent: Parent, *, of: tuple[object, ...] = (), **more: Any
    ) -> FinishedSpan:
        """A span of this attempt; `of` tells apart those of one name."""
        attributes = self.said | more.pop("attributes", {})
        span_id = self._own(name, *of).span_id
        return FinishedSpan(
            service=service, name=name, parent=parent, span_id=span_id, attributes=attributes, **more
        )


class _Task(NamedTuple):
    """One process of an attempt, as its agent reported it."""

    attempt: int
    task: int
    rank: int
    node: str
    state: str
    exit_code: int | None
    started_at: datetime | None
    ended_at: datetime | None


def send() -> None:
    """Send the spans of what has settled since the last time; the first run ever begins with what comes after it."""
    if not tracing.is_on():
        return
    position = _position()
    until = settled_up_to(TABLE, after=position)
    if until is None:
        log.info("traces_wait_for_a_transaction")
        return
    for _ in range(MOST_BATCHES):
        if position >= until:
            break
        last = _last_of_batch(position, until)
        if not tracing.export(list(spans_between(position, last))):
            log.warning("traces_not_sent", after=position, until=last)
            return
        # Another worker may have sent the same: their ids are the same too.
        MetricCursor.objects.filter(source=SOURCE, position=position).update(
            position=last, moved_at=timezone.now()
        )
        position = last


def _position() -> int:
    """Where to go on; at the newest event where tracing is new, or nothing could be sent for long."""
    now = timezone.now()
    cursor = MetricCursor.objects.filter(source=SOURCE).first()
    if cursor is not None and cursor.moved_at > now - PATIENCE:
        return cursor.position
    after = cursor.position if cursor else 0
    newest = largest_of(TABLE, "id", after=after)
    if newest > after or cursor is None:
        log.info("traces_begin", after=after, at=newest)
        MetricCursor.objects.update_or_create(source=SOURCE, defaults={"position": newest, "moved_at": now})
    return newest


def _last_of_batch(position: int, until: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT max(id) FROM (SELECT id FROM {TABLE} WHERE id > %s AND id <= %s ORDER BY id LIMIT %s) batch",  # noqa: S608
            [position, until, BATCH],
        )
        return int(cursor.fetchone()[0] or until)


def spans_between(after: int, until: int) -> Iterator[FinishedSpan]:
    """The spans of traced jobs whose attempts were scheduled or ended in these events."""
    with connection.cursor() as cursor:
        cursor.execute(_EVENTS, [after, until])
        rows = [_Row(*row) for row in cursor.fetchall()]
        ended = [row.attempt for row in rows if not row.scheduled]
        cursor.execute(_TASKS, [ended, MOST_TASKS])
        tasks = [_Task(*row) for row in cursor.fetchall()] if ended else []
    for row in rows:
        if row.scheduled:
            yield from _of_planner(row)
        else:
            yield from _of_agents(row, [task for task in tasks if task.attempt == row.attempt])


def _of_planner(row: _Row) -> Iterator[FinishedSpan]:
    """How long the job waited, and the cycle that gave it nodes, by step."""
    yield row.span(PLANNER, "wait", row.parent, began_at=row.came_at, ended_at=row.scheduled_at)
    began = row.cycle_at or row.scheduled_at
    steps = (("load", row.load_us), ("plan", row.plan_us), ("apply", row.apply_us)) if row.cycle_at else ()
    ended = began + timedelta(microseconds=sum(us for _, us in steps))
    yield row.span(PLANNER, "cycle", row.parent, began_at=began, ended_at=ended)
    for name, us in steps:
        ended = began + timedelta(microseconds=us)
        yield row.span(PLANNER, name, row.cycle, began_at=began, ended_at=ended)
        began = ended


def _of_agents(row: _Row, tasks: Sequence[_Task]) -> Iterator[FinishedSpan]:
    """Of each task: its launch, its run, and from its end to the end of the attempt, which its report brings."""
    over = row.ended_at or row.scheduled_at
    for task in tasks:
        about: dict[str, Any] = {"host": task.node, "of": (task.rank,)}
        said: dict[str, str | int] = {"muster.node": task.node, "muster.rank": task.rank}
        ended = task.ended_at or over
        failure = "" if task.state == "succeeded" else row.failure or task.state
        yield row.span(
            AGENT, "launch", row.cycle, **about, attributes=said, began_at=row.scheduled_at,
            ended_at=task.started_at or ended, failure="" if task.started_at else failure,
        )  # fmt: skip
        if task.started_at:
            code = {"muster.exit_code": task.exit_code} if task.exit_code is not None else {}
            yield row.span(
                AGENT, "run", row.cycle, **about, attributes=said | code, began_at=task.started_at,
                ended_at=ended, failure=failure,
            )  # fmt: skip
        yield row.span(AGENT, "end", row.cycle, **about, attributes=said, began_at=ended, ended_at=over)
