"""Queues: their query, and the columns of a snapshot from what this finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from scheduler.core.snapshot.node_isolation import NEEDED
from scheduler.core.snapshot.snapshot import QueueColumns
from scheduler.state.db.fragments import ANY_OF, IS_ACTIVE, UNFINISHED_OF
from scheduler.state.db.query import ColumnQuery, Table

#: The number of the bits that a level needs.
_BITS_OF: Final = (
    "CASE {level} "
    + " ".join(f"WHEN '{level}' THEN {bits}" for level, bits in NEEDED.items())
    + " ELSE 0 END"
)
_OF_PROFILE: Final = """(SELECT profile.options->>'isolation' FROM scheduler_schedulerprofile profile
        WHERE profile.id = coalesce(queue.profile_id,
            (SELECT cluster.profile_id FROM scheduler_cluster cluster WHERE cluster.id = queue.cluster_id)))"""
# What was preempted is looked for first, and its queue then, by keys and whatever the database expects (`OFFSET 0`): a
# young database would go through all jobs that the queue ever had, in each cycle and each apply.
_AS_STORED: Final = {
    "id": "queue.id",
    "name": "queue.name",
    "priority": "queue.priority",
    "max_concurrent_jobs": "coalesce(queue.max_concurrent_jobs, 0)",
    "running_jobs": f"""CASE WHEN {{counted}} THEN (SELECT count(*) FROM scheduler_job job
        WHERE {UNFINISHED_OF.format(of="queue.id")} AND job.state {IS_ACTIVE}) ELSE 0 END""",
    "max_wall_seconds": """coalesce(least(queue.max_wall_seconds, (
        SELECT CASE WHEN bool_and(partition.max_wall_seconds IS NOT NULL) THEN max(partition.max_wall_seconds) END
        FROM scheduler_queue_partitions part JOIN scheduler_partition partition ON partition.id = part.partition_id
        WHERE part.queue_id = queue.id
    )), 0)""",
    "generation": "queue.generation",
    "preempted_last_hour": """(
        SELECT count(*) FROM (
            SELECT job_id FROM scheduler_attempt WHERE stopped_for IS NOT NULL
                AND stop_asked_at > statement_timestamp() - interval '1 hour' OFFSET 0
        ) stopped WHERE (SELECT queue_id FROM scheduler_job job WHERE job.number = stopped.job_id) = queue.id)
    + (SELECT count(*) FROM (
            SELECT attempt_id FROM scheduler_suspension
            WHERE asked_at > statement_timestamp() - interval '1 hour' OFFSET 0
        ) suspended WHERE (SELECT queue_id FROM scheduler_job job WHERE job.number = (
            SELECT job_id FROM scheduler_attempt attempt WHERE attempt.id = suspended.attempt_id)) = queue.id)""",
    "isolation": f"""greatest({_BITS_OF.format(level="queue.isolation")},
        {_BITS_OF.format(level=_OF_PROFILE)})""",
}
#: `counted` says of which queues the running jobs are counted: among all that wait or run.
QUEUES: Final = ColumnQuery(
    {
        **_AS_STORED,
        "own_paused": "queue.paused",
        "own_paused_text": """concat(nullif('by ' || queue.paused_by, 'by '),
        to_char(queue.paused_at AT TIME ZONE 'UTC', '" since "YYYY-MM-DD"T"HH24:MI:SS"Z"'),
        nullif(': ' || queue.paused_reason, ': '))""",
        "partition_ids": """ARRAY(SELECT partition_id FROM scheduler_queue_partitions
        WHERE queue_id = queue.id ORDER BY 1)""",
    },
    "SELECT {columns} FROM scheduler_queue queue WHERE {which} ORDER BY queue.id {lock}",
)
QUEUES_OF_CLUSTER: Final = "queue.cluster_id = %s"
THESE_QUEUES: Final = f"queue.id = {ANY_OF}"
#: For the applier: counting what runs may read all that the queue ever had.
COUNTED_IF_LIMITED: Final = "queue.max_concurrent_jobs > 0"


def queue_columns(
    queues: Table, *, cluster_paused: str | None, running: Iterable[int] | None = None
) -> QueueColumns:
    """Columns of queues from what `QUEUES` found.

    In a paused cluster every queue is paused, with the text `cluster_paused` (None while it is not). `running` has
    the queue of each running job, where all of these were read anyway: they need not be counted once more.
    """
    count = len(queues["id"])
    stored: dict[str, Sequence[Any]] = {name: queues[name] for name in _AS_STORED}
    if running is not None:
        of_queue = Counter(running)
        stored["running_jobs"] = [of_queue[queue_id] for queue_id in queues["id"]]
    return QueueColumns.from_columns(
        **stored,
        paused=queues["own_paused"] if cluster_paused is None else [True] * count,
        paused_text=queues["own_paused_text"] if cluster_paused is None else (cluster_paused,) * count,
        partition_ids=tuple(map(tuple, queues["partition_ids"])),
    )
