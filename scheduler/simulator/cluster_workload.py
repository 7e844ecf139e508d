"""A workload for a whole cluster: the cluster at the beginning, the jobs to come, and how long each really runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from quotas.core.gpu_models import share_of
from quotas.core.resources import Resources
from quotas.core.share_tree import ShareTree
from scheduler.core.columns import Ints
from scheduler.core.snapshot.request_classes import ClassTable, request_class
from scheduler.core.snapshot.snapshot import (
    NodeColumns,
    PendingColumns,
    ProjectColumns,
    QueueColumns,
    Snapshot,
)
from scheduler.simulator.workload import Workload

#: How long a job without a time limit is taken to run.
DEFAULT_RUN_MS: Final = 3_600_000


@dataclass(frozen=True)
class ClusterWorkload:
    """A cluster at the beginning, the jobs that will arrive, and how long each of them really runs.

    `snapshot.pending` holds every job that will ever arrive; `snapshot.running` what runs at the beginning. The
    arrays have one entry for each pending job.
    """

    name: str
    snapshot: Snapshot
    run_ms: Ints
    amounts: Ints  # thousandths of GPUs that a job holds (of CPUs in a cluster without GPUs)
    capacity: int  # of the cluster, in the unit of `amounts`
    #: The weights of organizations, projects and users, for policies of fair share. Without it all projects are equal.
    tree: ShareTree | None = None
    #: User id -> name, where names are known.
    users: Mapping[int, str] = field(default_factory=dict)
    #: When each job really started and ended, where that is known; -1 = it did not.
    started_ms: Ints | None = None
    ended_ms: Ints | None = None
    #: The part of each job's work that more tasks do not speed up, in thousandths (None = none). `run_ms` is the run
    #: time with the fewest tasks that the job accepts (`tasks`); without a serial part twice as many take half of it.
    serial_millis: Ints | None = None

    def head(self, count: int) -> ClusterWorkload:
        """The same workload with only the first `count` jobs to arrive."""
        pending = self.snapshot.pending
        rows = np.sort(np.lexsort((pending.id, pending.submitted_ms))[:count])
        return replace(
            self,
            snapshot=replace(self.snapshot, pending=pending.take(rows)),
            run_ms=self.run_ms[rows],
            amounts=self.amounts[rows],
            started_ms=None if self.started_ms is None else self.started_ms[rows],
            ended_ms=None if self.ended_ms is None else self.ended_ms[rows],
            serial_millis=None if self.serial_millis is None else self.serial_millis[rows],
        )

    __hash__ = None  # type: ignore[assignment]


def as_cluster(workload: Workload) -> ClusterWorkload:
    """A log of processors as a cluster of one node with as many CPUs."""
    jobs, table = workload.jobs, ClassTable()
    needs = jobs.processors.tolist()
    numbers = [table.intern(request_class(Resources(cpu_millis=need * 1000))) for need in needs]
    users = np.unique(jobs.user_id)
    snapshot = Snapshot.build(
        now_ms=0,
        nodes=NodeColumns(id=[1], name=["machine"], cpu_millis=[workload.processors * 1000]),
        classes=table.classes,
        pending=PendingColumns(
            id=np.arange(1, len(jobs) + 1),
            class_index=numbers,
            queue_id=np.ones(len(jobs)),
            project_id=np.searchsorted(users, jobs.user_id) + 1,
            user_id=jobs.user_id,
            submitted_ms=jobs.submitted_ms,
            time_limit_seconds=-(-jobs.limit_ms // 1000),
        ),
        queues=QueueColumns(id=[1], name=["main"]),
        projects=ProjectColumns(id=np.arange(1, len(users) + 1)),
    )
    return ClusterWorkload(
        workload.name, snapshot, jobs.run_ms, jobs.processors * 1000, workload.processors * 1000
    )


def from_snapshot(snapshot: Snapshot, name: str) -> ClusterWorkload:
    """The pending and running jobs of a recorded cycle; each is taken to run for its whole time limit.

    An elastic job is taken to run that long with its most tasks; with fewer tasks its time limit ends it.
    """
    pending = snapshot.pending
    run_ms = np.where(pending.time_limit_seconds > 0, pending.time_limit_seconds * 1000, DEFAULT_RUN_MS)
    run_ms = run_ms * np.maximum(pending.most_tasks, pending.tasks) // np.maximum(pending.tasks, 1)
    return ClusterWorkload(name, snapshot, run_ms, amounts_of(snapshot), capacity_of(snapshot))


def amounts_of(snapshot: Snapshot) -> Ints:
    """What each pending job would hold: thousandths of GPUs, or of CPUs in a cluster without GPUs."""
    has_gpus = bool(len(snapshot.devices))
    each = np.array(
        [one.per_task.gpu_millis_charged if has_gpus else one.per_task.cpu_millis for one in snapshot.classes]
        or [0],
        dtype=np.int64,
    )
    return each[snapshot.pending.class_index] * snapshot.pending.tasks


def capacity_of(snapshot: Snapshot) -> int:
    """What the cluster has, in the unit of `amounts_of`."""
    if len(snapshot.devices):
        return sum(share_of(model) for model in snapshot.devices.model)
    return int(snapshot.nodes.cpu_millis.sum())
