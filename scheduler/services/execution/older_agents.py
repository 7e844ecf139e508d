"""Tasks that the agent of their node is too old for: the planner knew another agent there than the one that asks now.

The planner keeps jobs away from agents that do not know what they need. An agent that was replaced by one of the
release before, between the plan and the moment in which it fetches its tasks, would run them without: without their
folder, their secrets, their probes. So what an agent does not know is never given to it: its jobs wait again, and say
why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from scheduler.agent import PROTOCOL
from scheduler.core.snapshot.agent_features import ALL, in_words, known_by
from scheduler.models import Node
from scheduler.state.db.sql import int_array, run
from scheduler.state.lifecycle.verdicts import AGENT_TOO_OLD
from scheduler.state.load.request_rows import REQUEST_COLUMNS
from scheduler.state.settle.settle import settle_many


def put_back(nodes: Mapping[int, Node], task_ids: Collection[int]) -> set[int]:
    """The tasks of these that may be given to the agents of these nodes (by id).

    The jobs of the others are queued again, whatever their rule of restarts is. An agent that knows everything costs
    no query.
    """
    known = {pk: known_by(_protocol_of(node)) for pk, node in nodes.items()}
    older = [pk for pk, bits in known.items() if bits != ALL]
    if not older:
        return set(task_ids)
    back: dict[int, str] = {}
    epochs: dict[int, int] = {}
    for attempt, epoch, node_id, needed in run(_NEEDED, [int_array(task_ids), int_array(older)]):
        if missing := needed & ~known[node_id]:
            back[attempt] = f"{AGENT_TOO_OLD} {in_words(missing)}: node {nodes[node_id].name}."
            epochs[attempt] = epoch
    if not back:
        return set(task_ids)
    settle_many(back, lost=back, epochs=epochs)
    rows = run(
        "SELECT id FROM scheduler_task WHERE id = ANY(%s::bigint[]) AND attempt_id <> ALL(%s::bigint[])",
        [int_array(task_ids), int_array(back)],
    )
    return {task for (task,) in rows}


def _protocol_of(node: Node) -> int:
    """An agent that has not said its protocol has not spoken yet, as for the planner."""
    return PROTOCOL if node.agent_protocol is None else node.agent_protocol


_NEEDED: Final = f"""
SELECT a.id, a.epoch, t.node_id, {REQUEST_COLUMNS["features"]}
FROM scheduler_task t JOIN scheduler_attempt a ON a.id = t.attempt_id
    JOIN scheduler_jobrequest request ON request.number = a.job_id
WHERE t.id = ANY(%s::bigint[]) AND t.node_id = ANY(%s::bigint[]) AND t.is_live AND a.stop_asked_at IS NULL
"""  # noqa: S608
