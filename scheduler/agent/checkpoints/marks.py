"""What the table of tasks notes of checkpoints: whose are still to come, and tasks that wait for one of theirs."""

from __future__ import annotations

from scheduler.agent.protocol import TaskRecord
from scheduler.agent.tasks.local_task import LocalTask
from scheduler.agent.tasks.task_table import TaskTable


def with_checkpoints(table: TaskTable) -> list[LocalTask]:
    """Tasks that make checkpoints and whose last ones the server may not have."""
    return [
        entry
        for entry in table.entries()
        if entry.checkpoint_terms is not None and not entry.checkpoints_stored
    ]


def note_checkpoints(table: TaskTable, entry: LocalTask, *, stored: bool) -> None:
    """The server knows of all checkpoints of a task that has ended, and with `stored` has them."""
    with table.changed:
        entry.checkpoints_begun = True
        entry.checkpoints_stored = entry.checkpoints_stored or stored
        table.changed.notify_all()


def note_fetched(table: TaskTable, task: int, epoch: int, record: TaskRecord | None) -> None:
    """A task is given to the shim now; with a `record` it has ended before that."""
    with table.changed:
        if entry := table.get(task, epoch):
            entry.fetching = False
            if record is not None:
                entry.record, entry.version = record, entry.version + 1
                entry.checkpoints_begun = entry.checkpoints_stored = True
        table.changed.notify_all()
