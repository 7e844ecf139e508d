"""NodeView: the nodes that a filter or scorer is asked about."""

from __future__ import annotations

from scheduler.core.cluster.free_columns import Floats
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.columns import Bools, Ints


class NodeView:
    """Some nodes of a workspace, as a filter or scorer sees them: every column in the same row order."""

    __slots__ = ("rows", "workspace")

    def __init__(self, workspace: Workspace, rows: Ints | None = None) -> None:
        self.workspace = workspace
        self.rows = rows  # None = all

    def __len__(self) -> int:
        return self.workspace.cluster.node_count if self.rows is None else len(self.rows)

    def ints(self, column: Ints) -> Ints:
        """These nodes' part of a column that has a row for every node."""
        return column if self.rows is None else column.take(self.rows)

    def floats(self, column: Floats) -> Floats:
        return column if self.rows is None else column.take(self.rows)

    def bools(self, column: Bools) -> Bools:
        return column if self.rows is None else column.take(self.rows)

    @property
    def row_numbers(self) -> list[int]:
        return list(range(len(self))) if self.rows is None else self.rows.tolist()

    @property
    def names(self) -> list[str]:
        names = self.workspace.cluster.snapshot.nodes.name
        return [names[row] for row in self.row_numbers]

    @property
    def labels(self) -> list[dict[str, str]]:
        labels = self.workspace.cluster.snapshot.nodes.labels
        return [dict(labels[row]) for row in self.row_numbers]

    @property
    def free_cpu_millis(self) -> Ints:
        return self.ints(self.workspace.free_cpu_millis)

    @property
    def free_memory_mib(self) -> Ints:
        return self.ints(self.workspace.free_memory_mib)

    @property
    def free_storage_mib(self) -> Ints:
        return self.ints(self.workspace.free_storage_mib)

    @property
    def free_gpu_millis(self) -> Ints:
        return self.ints(self.workspace.free_gpu_millis)
