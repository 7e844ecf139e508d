"""What ended on nodes lately, outages, and the scores that nodes have from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from django.db import transaction

from scheduler.core.forecast.node_scores import NodeScores, Outages, PersonOnNode, Run
from scheduler.core.lifecycle import FailureClass
from scheduler.state.db.parameter_rows import ParameterRows
from scheduler.state.db.query import RowQuery
from scheduler.state.db.sql import int_array, run

#: The exit code of a task that its node could not start.
_NOT_STARTED: Final = 126

#: Attempts of all clusters that are read, the last ones, and runs whose times are compared.
MOST_ATTEMPTS: Final = 200_000
MOST_RUNS: Final = 20_000
#: Shorter runs say nothing about speed.
LEAST_SECONDS: Final = 10


class Ends(NamedTuple):
    """How the ends of tasks are read, by their texts."""

    #: Ends that say nothing about a node: it was stopped in good order, or the task was never sent.
    nothing: Sequence[str]
    #: How ends begin of tasks that their node could not start.
    failed_starts: Sequence[str]
    #: How the text of a node that stopped responding is made, with `%s` for the name.
    silent: str


#: What became of an attempt on one of its nodes: the worst that happened to its tasks there. 0 = it says nothing,
#: 1 = it went well, 2 = the job's own processes failed, 3 = infrastructure, 4 = a failed start, 5 = the node was lost.
_BY_PERSON: Final = """
WITH last AS MATERIALIZED (
    SELECT attempt.id, attempt.job_id, attempt.epoch, attempt.failure_class,
        power(0.5::float8,
            extract(epoch FROM statement_timestamp() - attempt.ended_at)::float8 / %(half_life)s) AS weight
    FROM scheduler_attempt attempt
    WHERE attempt.ended_at > statement_timestamp() - %(window)s
        AND attempt.id > (SELECT coalesce(max(id), 0) FROM scheduler_attempt) - %(most)s
        AND attempt.state IN ('succeeded', 'failed', 'lost')
), there AS (
    SELECT last.id, last.job_id, last.epoch, last.weight, task.node_id, max(CASE
        WHEN task.state NOT IN ('succeeded', 'failed', 'lost') OR task.end_text = ANY(%(nothing)s) THEN 0
        WHEN task.state = 'succeeded' THEN 1
        WHEN task.end_text LIKE ANY(%(failed_starts)s)
            OR (task.exit_code = %(not_started)s AND task.started_at IS NULL) THEN 4
        WHEN task.state = 'lost' AND last.failure_class IN (%(node_lost)s, '')
            AND (task.end_text NOT LIKE %(silent_like)s OR task.end_text = format(%(silent)s, node.name)) THEN 5
        WHEN last.failure_class = %(infrastructure)s THEN 3
        WHEN task.state = 'failed' THEN 2
        ELSE 0 END) AS became
    FROM last JOIN scheduler_task task ON task.attempt_id = last.id JOIN scheduler_node node ON node.id = task.node_id
    WHERE node.cluster_id = %(cluster)s
    GROUP BY last.id, last.job_id, last.epoch, last.weight, task.node_id
), judged AS (
    SELECT there.*, there.became = 2 AND EXISTS (
        SELECT FROM scheduler_attempt later
        WHERE later.job_id = there.job_id AND later.epoch > there.epoch AND later.state = 'succeeded'
            AND NOT EXISTS (SELECT FROM scheduler_task task
                WHERE task.attempt_id = later.id AND task.node_id = there.node_id)) AS succeeded_elsewhere
    FROM there WHERE there.became > 0
)
SELECT {columns}
FROM judged JOIN scheduler_job job ON job.number = judged.job_id
GROUP BY judged.node_id, job.user_id
ORDER BY judged.node_id, job.user_id
"""


class _PersonRow(NamedTuple):
    node_id: int
    user_id: int
    weight: float
    failed_weight: float
    elsewhere_weight: float
    attempts: int
    failed_starts: int
    lost: int
    infrastructure: int
    succeeded_elsewhere: int


_PEOPLE: Final = RowQuery(
    _PersonRow,
    {
        "node_id": "judged.node_id",
        "user_id": "job.user_id",
        "weight": "sum(judged.weight)",
        "failed_weight": "coalesce(sum(judged.weight) FILTER (WHERE judged.became >= 3), 0)",
        "elsewhere_weight": "coalesce(sum(judged.weight) FILTER (WHERE judged.succeeded_elsewhere), 0)",
        "attempts": "count(*)",
        "failed_starts": "count(*) FILTER (WHERE judged.became = 4)",
        "lost": "count(*) FILTER (WHERE judged.became = 5)",
        "infrastructure": "count(*) FILTER (WHERE judged.became = 3)",
        "succeeded_elsewhere": "count(*) FILTER (WHERE judged.succeeded_elsewhere)",
    },
    _BY_PERSON,
)


def people_on_nodes(
    *, cluster_id: int, half_life: timedelta, window: timedelta, ends: Ends, elsewhere: float
) -> list[PersonOnNode]:
    """What became of the attempts of each person on each node of a cluster; `elsewhere` is the part of a failure
    that one counts which succeeded on another node.
    """
    rows = run(
        _PEOPLE.sql(),
        {
            "cluster": cluster_id,
            "half_life": half_life.total_seconds(),
            "window": window,
            "most": MOST_ATTEMPTS,
            "nothing": list(ends.nothing),
            "failed_starts": [f"{text}%" for text in ends.failed_starts],
            "not_started": _NOT_STARTED,
            "node_lost": FailureClass.NODE_LOST.value,
            "infrastructure": FailureClass.INFRASTRUCTURE.value,
            "silent": ends.silent,
            "silent_like": ends.silent.replace("%s", "%"),
        },
    )
    return [
        PersonOnNode(
            row.node_id, row.user_id, row.weight, row.failed_weight + elsewhere * row.elsewhere_weight,
            row.attempts, row.failed_starts, row.lost, row.infrastructure, row.succeeded_elsewhere,
        )
        for row in _PEOPLE.read(rows)
    ]  # fmt: skip


# ------------------------------------------------------------------ run times


class _RunRow(NamedTuple):
    node_id: int
    user_id: int
    name: str
    tasks: int
    cpu_millis: int
    memory_mib: int
    gpu_millis: int
    machine: str
    seconds: float
    weight: float


#: Runs on one node that succeeded and began anew: one that goes on from an earlier attempt may be shorter for that.
_RUNS: Final = RowQuery(
    _RunRow,
    {
        "node_id": "task.node_id",
        "user_id": "job.user_id",
        "name": "request.name",
        "tasks": "task.tasks",
        "cpu_millis": "task.cpu_millis",
        "memory_mib": "task.memory_mib",
        "gpu_millis": "task.gpu_millis",
        "machine": """node.cpu_millis || ' ' || coalesce((SELECT string_agg(device.model, ',' ORDER BY device.index)
            FROM scheduler_device device WHERE device.node_id = node.id AND NOT device.gone), '')""",
        "seconds": "ran.seconds",
        "weight": """power(0.5::float8,
            extract(epoch FROM statement_timestamp() - attempt.ended_at)::float8 / %(half_life)s)""",
    },
    """SELECT {columns}
