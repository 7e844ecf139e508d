"""The shape of a job: how many tasks, and how near to or far from each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler.core.placement.topology_spread import Spread


@dataclass(frozen=True, slots=True)
class Shape:
    """How many tasks, and what the job says about their spread (0 = says nothing)."""

    tasks: int = 1  # as few as are enough
    nodes: int = 0
    tasks_per_node: int = 0
    most: int = 0  # takes up to this many where they fit; 0 = just as many as are enough
    pack: str = ""  # how near to each other: node, rack, zone; "" = as the policy wishes
    must: bool = False  # and nowhere else
    spread: Spread | None = None  # over this many racks, zones or regions

    def sized(self, tasks: int) -> Shape:
        """The same with exactly this many tasks."""
        return replace(self, tasks=tasks, most=0)

    @property
    def is_possible(self) -> bool:
        """Whether the three numbers can be true together on any cluster."""
        if self.nodes > self.tasks:
            return False
        if self.nodes and self.tasks_per_node:
            return -(-self.tasks // self.tasks_per_node) == self.nodes
        return True
