"""Prometheus metrics from rows: jobs, nodes, limits, and whether the invariants hold."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from threading import Lock
from typing import Any, Final, NamedTuple

import structlog
from django.db import DatabaseError, connection
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from scheduler.core.lifecycle import ACTIVE, PENDING, PUBLIC, TERMINAL, FailureClass, JobState
from scheduler.services.accounting.holds import WITHOUT_HOLD
from scheduler.services.accounting.metric_counts import (
    BACKFILLED,
    CYCLES_FAILED,
    DRIFT,
    ENDED,
    FAILED,
    LATENCY,
    PREEMPTED,
    SUM,
    WAIT,
    WAIT_SECONDS,
)
from scheduler.services.planning.residents import memories
from scheduler.state.apply.refusals import REFUSED_BY_CONSTRAINT
from scheduler.state.db.fragments import UNFINISHED, live_attempts

log = structlog.get_logger(__name__)

#: Several scrapers, and several workers of one server, cost the database one reading.
FRESH_SECONDS: Final = 5.0


class Collector:
    """Reads the figures, and answers the same for `FRESH_SECONDS`; `read` gives them."""

    def __init__(self, read: Callable[[], Iterable[Metric]] | None = None) -> None:
        self._read = read or read_metrics
        self._lock = Lock()
        self._read_at = 0.0
        self._metrics: list[Metric] = []

    def collect(self) -> Iterable[Metric]:
        """Every metric, at most `FRESH_SECONDS` old; without the database only that it cannot be read."""
        with self._lock:
            if not self._metrics or time.monotonic() - self._read_at > FRESH_SECONDS:
                try:
                    self._metrics = [*self._read(), _readable(1)]
                except DatabaseError as error:
                    log.warning("metrics_unreadable", error=str(error))
                    return [_readable(0)]
                self._read_at = time.monotonic()
            return self._metrics


def read_metrics() -> Iterator[Metric]:
    """Every metric, as the rows give it now."""
    yield _jobs()
    for gauge in GAUGES:
        yield gauge.read()
    yield from _counters()
    yield _violations()
    yield from _memories()


#: Names, what they are, and which field of a planner's memory.
_MEMORY: Final = (
    ("pending_jobs", "Pending jobs that a planner has in memory.", "pending_jobs"),
    ("bytes", "Bytes that these take.", "memory_bytes"),
    ("full_loads", "Times that a planner has read all pending jobs since it began.", "full_loads"),
    (
        "differences",
        "Checks in which memory and database differed: 0, or a mistake of Muster.",
        "differences",
    ),
)


def _memories() -> Iterator[Metric]:
    """What planners keep in memory, as they last said; a difference from the rows is an alarm."""
    said = list(memories())
    for name, documentation, counted in _MEMORY:
        family = GaugeMetricFamily(f"muster_planner_memory_{name}", documentation, labels=["cluster"])
        for one in said:
            family.add_metric([str(one.cluster_id)], float(getattr(one, counted)))
        yield family


def _readable(value: int) -> Metric:
    return GaugeMetricFamily("muster_rows_readable", "Whether these figures could be read.", value=value)


class Gauge(NamedTuple):
    """A gauge from rows of labels and, last, the value."""

    name: str
    documentation: str
    labels: Sequence[str]
    sql: str
    parameters: Sequence[Any] = ()

    def read(self) -> Metric:
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labels)
        for *values, value in _rows(self.sql, self.parameters):
            family.add_metric([str(v) for v in values], float(value))
        return family


def _values(states: Iterable[str]) -> list[str]:
    return sorted(str(state) for state in states)


#: Gauges that one statement gives: rows of its labels and, last, the value.
GAUGES: Final = (
    Gauge(
        "muster_jobs_pending", "Jobs that wait, by why.", ["category", "reason", "queue"],
        f"""
        SELECT coalesce(nullif(job.reason_category, ''), 'system'),
            coalesce(nullif(job.reason_code, ''), 'NotEvaluatedYet'), queue.slug, count(*)
        FROM scheduler_job job JOIN scheduler_queue queue ON queue.id = job.queue_id
        WHERE {UNFINISHED} AND job.state = ANY(%s) GROUP BY 1, 2, 3
        """,  # noqa: S608  a constant of ours
        [_values(PENDING)],
    ),
    Gauge(
        "muster_gpus", "GPUs by what they do; a slice counts as its part of one.", ["state", "model"],
        """
        SELECT CASE WHEN NOT device.healthy THEN 'sick'
                WHEN device.used_millis >= device.share_millis THEN 'used'
                WHEN device.used_millis > 0 THEN 'shared'
                WHEN node.state <> 'up' OR node.cordoned OR node.draining THEN 'unavailable'
                ELSE 'free' END,
            device.model, sum(device.share_millis) / 1000.0
        FROM scheduler_device device JOIN scheduler_node node ON node.id = device.node_id
        WHERE device.kind = 'gpu' AND NOT device.gone GROUP BY 1, 2
        """,
    ),
    Gauge(
        "muster_node_gpus", "GPUs of a node: healthy ones, those given to jobs, those that computed when last read.",
        ["node", "what"],
        """
        SELECT node.name, figure.name, coalesce(sum(figure.millis), 0) / 1000.0
        FROM scheduler_device device JOIN scheduler_node node ON node.id = device.node_id
            CROSS JOIN LATERAL (VALUES
                ('total', CASE WHEN device.healthy THEN device.share_millis ELSE 0 END),
                ('allocated', device.used_millis),
                ('active', CASE WHEN device.utilisation_percent > 0 THEN device.share_millis ELSE 0 END)
            ) figure(name, millis)
        WHERE device.kind = 'gpu' AND NOT device.gone GROUP BY 1, 2
        """,
    ),
    Gauge(
        "muster_node_cpu_cores", "Cores of a node: what jobs can be given, and what they were given.",
        ["node", "what"],
        """
        SELECT node.name, figure.name, figure.millis / 1000.0 FROM scheduler_node node
            CROSS JOIN LATERAL (VALUES ('total', node.cpu_millis_capacity), ('allocated', node.used_cpu_millis))
                figure(name, millis)
        """,
    ),
    Gauge(
        "muster_node_memory_bytes", "Memory of a node: what jobs can be given, and what they were given.",
        ["node", "what"],
        """
        SELECT node.name, figure.name, figure.mib * 1048576.0 FROM scheduler_node node
            CROSS JOIN LATERAL (VALUES ('total', node.memory_mib_capacity), ('allocated', node.used_memory_mib))
                figure(name, mib)
        """,
    ),
    Gauge(
        "muster_gpu_fragmentation_ratio",
        "Part of the idle GPUs that are on nodes whose other GPUs are in use: no job of whole nodes can have them.",
        ["cluster"],
        """
        SELECT cluster.slug, coalesce(sum(idle) FILTER (WHERE used > 0) / nullif(sum(idle), 0), 0)
        FROM scheduler_cluster cluster LEFT JOIN (
            SELECT node.cluster_id, sum(device.used_millis) AS used,
                sum(CASE WHEN device.used_millis = 0 THEN device.share_millis ELSE 0 END)::float8 AS idle
            FROM scheduler_device device JOIN scheduler_node node ON node.id = device.node_id
            WHERE device.kind = 'gpu' AND device.healthy AND NOT device.gone
                AND node.state = 'up' AND NOT node.cordoned AND NOT node.draining
            GROUP BY node.id
        ) each ON each.cluster_id = cluster.id GROUP BY 1
        """,
    ),
    Gauge(
        "muster_policy_faults", "Plugins out of use, and profiles that cannot be followed; more than 0 is an alarm.",
        ["cluster", "subject"],
        """
        SELECT cluster.slug, fault.subject, 1
        FROM scheduler_policyfault fault JOIN scheduler_cluster cluster ON cluster.id = fault.cluster_id
        """,
    ),
    Gauge(
        "muster_nodes", "Nodes by whether they take work; of declared ones no agent has registered.", ["state"],
        """
        SELECT CASE WHEN registered_at IS NULL AND state = 'down' THEN 'declared'
            WHEN state <> 'up' THEN state WHEN draining THEN 'draining'
            WHEN cordoned THEN 'cordoned' ELSE 'up' END, count(*)
        FROM scheduler_node GROUP BY 1
        """,
    ),
    Gauge(
        "muster_agent_heartbeat_age_seconds", "Time since the last message of a node's agent.", ["node"],
        """
        SELECT node.name, extract(epoch FROM clock_timestamp() - heartbeat.last_seen_at)::float
        FROM scheduler_nodeheartbeat heartbeat JOIN scheduler_node node ON node.id = heartbeat.node_id
        """,
    ),
    Gauge(
        "muster_agent_clock_skew_seconds", "How far a node's clock was ahead of the server's at the last message.",
        ["node"],
        """
        SELECT node.name, heartbeat.clock_skew_ms / 1000.0
        FROM scheduler_nodeheartbeat heartbeat JOIN scheduler_node node ON node.id = heartbeat.node_id
        """,
    ),
    Gauge(
        "muster_schedule_cycle_seconds", "The last recorded cycle, by step.", ["cluster", "step"],
        """
        SELECT cluster.slug, step.name, step.us / 1e6
        FROM scheduler_cluster cluster
            JOIN LATERAL (
                SELECT * FROM scheduler_cycle WHERE cluster_id = cluster.id ORDER BY id DESC LIMIT 1
            ) cycle ON true
            JOIN LATERAL (VALUES ('load', cycle.load_us), ('plan', cycle.plan_us), ('apply', cycle.apply_us))
                step(name, us) ON true
        """,
    ),
    Gauge(
        "muster_quota_limit", "Bounds of a project.", ["project", "resource", "bound"],
        """
        SELECT project.slug, quota.resource, bound.name, bound.amount
        FROM quotas_quota quota JOIN accounts_project project ON project.id = quota.project_id
            AND quota.user_id IS NULL AND quota.gpu_model = '' AND quota.job_type = ''
            JOIN LATERAL (VALUES ('hard', quota.hard), ('soft', quota.soft), ('nominal', quota.nominal))
                bound(name, amount) ON bound.amount IS NOT NULL
        """,
    ),
    Gauge(
        "muster_quota_used", "What a project holds.", ["project", "resource"],
        """
        SELECT project.slug, quota.resource, quota.used
        FROM quotas_quota quota JOIN accounts_project project ON project.id = quota.project_id
            AND quota.user_id IS NULL AND quota.gpu_model = '' AND quota.job_type = ''
        """,
    ),
    Gauge(
        "muster_budget", "Budgets of the present period, in the unit of their resource.",
        ["budget", "resource", "what"],
        """
        SELECT budget.id::text || ' ' || budget.name, budget.resource, figure.name, figure.amount
        FROM quotas_budgetperiod period JOIN quotas_budget budget ON budget.id = period.budget_id
            JOIN LATERAL (VALUES ('amount', period.amount), ('held', period.held), ('charged', period.charged))
                figure(name, amount) ON true
        WHERE now() >= period.starts_at AND now() < period.ends_at
        """,
    ),
)  # fmt: skip


def _counters() -> Iterator[Metric]:
    """Counters and histograms that `services.accounting.metric_counts` keeps: they only grow, whatever is removed."""
    counts: dict[str, dict[tuple[str, str], int]] = defaultdict(dict)
    for name, label, detail, value in _rows("SELECT name, label, detail, value FROM scheduler_metriccount"):
        counts[name][label, detail] = value
    queues = [slug for (slug,) in _rows("SELECT slug FROM scheduler_queue ORDER BY slug")]
    for name, documentation in HISTOGRAMS.items():
        yield _histogram(name, documentation, counts[name], queues)
    for name, (documentation, labels, details) in COUNTERS.items():
        family = CounterMetricFamily(f"muster_{name}", documentation, labels=labels)
        zeros = {(queue, detail): 0 for queue in queues for detail in details} if details else {}
        for (label, detail), value in sorted((zeros | counts[name]).items()):
            family.add_metric([label, detail][: len(labels)], value)
        yield family
    clusters = {str(key): slug for key, slug in _rows("SELECT id, slug FROM scheduler_cluster ORDER BY id")}
    failed = CounterMetricFamily(
        "muster_schedule_cycles_failed", "Planning cycles that ended with an error.", labels=["cluster"]
    )
    for key, slug in clusters.items():
        failed.add_metric([slug], counts[CYCLES_FAILED].get((key, ""), 0))
    yield failed


def _histogram(
    name: str, documentation: str, counts: dict[tuple[str, str], int], queues: Sequence[str]
) -> Metric:
    """Buckets by queue; a queue in which nothing has started has its series too, with zeros."""
    family = HistogramMetricFamily(f"muster_{name}_seconds", documentation, labels=["queue"])
    bounds = [str(float(bound)) for bound in WAIT_SECONDS] + ["+Inf"]
    for queue in sorted({*queues, *(label for label, _ in counts)}):
        each = [counts.get((queue, str(number)), 0) for number in range(len(bounds))]
        family.add_metric(
            [queue],
            buckets=list(zip(bounds, map(float, accumulate(each)), strict=True)),
            sum_value=counts.get((queue, SUM), 0) / 1000,
        )
    return family


#: By the name of the counts: what the metric of that name says.
HISTOGRAMS: Final = {
    WAIT: "From when a job could start, or its last attempt ended, to its start.",
    LATENCY: "From when a job could start, or its last attempt ended, to when the planner gave it nodes.",
}
#: The same with the labels, and the values of the second label that every queue has from the beginning.
COUNTERS: Final[dict[str, tuple[str, list[str], tuple[str, ...]]]] = {
    ENDED: ("Jobs that ended.", ["queue", "outcome"], tuple(sorted(str(state) for state in TERMINAL))),
    FAILED: (
        "Attempts that did not succeed.",
        ["queue", "failure_class"],
        tuple(one.value for one in FailureClass),
    ),
    PREEMPTED: (
        "Attempts that were asked to end so that their job waits again.",
        ["queue", "reason"],
        ("asked", "drain", "priority", "taint"),
    ),
    BACKFILLED: ("Attempts that backfill started ahead of a job with an expected start.", ["queue"], ("",)),
    DRIFT: ("Counters that were found wrong, by what they count.", ["kind"], ()),
}


def _jobs() -> Metric:
    """Jobs that are not over, in the seven states that people see."""
    family = GaugeMetricFamily("muster_jobs", "Jobs that are not over.", labels=["state", "queue"])
    counts: dict[tuple[str, str], int] = {}
    rows = _rows(
        f"""
        SELECT job.state, queue.slug, count(*)
        FROM scheduler_job job JOIN scheduler_queue queue ON queue.id = job.queue_id
        WHERE {UNFINISHED} GROUP BY 1, 2
        """  # noqa: S608  a constant of ours
    )
    for state, queue, count in rows:
        key = (PUBLIC[JobState(state)].value, queue)
        counts[key] = counts.get(key, 0) + count
    for (queue,) in _rows("SELECT slug FROM scheduler_queue"):
        for state in SHOWN_STATES:  # a queue without jobs has its series
            counts.setdefault((state, queue), 0)
    for labels, count in sorted(counts.items()):
        family.add_metric(labels, count)
    return family


#: States of jobs that are not over.
SHOWN_STATES: Final = sorted({PUBLIC[state].value for state in JobState if state not in TERMINAL})


def _violations() -> Metric:
    """How many rows break an invariant now; anything but 0 is a fault of Muster."""
    family = GaugeMetricFamily(
        "muster_invariant_violations", "Rows that break an invariant now.", labels=["name"]
    )
    for name in INVARIANTS:
        family.add_metric([name], count_violations(name))
    return family


def count_violations(name: str) -> int:
    """How many rows break this invariant now."""
    count: int = _rows(*INVARIANTS[name])[0][0]
    return count


#: Each counts the rows that break one invariant; all are cheap while they hold.
INVARIANTS: Final[dict[str, tuple[str, list[Any]]]] = {
    # I1: a GPU is held by at most one job, or by shares that make one together.
    "I1": (
        """
        SELECT count(*) FROM (
            SELECT device_id FROM scheduler_allocation, unnest(device_ids) AS device_id
            WHERE released_at IS NULL
            GROUP BY device_id HAVING sum(gpu_millis / cardinality(device_ids)) > 1000
        ) twice
        """,
        [],
    ),
    # I2: a node's counters are the sums of what is held on it (constraints keep them within capacity).
    "I2": (
        """
        SELECT count(*) FROM scheduler_node node LEFT JOIN (
            SELECT node_id, sum(cpu_millis) AS cpu, sum(memory_mib) AS memory, sum(storage_mib) AS storage,
                sum(gpu_millis) AS gpu
            FROM scheduler_allocation WHERE released_at IS NULL GROUP BY node_id
        ) held ON held.node_id = node.id
        WHERE (node.used_cpu_millis, node.used_memory_mib, node.used_storage_mib, node.used_gpu_millis)
            <> (coalesce(held.cpu, 0), coalesce(held.memory, 0), coalesce(held.storage, 0),
                coalesce(held.gpu, 0))
        """,
        [],
    ),
    # I5: a job that holds resources has exactly one live attempt, of its latest epoch, and no other has any.
    "I5": (
        f"""
        SELECT (
            SELECT count(*) FROM {live_attempts()}
                JOIN scheduler_job job ON job.number = attempt.job_id
            WHERE (attempt.epoch <> job.epoch OR NOT job.state = ANY(%s))
        ) + (
            SELECT count(*) FROM scheduler_job job WHERE {UNFINISHED} AND job.state = ANY(%s) AND NOT EXISTS (
                SELECT 1 FROM scheduler_attempt WHERE job_id = job.number AND is_live
            )
        )
        """,  # noqa: S608  a constant of ours
        [_values(ACTIVE), _values(ACTIVE)],
    ),
    # I6: what is over holds nothing.
    "I6": (
        """
        SELECT count(*) FROM scheduler_allocation allocation
            JOIN scheduler_attempt attempt ON attempt.id = allocation.attempt_id
            JOIN scheduler_job job ON job.number = attempt.job_id
        WHERE allocation.released_at IS NULL AND (job.outcome IS NOT NULL OR NOT attempt.is_live)
        """,
        [],
    ),
    # I8: for what runs on a budget something is set aside.
    "I8": (
        f"""SELECT count(*) FROM ({WITHOUT_HOLD.format(before="now() - interval '1 minute'")}) each
        WHERE each.was_there""",  # noqa: S608  a constant of ours
        [],
    ),
    # Starts that only a constraint stopped, in the cycles that are kept.
    "refused_by_constraint": (
        """
        SELECT count(*) FROM scheduler_cycle cycle, jsonb_array_elements(cycle.refused) AS refusal
        WHERE cycle.refused_count > 0 AND refusal->>'code' = %s
        """,
        [REFUSED_BY_CONSTRAINT],
    ),
}


def _rows(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, list(parameters) or None)
        return list(cursor.fetchall())


#: One reading serves all scrapes of this process.
collector: Final = Collector()
collect = collector.collect