FROM scheduler_attempt attempt JOIN scheduler_job job ON job.number = attempt.job_id
    JOIN scheduler_jobrequest request ON request.number = attempt.job_id
    JOIN LATERAL (SELECT (extract(epoch FROM attempt.ended_at - attempt.started_at)
        - attempt.suspended_ms / 1000.0)::float8 AS seconds) ran ON ran.seconds >= %(least)s
    JOIN LATERAL (SELECT min(task.node_id) AS node_id, max(task.node_id) AS last, count(*) AS tasks,
            max(task.cpu_millis) AS cpu_millis, max(task.memory_mib) AS memory_mib, max(task.gpu_millis) AS gpu_millis
        FROM scheduler_task task WHERE task.attempt_id = attempt.id) task ON task.node_id = task.last
    JOIN scheduler_node node ON node.id = task.node_id AND node.cluster_id = %(cluster)s
WHERE attempt.state = 'succeeded' AND attempt.ended_at > statement_timestamp() - %(window)s
    AND attempt.id > (SELECT coalesce(max(id), 0) FROM scheduler_attempt) - %(most)s
    AND request.min_tasks IS NULL AND NOT EXISTS (SELECT FROM scheduler_attempt earlier
        WHERE earlier.job_id = attempt.job_id AND earlier.epoch < attempt.epoch AND earlier.started_at IS NOT NULL)
