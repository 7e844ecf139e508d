"""/metrics/slurm: what exporters of Slurm say, by their names, so that Grafana boards 4323 and 19835 show Muster.

A queue is a partition there, a project an account. Names are those of prometheus-slurm-exporter, of vpenso and of
rivosinc; docs/guides/monitoring.md lists what has no counterpart here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from django.db import connection
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

import quotas.metrics
from scheduler.core.lifecycle import ACTIVE, PENDING, JobState
from scheduler.metrics import Collector
from scheduler.services.accounting.metric_counts import BACKFILLED, ENDED, FAILED, PREEMPTED
from scheduler.state.db.fragments import UNFINISHED

MIB: Final = 1024 * 1024
#: Names of node states; each node counts in one.
NODE_STATES: Final = ("alloc", "comp", "down", "drain", "err", "fail", "idle", "maint", "mix", "resv")

#: Each job that is not over: whose, where, how it waits or runs, and what it holds or asks for.
_JOBS: Final = f"""
SELECT queue.slug, project.slug, person.username, job.state, job.reason_code, count(*), sum(job.tasks),
    sum(job.tasks * job.cpu_millis)::float8 / 1000, sum(job.tasks * job.memory_mib::float8) * {MIB}
FROM (
    SELECT job.*, request.tasks, request.cpu_millis, request.memory_mib
    FROM scheduler_job job JOIN scheduler_jobrequest request ON request.number = job.number WHERE {UNFINISHED}
) job
    JOIN scheduler_queue queue ON queue.id = job.queue_id JOIN accounts_project project ON project.id = job.project_id
    JOIN accounts_user person ON person.id = job.user_id
GROUP BY 1, 2, 3, 4, 5
"""  # noqa: S608  a constant of ours
_NODES: Final = f"""
SELECT node.id, node.name, CASE WHEN node.state <> 'up' THEN 'down' WHEN node.draining OR node.cordoned THEN 'drain'
        WHEN node.used_cpu_millis >= node.cpu_millis_capacity THEN 'alloc'
        WHEN node.used_cpu_millis > 0 OR node.used_gpu_millis > 0 THEN 'mix' ELSE 'idle' END,
    node.cpu_millis_capacity::float8 / 1000, node.used_cpu_millis::float8 / 1000,
    node.memory_mib_capacity::float8 * {MIB},
    node.used_memory_mib::float8 * {MIB}, ARRAY(
        SELECT queue.slug FROM scheduler_queue queue WHERE queue.cluster_id = node.cluster_id AND (
            NOT EXISTS (SELECT 1 FROM scheduler_queue_partitions part WHERE part.queue_id = queue.id)
            OR EXISTS (
                SELECT 1 FROM scheduler_queue_partitions part JOIN scheduler_node_partitions own USING (partition_id)
                WHERE part.queue_id = queue.id AND own.node_id = node.id
            )
        )
    )
FROM scheduler_node node WHERE node.registered_at IS NOT NULL OR node.state = 'up'
"""  # noqa: S608  a constant of ours
_GPUS: Final = """
SELECT coalesce(sum(share_millis), 0)::float8 / 1000, coalesce(sum(used_millis), 0)::float8 / 1000
FROM scheduler_device WHERE kind = 'gpu' AND NOT gone AND healthy
"""
_COUNTS: Final = "SELECT name, label, detail, value FROM scheduler_metriccount WHERE name = ANY(%s)"
#: The last recorded cycle of all clusters, and those of the last hour: only cycles that decide something are recorded.
_CYCLES: Final = """
SELECT coalesce((array_agg(us ORDER BY id DESC))[1], 0), coalesce(avg(us), 0)::float8, count(*)::float8 / 60 FROM (
    SELECT id, load_us + plan_us + apply_us AS us FROM scheduler_cycle WHERE started_at > now() - interval '1 hour'
    ORDER BY id DESC LIMIT 10000
) cycle
"""


class _Jobs(NamedTuple):
    """Jobs that are equal in all that is asked about."""

    queue: str
    project: str
    person: str
    state: str
    reason: str
    jobs: int
    tasks: int
    cores: float
    memory: float


class _Node(NamedTuple):
    id: int
    name: str
    state: str
    cores: float
    used_cores: float
    memory: float
    used_memory: float
    queues: list[str]

    @property
    def takes_work(self) -> bool:
        return self.state not in ("down", "drain")

    @property
    def idle_cores(self) -> float:
        return max(0.0, self.cores - self.used_cores) if self.takes_work else 0.0

    @property
    def other_cores(self) -> float:
        """Those that are neither in use nor to be had."""
        return 0.0 if self.takes_work else max(0.0, self.cores - self.used_cores)


def slurm_state(state: str) -> str:
    """The state of a job by Slurm's name."""
    if state in PENDING:
        return "PENDING"
    return {
        JobState.SCHEDULED: "CONFIGURING",
        JobState.STARTING: "CONFIGURING",
        JobState.STOPPING: "COMPLETING",
        JobState.SUSPENDED: "SUSPENDED",
        JobState.PREEMPTED: "PREEMPTED",
    }.get(JobState(state), "RUNNING")


