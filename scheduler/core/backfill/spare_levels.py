"""Spare levels: workspaces of what is free now and beside the first reserved starts, asked by the same filters."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from scheduler.core.backfill.availability import Availability
from scheduler.core.backfill.future_use import Free, free_in, least_of
from scheduler.core.backfill.reserved_capacity import ReservedCapacity
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import NodeAmounts, Workspace
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.reserved_parts import View
from scheduler.core.placement.binding import choose_nodes
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.equivalence import JobClass


class SpareWorkspace(Workspace):
    """Scratch capacity of another moment than now."""

    def __init__(self, cluster: ClusterIndex, free: Free) -> None:
        super().__init__(
            cluster, NodeAmounts(free.cpu_millis, free.memory_mib, free.storage_mib, free.gpu_used)
        )
        if self.numa is not None:
            self.numa.become(free.domains)

    def match(self, row: int, now: Workspace, later: Free) -> None:
        """Let a node have free what it has free both now and later."""
        cpu_millis, memory_mib, storage_mib, used = now.free_on(row)
        first, last = self.cluster.devices.first[row], self.cluster.devices.first[row + 1]
        if used:
            used = list(map(max, used, later.gpu_used[first:last].tolist()))
        if self.numa is not None and now.numa is not None:
            self.numa.match(row, now.numa.free, later.domains)
        self.set_free(
            row,
            min(cpu_millis, later.cpu_millis.item(row)),
            min(memory_mib, later.memory_mib.item(row)),
            min(storage_mib, later.storage_mib.item(row)),
            used,
        )


class SpareLevels:
    """For each level the spare workspace, brought up to date when it is asked, and the candidates found in it.

    A job of level k must fit into what is free now *and* when each of the first k reserved starts begins, on the same
    nodes and devices.
    """

    def __init__(
        self, context: CycleContext, reserved: ReservedCapacity, availability: Callable[[], Availability]
    ) -> None:
        self.context, self._reserved, self._availability = context, reserved, availability
        self._levels: dict[int, _Level] = {}
        #: The same for jobs that reservations of parts of nodes concern.
        self._views: dict[tuple[int, View], _Level] = {}

    def clear(self) -> None:
        """Forget all levels: another start is reserved."""
        self._levels.clear()
        self._views.clear()

    def candidates(self, job_class: JobClass, level: int) -> Candidates | None:
        """The nodes for a class of jobs of a level above 0; None when not even what is free now has room for it."""
        context = self.context
        now = context.candidates(job_class)
        is_whole = context.asks_whole(job_class)
        view = context.parts.view_of(job_class.query)
        known = self._levels.get(level) if view is None else self._views.get((level, view))
        asked = known is not None and job_class.query_number in known.candidates
        if is_whole and not asked and choose_nodes(now, job_class.shape) is None:
            return None
        here = self._up_to_date(level) if view is None else self._seen(level, view)
        if not is_whole:
            return Candidates(context.query(job_class), here.workspace, context.rules_of(job_class.query))
        if job_class.query_number not in here.candidates:
            here.candidates[job_class.query_number] = Candidates(
                job_class.query, here.workspace, now.rules, like=now
            )
        return here.candidates[job_class.query_number]

    def is_up_to_date(self, level: int) -> bool:
        """Whether the workspace of a level has all that the cycle has handed out."""
        known = self._levels.get(level)
        return known is not None and known.log_length == self.context.workspace.columns.log_length

    def set_up_to_date(self, level: int) -> None:
        """The workspace of a level has all that the cycle has handed out: a job was started in both."""
        self._levels[level].log_length = self.context.workspace.columns.log_length

    def _up_to_date(self, level: int) -> _Level:
        workspace, known = self.context.workspace, self._levels.get(level)
        if known is None:
            free = free_in(workspace).least(self._reserved.least(level))
            spare = SpareWorkspace(self.context.cluster, free)
            spare.follow(workspace)
            known = self._levels[level] = _Level(spare, workspace.columns.log_length)
        if known.log_length < workspace.columns.log_length:
            least = self._reserved.least(level)
            touched = workspace.columns.log[known.log_length : workspace.columns.log_length].tolist()
            for row in dict.fromkeys(touched):
                known.workspace.match(row, workspace, least)
            known.workspace.follow(workspace)
            known.log_length = workspace.columns.log_length
        return known

    def _seen(self, level: int, view: View) -> _Level:
        """The workspace of a level as the jobs of a view see it."""
        context, key = self.context, (level, view)
        now, log = context.view(view), context.workspace.columns
        now.sync()
        known = self._views.get(key)
        if known is None:
            spare = SpareWorkspace(context.cluster, free_in(now).least(self._left(level, view)))
            spare.follow(context.workspace)
            known = self._views[key] = _Level(spare, log.log_length)
        if known.log_length < log.log_length:
            later = self._left(level, view)
            for row in dict.fromkeys(log.log[known.log_length : log.log_length].tolist()):
                known.workspace.match(row, now, later)
            known.workspace.follow(context.workspace)
            known.log_length = log.log_length
        return known

    def _left(self, level: int, view: View) -> Free:
        """What the first reserved starts leave the jobs of a view, and beside them each reservation that begins."""
        parts, availability = self.context.parts, self._availability()
        moments = self._reserved.each(level)
        moments += [
            (at_ms, availability.free_at(at_ms))
            for at_ms in parts.begins(view, self.context.cluster.snapshot.now_ms)
        ]
        found = [least_of(free, parts.kept(view, at_ms)) for at_ms, free in moments]
        return reduce(Free.least, found)


class _Level:
    """A spare workspace, the length that the log of the cycle's had when both were equal, and candidates by query."""

    __slots__ = ("candidates", "log_length", "workspace")

    def __init__(self, workspace: SpareWorkspace, log_length: int) -> None:
        self.workspace, self.log_length = workspace, log_length
        self.candidates: dict[int, Candidates] = {}