ORDER BY attempt.id DESC LIMIT %(runs)s""",
)


def runs_on_nodes(*, cluster_id: int, half_life: timedelta, window: timedelta) -> list[Run]:
    """The last runs of a cluster that succeeded on one node. Comparable are those of one person, job name and size
    on nodes with the same CPUs and GPUs.
    """
    rows = run(
        _RUNS.sql(),
        {
            "cluster": cluster_id,
            "half_life": half_life.total_seconds(),
            "window": window,
            "most": MOST_ATTEMPTS,
            "runs": MOST_RUNS,
            "least": LEAST_SECONDS,
        },
    )
    return [
        Run(
            row.node_id,
            row.user_id,
            (row.name, row.tasks, row.cpu_millis, row.memory_mib, row.gpu_millis, row.machine),
            row.seconds,
            row.weight,
        )
        for row in _RUNS.read(rows)
    ]


# ------------------------------------------------------------------ outages


def note_outages(node_ids: Sequence[int]) -> None:
    """Record that these nodes count as lost from now on, in the caller's transaction."""
    if node_ids:
        run(
            "INSERT INTO scheduler_nodeoutage (node_id, began_at)"
            " SELECT id, statement_timestamp() FROM unnest(%s::bigint[]) AS lost(id)",
            [int_array(node_ids)],
        )


def outages_of_nodes(*, cluster_id: int, half_life: timedelta, window: timedelta) -> list[Outages]:
    """How often each node of a cluster was lost within the window; older outages are deleted."""
    run(
        "DELETE FROM scheduler_nodeoutage outage USING scheduler_node node WHERE node.id = outage.node_id"
        " AND node.cluster_id = %s AND outage.began_at <= statement_timestamp() - %s::interval",
        [cluster_id, window],
    )
    rows = run(
        "SELECT outage.node_id, count(*), sum(power(0.5::float8,"
        " extract(epoch FROM statement_timestamp() - outage.began_at)::float8 / %s))"
        " FROM scheduler_nodeoutage outage JOIN scheduler_node node ON node.id = outage.node_id"
        " WHERE node.cluster_id = %s GROUP BY outage.node_id ORDER BY outage.node_id",
        [half_life.total_seconds(), cluster_id],
    )
    return [Outages(*row) for row in rows]


# ------------------------------------------------------------------ scores

_NAMES: Final = (
    "reliability", "attempts", "failed_starts", "lost", "infrastructure", "succeeded_elsewhere", "outages",
    "performance", "speed_percent", "compared_runs",
)  # fmt: skip
_NodeWithScores = tuple[int, NodeScores]


def _column(name: str) -> tuple[str, Any]:
    return "int", lambda one: getattr(one[1], name)


_SCORES: Final[ParameterRows[_NodeWithScores]] = ParameterRows(
    "made", {"node_id": ("bigint", lambda one: one[0]), **{name: _column(name) for name in _NAMES}}
)
#: Scores that are as before are not written.
_STORE: Final = f"""
INSERT INTO scheduler_nodescore AS kept (node_id, {", ".join(_NAMES)}, updated_at)
SELECT made.node_id, {", ".join(f"made.{name}" for name in _NAMES)}, statement_timestamp()
FROM {_SCORES.source} JOIN scheduler_node node ON node.id = made.node_id
ORDER BY made.node_id
ON CONFLICT (node_id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in (*_NAMES, "updated_at"))}
WHERE ({", ".join(f"kept.{name}" for name in _NAMES)})
    IS DISTINCT FROM ({", ".join(f"excluded.{name}" for name in _NAMES)})
RETURNING 1
"""
_FORGET: Final = """
DELETE FROM scheduler_nodescore score USING scheduler_node node
WHERE node.id = score.node_id AND node.cluster_id = %s AND NOT score.node_id = ANY(%s::bigint[])
"""


def store_scores(found: Mapping[int, NodeScores], *, cluster_id: int) -> int:
    """Replace the scores of a cluster's nodes; answers how many are new or other than before."""
    rows = sorted(found.items())
    with transaction.atomic():
        run(_FORGET, [cluster_id, int_array(found)])
        return len(run(_STORE, _SCORES.parameters(rows))) if rows else 0