def read() -> Iterator[Metric]:
    """Every metric, as the rows give it now."""
    jobs = [_Jobs(*row) for row in _rows(_JOBS)]
    nodes = [_Node(*row) for row in _rows(_NODES)]
    queues = [slug for (slug,) in _rows("SELECT slug FROM scheduler_queue ORDER BY slug")]
    yield from _of_nodes(nodes)
    yield from _of_partitions(nodes, jobs, queues)
    yield from _of_owners(jobs)
    yield from _of_queue(jobs)
    yield from _of_gpus()
    yield from _of_scheduler(jobs)
    yield from _of_fair_share()


def _of_nodes(nodes: Sequence[_Node]) -> Iterator[Metric]:
    states = Counter(node.state for node in nodes)
    for state in NODE_STATES:
        yield _one(f"slurm_nodes_{state}", f"Nodes that are {state}.", states[state])
    yield _many(
        "slurm_node_count_per_state", "Nodes by state.", ["state"],
        {(state,): states[state] for state in ("alloc", "mix", "idle", "drain", "down")},
    )  # fmt: skip
    used, idle = sum(node.used_cores for node in nodes), sum(node.idle_cores for node in nodes)
    other, total = sum(node.other_cores for node in nodes), sum(node.cores for node in nodes)
    for name, what, value in (
        ("alloc", "Cores that jobs hold.", used), ("idle", "Cores that jobs can be given.", idle),
        ("other", "Cores of nodes that take no work.", other), ("total", "Cores of all nodes.", total),
    ):  # fmt: skip
        yield _one(f"slurm_cpus_{name}", what, value)
    per_state: dict[tuple[str, ...], float] = {}
    for node in nodes:
        per_state[node.state,] = per_state.get((node.state,), 0.0) + node.used_cores
    yield _many("slurm_cpus_per_state", "Cores that jobs hold, by state of the node.", ["state"], per_state)
    memory, held = sum(node.memory for node in nodes), sum(node.used_memory for node in nodes)
    yield _one("slurm_mem_real", "Bytes of memory of all nodes.", memory)
    yield _one("slurm_mem_alloc", "Bytes of memory that jobs hold.", held)
    yield _one("slurm_mem_free", "Bytes of memory that no job holds.", memory - held)
    for name, (what, figure) in NODE.items():
        values = {(node.name, node.state): figure(node) for node in nodes}
        yield _many(f"slurm_node_{name}", what, ["node", "status"], values)


#: What each metric of a node says, and its figure.
NODE: Final[dict[str, tuple[str, Callable[[_Node], float]]]] = {
    "cpu_alloc": ("Cores of a node that jobs hold.", lambda node: node.used_cores),
    "cpu_idle": ("Cores of a node that jobs can be given.", lambda node: node.idle_cores),
    "cpu_other": ("Cores of a node that takes no work.", lambda node: node.other_cores),
    "cpu_total": ("Cores of a node.", lambda node: node.cores),
    "mem_alloc": ("MiB of a node that jobs hold.", lambda node: node.used_memory / MIB),
    "mem_total": ("MiB of a node.", lambda node: node.memory / MIB),
}


