"""Taint eviction: running jobs that must leave a node because of a NoExecute taint they do not tolerate."""

from __future__ import annotations

import numpy as np

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.plan import Preempt
from scheduler.core.snapshot.constraints import NO_EXECUTE, Taint, Toleration


def evictions(cluster: ClusterIndex, grace_seconds: int) -> list[Preempt]:
    """Every running job with a task on a node whose taint it does not, or no longer, tolerate.

    A job that runs on several nodes is evicted from all of them. Neither its priority nor whether it is
    preemptible matters: an operator has decided about the node. Jobs that are being stopped already are skipped.
    """
    snapshot = cluster.snapshot
    running, allocations = snapshot.running, snapshot.allocations
    if not any(snapshot.nodes.taints):
        return []
    tainted = [
        any(taint.effect == NO_EXECUTE for taint in taints) if taints else False
        for taints in snapshot.nodes.taints
    ]
    if not any(tainted):
        return []
    found: dict[int, Preempt] = {}
    rows = np.flatnonzero(np.array(tainted, dtype=np.bool_)[cluster.allocations.node])
    jobs = np.searchsorted(running.id, allocations.job_id[rows])
    for row, job in zip(rows.tolist(), jobs.tolist(), strict=True):
        number = int(running.id[job])
        if number in found or running.stop_by_ms[job]:
            continue
        node = int(cluster.allocations.node[row])
        tolerations = snapshot.classes[int(running.class_index[job])].tolerations
        for taint in snapshot.nodes.taints[node]:
            if taint.effect == NO_EXECUTE and not _still_tolerates(tolerations, taint, snapshot.now_ms):
                since = max(int(running.started_ms[job]), int(running.saved_ms[job]))
                found[number] = Preempt(
                    job_id=number,
                    attempt_id=int(running.attempt_id[job]),
                    for_job_id=0,  # evicted for no other job
                    for_generation=0,
                    priority=int(running.priority[job]),
                    for_priority=0,
                    lost_seconds=max(snapshot.now_ms - since, 0) // 1000,
                    grace_seconds=grace_seconds,
                    node_id=int(snapshot.nodes.id[node]),
                    taint=(taint.key, taint.value),
                )
                break
    return [found[number] for number in sorted(found)]


def _still_tolerates(tolerations: tuple[Toleration, ...], taint: Taint, now_ms: int) -> bool:
    """For the shortest time of the matching tolerations from when the taint was put; without one, without limit."""
    matching = [toleration for toleration in tolerations if toleration.tolerates(taint)]
    times = [toleration.seconds for toleration in matching if toleration.seconds >= 0]
    return bool(matching) and (not times or now_ms < taint.since_ms + min(times) * 1000)
