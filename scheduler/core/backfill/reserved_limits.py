"""Reserved limits: what the first reserved start leaves of quota, queues, arrays and pools to the jobs beside it."""

from __future__ import annotations

from scheduler.core.cluster.job_charges import LineCharges
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.placement.binding import largest
from scheduler.core.placement.equivalence import JobClass


class ReservedLimits:
    """The limits as if the job of the first reserved start ran already.

    Only the first reserved start keeps its part of the limits; what later ones need may be freed before they begin.
    """

    def __init__(self, context: CycleContext, row: int, job_class: JobClass) -> None:
        self.row = row
        self._context = context
        self._ledger = context.workspace.limits.copy()
        self.take(job_class, context.charges(job_class), job_class.shape.tasks)

    def take(self, job_class: JobClass, charges: LineCharges, tasks: int) -> None:
        """Count a job that starts and runs beside the first reserved start."""
        self._ledger.take(
            queue_row=job_class.queue_row,
            array_id=0,  # `admits_in_array` asks the workspace
            charges=charges,
            request=job_class.query.request,
            tasks=tasks,
        )

    def admits(self, job_class: JobClass, tasks: int) -> bool:
        """Whether queue, quota lines and pools have room for that many tasks."""
        charges = self._context.charges(job_class, tasks)
        return self._ledger.admits(job_class.queue_row, charges, job_class.query.request, tasks)

    def admits_in_array(self, row: int) -> bool:
        """Whether the first reserved start can still run beside the job in this row if both are of one array."""
        pending = self._context.cluster.snapshot.pending
        array, bound = pending.array_id.item(row), pending.array_max_running.item(row)
        if not array or not bound or array != pending.array_id.item(self.row):
            return True
        return self._context.workspace.limits.array_running.get(array, 0) + 1 < bound

    def most_tasks(self, job_class: JobClass, most: int) -> int:
        """How many tasks, at most `most`, a job that is enough with fewer may have."""
        return largest(job_class.shape.tasks, most, lambda tasks: self.admits(job_class, tasks))