def _of_partitions(nodes: Sequence[_Node], jobs: Sequence[_Jobs], queues: Sequence[str]) -> Iterator[Metric]:
    figures: dict[str, Counter[tuple[str, ...]]] = {}

    def add(name: str, labels: tuple[str, ...], value: float) -> None:
        figures.setdefault(name, Counter())[labels] += value  # type: ignore[assignment]

    for queue in queues:
        for name in ("cpus_allocated", "cpus_idle", "cpus_other", "cpus_total", "jobs_pending", "jobs_running",
                     "total_cpus", "idle_cpus", "real_mem", "free_mem"):  # fmt: skip
            add(name, (queue,), 0)
    for node in nodes:
        for queue in node.queues:
            add("cpus_allocated", (queue,), node.used_cores)
            for name in ("cpus_idle", "idle_cpus"):
                add(name, (queue,), node.idle_cores)
            add("cpus_other", (queue,), node.other_cores)
            for name in ("cpus_total", "total_cpus"):
                add(name, (queue,), node.cores)
            add("real_mem", (queue,), node.memory)
            add("free_mem", (queue,), node.memory - node.used_memory)
            add("alloc_cpus", (queue, node.state), node.used_cores)
            add("alloc_mem", (queue, node.state), node.used_memory)
            add("node_count", (queue, node.state), 1)
    for one in jobs:
        state = slurm_state(one.state)
        if state in ("PENDING", "RUNNING"):
            add(f"jobs_{state.lower()}", (one.queue,), one.jobs)
        add("job_state_total", (one.queue, state), one.jobs)
    for name, values in figures.items():
        labels = ["partition", "state"] if name in _BY_STATE else ["partition"]
        yield _many(f"slurm_partition_{name}", PARTITION[name], labels, values)


_BY_STATE: Final = ("alloc_cpus", "alloc_mem", "node_count", "job_state_total")
#: What each metric of a partition says.
PARTITION: Final = {
    "cpus_allocated": "Cores of a queue's nodes that jobs hold.",
    "cpus_idle": "Cores of a queue's nodes that jobs can be given.",
    "idle_cpus": "Cores of a queue's nodes that jobs can be given.",
    "cpus_other": "Cores of a queue's nodes that take no work.",
    "cpus_total": "Cores of a queue's nodes.",
    "total_cpus": "Cores of a queue's nodes.",
    "real_mem": "Bytes of memory of a queue's nodes.",
    "free_mem": "Bytes of memory of a queue's nodes that no job holds.",
    "alloc_cpus": "Cores of a queue's nodes that jobs hold, by state of the node.",
    "alloc_mem": "Bytes of memory of a queue's nodes that jobs hold, by state of the node.",
    "node_count": "Nodes of a queue, by state.",
    "jobs_pending": "Pending jobs of a queue.",
    "jobs_running": "Running jobs of a queue.",
    "job_state_total": "Jobs of a queue that are not over, by state.",
}


def _of_owners(jobs: Sequence[_Jobs]) -> Iterator[Metric]:
    """The same figures of projects, as accounts, and of people who have jobs that are not over."""
    for kind, label in (("account", "account"), ("user", "username")):
        old: dict[str, Counter[tuple[str, ...]]] = {
            name: Counter() for name in ("jobs_pending", "jobs_running", "jobs_suspended", "cpus_running")
        }
        counts: Counter[tuple[str, ...]] = Counter()
        cores: dict[tuple[str, ...], float] = {}
        memory: dict[tuple[str, ...], float] = {}
        for one in jobs:
            owner, state = one.project if kind == "account" else one.person, slurm_state(one.state)
            for counted in old.values():
                counted[owner,] += 0
            if f"jobs_{state.lower()}" in old:
                old[f"jobs_{state.lower()}"][owner,] += one.jobs
            if state == "RUNNING":
                old["cpus_running"][owner,] += one.cores  # type: ignore[assignment]
            counts[owner, state] += one.jobs
            if JobState(one.state) in ACTIVE:
                cores[owner, state] = cores.get((owner, state), 0.0) + one.cores
                memory[owner, state] = memory.get((owner, state), 0.0) + one.memory
        whose = "a project" if kind == "account" else "a person"
        for name, values in old.items():
            noun, state = name.split("_")
            what = f"Cores of running jobs of {whose}." if noun == "cpus" else f"Jobs of {whose}: {state}."
            yield _many(f"slurm_{kind}_{name}", what, [kind], values)
        total, each = ("job_state_total", "job_state_") if kind == "account" else ("state_total", "")
        labels = [label, "state"]
        yield _many(f"slurm_{kind}_{total}", f"Jobs of {whose} that are not over, by state.", labels, counts)
        yield _many(f"slurm_{kind}_{each}cpu_alloc", f"Cores that jobs of {whose} hold.", labels, cores)
        yield _many(f"slurm_{kind}_{each}mem_alloc", f"Bytes that jobs of {whose} hold.", labels, memory)


