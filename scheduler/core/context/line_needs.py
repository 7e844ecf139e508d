"""Line needs: what every class of jobs counts on every quota line, as columns, to find all that are short at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quotas.core.limits import LimitTree, charge
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Ints
from scheduler.core.placement.equivalence import JobClasses, number_together


class LineNeeds(NamedTuple):
    """One entry for each class of jobs and line that it counts on."""

    job_class: Ints
    line: Ints
    need: Ints

    def short(self, tree: LimitTree) -> LineNeeds:
        """The entries whose line has no room for what the class needs, as of now.

        By what is in use alone: for trees in which no line keeps anything back (`LimitTree.keeps`).
        """
        used, bound = np.array(tree.used, dtype=np.int64), np.array(tree.bound, dtype=np.int64)
        found = np.flatnonzero(self.need > (bound - used)[self.line])
        return LineNeeds(self.job_class[found], self.line[found], self.need[found])


_NONE = np.zeros(0, dtype=np.int64)


def line_needs(cluster: ClusterIndex, job_classes: JobClasses) -> LineNeeds:
    """The needs of all classes, whatever devices their jobs are given: for clusters without lines for one GPU model."""
    snapshot, lines = cluster.snapshot, cluster.paths.lines
    counts = np.array([len(rows) for rows in lines] or [0], dtype=np.int64)[job_classes.payer]
    if not counts.sum():
        return LineNeeds(_NONE, _NONE, _NONE)
    pending, first = snapshot.pending, job_classes.first_row
    kind = number_together(len(first), pending.class_index[first], pending.tasks[first])
    resources = {name: number for number, name in enumerate(dict.fromkeys(snapshot.quotas.resource))}
    needs = np.zeros((int(kind.max()) + 1, len(resources)), dtype=np.int64)
    sample = np.zeros(len(needs), dtype=np.int64)
    sample[kind] = first
    for number, row in enumerate(sample.tolist()):
        per_task = snapshot.classes[pending.class_index.item(row)].per_task
        tasks = pending.tasks.item(row)
        needs[number] = [charge(name, per_task, tasks) for name in resources]
    resource = np.array([resources[name] for name in snapshot.quotas.resource], dtype=np.int64)
    starts = np.cumsum([0, *(len(rows) for rows in lines)])
    flat = np.array([row for rows in lines for row in rows], dtype=np.int64)
    job_class = np.repeat(np.arange(len(job_classes)), counts)
    offset = np.arange(len(job_class)) - np.repeat(np.cumsum(counts) - counts, counts)
    line = flat[starts[job_classes.payer[job_class]] + offset]
    need = needs[kind[job_class], resource[line]]
    counted = need > 0
    return LineNeeds(job_class[counted], line[counted], need[counted])
