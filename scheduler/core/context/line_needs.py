"""Line needs: what every class of jobs counts on every quota line, as columns, to find all that are short at once."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from quotas.core.limits import LimitTree, charge
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Ints, rows_of_groups
from scheduler.core.placement.equivalence import JobClasses


class LineNeed(NamedTuple):
    """Columns with one entry for each class of jobs and line that the class counts on."""

    job_class: Ints
    line: Ints
    need: Ints


_NONE = np.zeros(0, dtype=np.int64)


class LineNeeds:
    """The needs of all classes, whatever devices their jobs are given: for clusters without lines for one GPU model."""

    def __init__(self, cluster: ClusterIndex, job_classes: JobClasses) -> None:
        self._job_classes, self._lines = job_classes, cluster.paths.lines
        snapshot, quotas = cluster.snapshot, cluster.snapshot.quotas
        resources = {name: number for number, name in enumerate(dict.fromkeys(quotas.resource))}
        #: Of each line the number of its resource; of each placement class what its jobs need of each resource.
        self._resource: Ints = np.array([resources[name] for name in quotas.resource], dtype=np.int64)
        count = int(job_classes.placement_class.max(initial=-1)) + 1
        self._needs: Ints = np.zeros((count, len(resources)), dtype=np.int64)
        sample = np.zeros(count, dtype=np.int64)
        sample[job_classes.placement_class] = job_classes.first_row
        pending = snapshot.pending
        kinds = zip(pending.class_index[sample].tolist(), pending.tasks[sample].tolist(), strict=True)
        for number, (class_index, tasks) in enumerate(kinds):
            per_task = snapshot.classes[class_index].per_task
            self._needs[number] = [charge(name, per_task, tasks) for name in resources]

    @cached_property
    def _entries(self) -> LineNeed:
        job_classes, lines = self._job_classes, self._lines
        counts = np.array([len(rows) for rows in lines], dtype=np.int64)
        line = np.array([row for rows in lines for row in rows], dtype=np.int64)
        line = line[rows_of_groups(job_classes.payer, counts)]
        job_class = np.repeat(np.arange(len(job_classes)), counts[job_classes.payer])
        need = self._needs[job_classes.placement_class[job_class], self._resource[line]]
        counted = need > 0
        return LineNeed(job_class[counted], line[counted], need[counted])

    def short(self, tree: LimitTree) -> LineNeed:
        """The entries whose line has no room for what the class needs, as of now.

        By what is in use alone: for trees in which no line keeps anything back (`LimitTree.keeps`).
        """
        free = np.array(tree.bound, dtype=np.int64) - np.array(tree.used, dtype=np.int64)
        # Mostly every line has room for the class that needs most of its resource: no class is looked at.
        if not (self._needs.max(axis=0, initial=0)[self._resource] > free).any():
            return LineNeed(_NONE, _NONE, _NONE)
        entries = self._entries
        found = np.flatnonzero(entries.need > free[entries.line])
        return LineNeed(entries.job_class[found], entries.line[found], entries.need[found])
