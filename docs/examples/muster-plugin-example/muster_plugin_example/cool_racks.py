"""Keep large jobs out of hot racks, and prefer cool ones: the temperature is a label of the node."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Degrees Celsius at the rack's inlet, kept up to date by the monitoring.
LABEL = "example.org/inlet-celsius"
TOO_HOT = 30.0
LARGE_GPUS = 4


class CoolRacks:
    """Filter, score and order by columns; counts its notifications."""

    name = "cool-racks"

    def __init__(self) -> None:
        self.started = 0

    def filter(self, request: Any, nodes: Any) -> Any:
        """A task with many GPUs may not go where it is hot already."""
        if request.request.per_task.gpus < LARGE_GPUS:
            return np.ones(len(nodes), dtype=bool)
        return self._celsius(nodes) < TOO_HOT

    def score(self, request: Any, nodes: Any) -> Any:
        """100 at 15 degrees and below, 0 at 35 and above."""
        return np.clip((35.0 - self._celsius(nodes)) * 5.0, 0.0, 100.0)

    def order(self, jobs: Any) -> Any:
        """Jobs of more tasks first; equal ones stay in the order of the profile."""
        return jobs.tasks

    def on_job_scheduled(self, job: int, placement: Any) -> None:
        self.started += 1

    def _celsius(self, nodes: Any) -> Any:
        return np.array([float(labels.get(LABEL, 25.0)) for labels in nodes.labels])
