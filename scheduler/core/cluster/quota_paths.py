"""Quota paths: the quota lines that each job counts against, from its user and project up to the root."""

from __future__ import annotations

from typing import Final

import numpy as np

from quotas.core.limits import NONE
from scheduler.core.columns import Ints, rows_of
from scheduler.core.snapshot.snapshot import Snapshot

_ALL: Final = 0  # a line for everybody, or for every job type


class QuotaPaths:
    """The pending and running jobs numbered by payer: jobs of one payer count on the same lines.

    Where no line is for one person or one job type only, the payers are the projects.
    """

    def __init__(self, snapshot: Snapshot, pending_project: Ints) -> None:
        pending, running, projects = snapshot.pending, snapshot.running, snapshot.projects
        quotas = snapshot.quotas
        row = {number: line for line, number in enumerate(quotas.id.tolist())}
        #: Of each line, the row of the one above it; -1 = none.
        self.parent: list[int] = [row[up] if up else NONE for up in quotas.parent_id.tolist()]
        depth = _depths(self.parent)
        of_project = [
            sorted((row[number] for number in numbers), key=lambda line: (-depth[line], line))
            for numbers in projects.quota_line_ids
        ]
        #: The payer of each pending and of each running job.
        self.pending: Ints = pending_project
        self.running: Ints = rows_of(projects.id, running.project_id, what="project")
        #: Of each payer, its lines: each before the one above it.
        self.lines: list[list[int]] = of_project
        people = np.unique(quotas.user_id[quotas.user_id != _ALL])
        types = np.unique(quotas.job_type[quotas.job_type != _ALL])
        if not len(people) and not len(types):
            return
        keys = np.stack(
            [
                np.concatenate([self.pending, self.running]),
                _only(np.concatenate([pending.user_id, running.user_id]), people),
                _only(np.concatenate([pending.job_type, running.job_type]), types),
            ]
        )
        payers, number = np.unique(keys, axis=1, return_inverse=True)
        number = number.reshape(-1).astype(np.int64)
        self.pending, self.running = number[: len(pending)], number[len(pending) :]
        person, kind = quotas.user_id.tolist(), quotas.job_type.tolist()
        self.lines = [
            [
                line
                for line in of_project[project]
                if person[line] in (_ALL, user) and kind[line] in (_ALL, job_type)
            ]
            for project, user, job_type in payers.T.tolist()
        ]


def _only(values: Ints, met: Ints) -> Ints:
    """The values that occur in a line, and 0 for all others."""
    return np.where(np.isin(values, met), values, _ALL)


def _depths(parent: list[int]) -> list[int]:
    """How many lines stand above each. Raises ValueError for lines that stand above each other."""
    depths: list[int] = []
    for line in range(len(parent)):
        depth, one = 0, parent[line]
        while one >= 0:
            depth += 1
            if depth > len(parent):
                raise ValueError("quota lines stand above each other in a circle")
            one = parent[one]
        depths.append(depth)
    return depths
