"""What the queries of a snapshot have in common: states as text, moments as numbers, and which rows are meant."""

from __future__ import annotations

from typing import Final

from scheduler.core.lifecycle import ACTIVE as ACTIVE_STATES

ACTIVE: Final = sorted(state.value for state in ACTIVE_STATES)
#: Written out, not given as parameters, so that indexes on just those rows serve a statement that is planned once.
IS_ACTIVE: Final = f"IN ({', '.join(map(repr, ACTIVE))})"

#: Jobs that wait or run, by the rows of `UnfinishedJob`: all, or those of the queues that a query `of` gives. Read by
#: their keys whatever the server expects (an array): joined, the newest of few would be looked for among all jobs.
UNFINISHED: Final = "job.number = ANY(ARRAY(SELECT number FROM scheduler_unfinishedjob))"
UNFINISHED_OF: Final = (
    "job.number = ANY(ARRAY(SELECT number FROM scheduler_unfinishedjob WHERE queue_id IN ({of})))"
)

ANY_OF: Final = "ANY(%s::bigint[])"
#: Jobs of one cluster.
OF_CLUSTER: Final = "job.queue_id IN (SELECT id FROM scheduler_queue WHERE cluster_id = %s)"

#: Of those that wait or run; and those in queues that are not paused.
UNFINISHED_OF_CLUSTER: Final = UNFINISHED_OF.format(of="SELECT id FROM scheduler_queue WHERE cluster_id = %s")
UNFINISHED_OF_OPEN_QUEUES: Final = UNFINISHED_OF.format(
    of="""SELECT queue.id FROM scheduler_queue queue JOIN scheduler_cluster cluster ON cluster.id = queue.cluster_id
        WHERE queue.cluster_id = %s AND NOT queue.paused AND NOT cluster.paused"""
)


def live_attempts(name: str = "attempt") -> str:
    """An item of FROM: the live attempts, each of which holds something on a node.

    They are found by what is held, then one by one by their keys (`OFFSET 0`): left to choose, the server reads every
    attempt that ever was where it expects many.
    """
    return f"""(SELECT DISTINCT attempt_id FROM scheduler_task WHERE released_at IS NULL) {name}_holds
    CROSS JOIN LATERAL (
        SELECT * FROM scheduler_attempt WHERE id = {name}_holds.attempt_id AND is_live OFFSET 0
    ) {name}"""


def ms(column: str) -> str:
    """A moment in milliseconds since 1970."""
    return f"floor(extract(epoch FROM {column}) * 1000)::bigint"


def reason_mark(code: str, text: str) -> str:
    """One number for a reason: its code in the upper half, its text in the lower."""
    return f"((hashtext({code})::bigint << 32) | (hashtext({text})::bigint & 4294967295))"


def number_of_type(column: str) -> str:
    """A job type as a number that is never 0: quota lines and jobs are compared by this number."""
    return f"(hashtext({column})::bigint + 4294967296)"