def _of_queue(jobs: Sequence[_Jobs]) -> Iterator[Metric]:
    """Jobs by state. Those that are over are all that ended since counting began: Slurm forgets them after minutes."""
    states: Counter[str] = Counter()
    for one in jobs:
        states[slurm_state(one.state)] += one.jobs
    for state in ("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING"):
        yield _one(f"slurm_queue_{state.lower()}", f"Jobs that are {state.lower()}.", states[state])
    blocked = sum(one.jobs for one in jobs if one.state == JobState.BLOCKED)
    yield _one("slurm_queue_pending_dependency", "Pending jobs that wait for other jobs.", blocked)
    ended: Counter[tuple[str, str]] = Counter()
    for name, _, detail, value in _rows(_COUNTS, [[ENDED, FAILED, PREEMPTED]]):
        ended[name, detail if name != PREEMPTED else ""] += value
    for name, what, key in (
        ("cancelled", "Jobs that were cancelled.", (ENDED, "cancelled")),
        ("completed", "Jobs that completed.", (ENDED, "completed")),
        ("failed", "Jobs that failed.", (ENDED, "failed")),
        ("timeout", "Attempts that ended at their time limit.", (FAILED, "time-limit")),
        ("node_fail", "Attempts that were lost with their node.", (FAILED, "node-lost")),
        ("preempted", "Attempts that were preempted, evicted or drained.", (PREEMPTED, "")),
    ):
        yield _one(f"slurm_queue_{name}", f"{what} All since counting began.", ended[key])
    reasons: Counter[tuple[str, ...]] = Counter()
    for one in jobs:
        if one.state in PENDING:
            reasons[one.reason or "NotEvaluatedYet",] += one.jobs
    yield _many(
        "slurm_pending_reason_total", "Pending jobs by reason, in Muster's words.", ["reason"], reasons
    )


def _of_gpus() -> Iterator[Metric]:
    ((total, used),) = _rows(_GPUS)
    yield _one("slurm_gpus_total", "Healthy GPUs.", total)
    yield _one("slurm_gpus_alloc", "GPUs that jobs hold; a slice counts as its part of one.", used)
    yield _one("slurm_gpus_idle", "GPUs that no job holds.", max(0.0, float(total) - float(used)))
    yield _one(
        "slurm_gpus_utilization",
        "Part of the GPUs that jobs hold.",
        float(used) / float(total) if total else 0,
    )


def _of_scheduler(jobs: Iterable[_Jobs]) -> Iterator[Metric]:
    ((last, mean, per_minute),) = _rows(_CYCLES)
    yield _one("slurm_scheduler_last_cycle", "Microseconds of the last recorded cycle.", last)
    yield _one("slurm_scheduler_mean_cycle", "Mean microseconds of recorded cycles of an hour.", mean)
    yield _one("slurm_scheduler_cycle_per_minute", "Recorded cycles a minute, of an hour.", per_minute)
    pending = sum(one.jobs for one in jobs if one.state in PENDING)
    yield _one("slurm_scheduler_queue_size", "Jobs that wait for the planner.", pending)
    started = sum(value for _, _, _, value in _rows(_COUNTS, [[BACKFILLED]]))
    for name in ("slurm_scheduler_backfilled_jobs_since_start_total", "slurm_backfill_job_count"):
        yield _one(name, "Attempts that backfill started, since counting began.", started)


def _of_fair_share() -> Iterator[Metric]:
    """The factors of /metrics: none where MUSTER_FAIRSHARE_METRICS is off."""
    for family in quotas.metrics.collect():
        if family.name == "muster_fairshare_factor":
            factors = {(sample.labels["account"],): sample.value for sample in family.samples}
            yield _many(
                "slurm_account_fairshare", "1 for the project whose people go first.", ["account"], factors
            )


def _one(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=float(value))


def _many(name: str, documentation: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, float(value))
    return family


def _rows(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, list(parameters) or None)
        return list(cursor.fetchall())


#: One reading serves all scrapes of this process.
collector: Final = Collector(read)
