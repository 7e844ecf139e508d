"""The cycle context: the indexed cluster, the scratch capacity and the rules that every step of a cycle uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from quotas.core.gpu_models import model_matches
from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.job_charges import LineCharges, OpenLine
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.context.line_needs import LineNeeds
from scheduler.core.context.reserved_parts import PartUse, ReservedParts, View
from scheduler.core.context.reserved_view import ReservedView
from scheduler.core.placement.binding import largest
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.equivalence import JobClass, JobClasses
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.plugins import Rules
from scheduler.core.plan import Decision, Placement
from scheduler.core.reasons.shortfalls import never_fits

#: What no device is called: every model that the request allows is closed to its payer.
NO_MODEL: Final = "none that its quota allows"


class CycleContext:
    """What the steps of one cycle share; answers about a class of jobs are found once and kept.

    A class of jobs (`JobClass`) has an equal request, shape, queue and project. The context decides; why a job
    waits is said by `PendingReasons`.
    """

    def __init__(self, cluster: ClusterIndex, rules: Rules) -> None:
        self.cluster = cluster
        self.workspace = Workspace(cluster)
        self.rules = rules
        self._rules = (rules, *(own for _, own in rules.queues))
        numbers = {queue_id: number for number, (queue_id, _) in enumerate(rules.queues, 1)}
        self.job_classes = JobClasses(cluster, numbers)
        self.parts = ReservedParts(cluster)
        self._views: dict[View, ReservedView] = {}
        self._candidates: dict[int, Candidates] = {}
        self._narrowed: dict[tuple[int, str], Candidates] = {}
        self._never: dict[int, Decision | None] = {}

    @cached_property
    def line_needs(self) -> LineNeeds:
        """What all classes of jobs count on quota lines, whatever devices they are given."""
        return LineNeeds(self.cluster, self.job_classes)

    def rules_of(self, query: FilterQuery) -> Rules:
        """The rules by which nodes are chosen for a query: its queue's own, or the cluster's."""
        return self._rules[query.rules]

    def workspace_of(self, query: FilterQuery) -> Workspace:
        """What is free for the jobs of a query: the workspace, or what reservations of parts of nodes leave of it."""
        view = self.parts.view_of(query)
        return self.workspace if view is None else self.view(view)

    def view(self, view: View) -> ReservedView:
        """What is free for the jobs that certain reservations of parts of nodes concern."""
        if view not in self._views:
            self._views[view] = ReservedView(self.cluster, self.workspace, self.parts, view)
        return self._views[view]

    def on_whole_nodes(self, job_class: JobClass) -> JobClass:
        """The class as it is planned where nodes are cleared or gathered: without nodes of which a part is reserved."""
        query = job_class.query
        if self.parts.view_of(query) is None:
            return job_class
        number = -1 - job_class.query_number
        return job_class._replace(query=replace(query, whole_nodes=True), query_number=number)

    def count_start(
        self, job_class: JobClass, tasks: Iterable[tuple[int, int]], *, reserved: bool = False
    ) -> None:
        """Tell the reservations of parts of nodes of (node row, end in ms) of each task of a job that starts."""
        if self.parts.is_there:
            per_task = job_class.query.request.per_task
            uses = [PartUse(row, per_task.cpu_millis, per_task.memory_mib, until) for row, until in tasks]
            count = self.parts.reserve if reserved else self.parts.start
            count(job_class.query.inside, uses)

    def end_ms(self, row: int) -> int:
        """When the pending job in a row would be over, started now; far away where that is unknown."""
        snapshot = self.cluster.snapshot
        bound = snapshot.queues.max_wall_seconds.item(self.cluster.pending.queue.item(row))
        limit = snapshot.pending.time_limit_seconds.item(row) or bound
        return snapshot.now_ms + limit * 1000 if limit else int(np.iinfo(np.int64).max)

    def candidates(self, job_class: JobClass) -> Candidates:
        """The nodes for the query of a class of jobs; classes with an equal query share them."""
        if not self.cluster.charges.has_model_lines:
            return self._candidates.get(job_class.query_number) or self.whole_candidates(job_class)
        if (query := self.query(job_class)) is not job_class.query:
            key = (job_class.query_number, query.request.gpu_model)
            if key not in self._narrowed:
                self._narrowed[key] = Candidates(query, self.workspace_of(query), self.rules_of(query))
            return self._narrowed[key]
        return self.whole_candidates(job_class)

    def whole_candidates(self, job_class: JobClass) -> Candidates:
        """The nodes for all GPU models that the request allows, whatever quota says of these."""
        known = self._candidates.get(job_class.query_number)
        if known is None:
            query = job_class.query
            known = Candidates(query, self.workspace_of(query), self.rules_of(query))
            self._candidates[job_class.query_number] = known
        return known

    def query(self, job_class: JobClass) -> FilterQuery:
        """What nodes are asked: the query of the class, without the GPU models that quota is short of.

        A line for one model counts a job that may take any only by the devices it is given; so it is given
        none of a model whose lines have no room for all of it.
        """
        opened = self.open_lines(job_class)
        closed = {
            model
            for one in opened
            if self.workspace.limits.short_quota(((one.line, one.amount),)) is not None
            for model in one.models
        }
        if not closed:
            return job_class.query
        request = job_class.query.request
        models = self.cluster.devices.models_of(request.gpu_model, request.gpu_memory_mib)
        # A name that is the beginning of a closed one would let that in too.
        kept = [
            model
            for model in models
            if model not in closed and not any(model_matches(model, other) for other in closed)
        ]
        return replace(job_class.query, request=replace(request, gpu_model="|".join(kept) or NO_MODEL))

    def asks_whole(self, job_class: JobClass) -> bool:
        """Whether all models that the request allows are open to the class now."""
        return not self.cluster.charges.has_model_lines or self.query(job_class) is job_class.query

    def charges(self, job_class: JobClass, tasks: int = 0) -> LineCharges:
        """What a job of this class counts on quota lines whatever devices it is given; with `tasks`, that many."""
        return self.cluster.charges.certain(
            job_class.payer, job_class.class_index, tasks or job_class.shape.tasks
        )

    def open_lines(self, job_class: JobClass, tasks: int = 0) -> tuple[OpenLine, ...]:
        """The lines for one GPU model that count a job of this class only if it is given such devices."""
        return self.cluster.charges.open_lines(
            job_class.payer, job_class.class_index, tasks or job_class.shape.tasks
        )

    def charges_placed(self, job_class: JobClass, placements: Sequence[Placement]) -> LineCharges:
        """(quota row, amount) of every line that a job of this class counts on, placed so."""
        tasks = len(placements) or job_class.shape.tasks
        if not self.cluster.charges.has_model_lines or not placements:
            return self.charges(job_class, tasks)
        rows = self.cluster.devices.row
        return self.cluster.charges.placed(
            job_class.payer,
            job_class.class_index,
            tasks,
            (rows[device] for placement in placements for device in placement.device_ids),
            placements[0].gpu_millis,
        )

    def never(self, job_class: JobClass) -> Decision | None:
        """Why this can never start as written, however empty the cluster; None when it can."""
        if job_class.placement_class not in self._never:
            self._never[job_class.placement_class] = never_fits(
                self.whole_candidates(job_class), job_class.shape, self.rules_of(job_class.query)
            )
        return self._never[job_class.placement_class]

    def never_by_quota(self, job_class: JobClass) -> bool:
        """Whether the class asks for more than a quota line can ever give: a person must change a limit or the job.

        A line of one GPU model that is too small for the job leaves the other models, where there are any.
        """
        bound = self.workspace.limits.tree.bound
        charges = self.charges(job_class)
        if any(need > bound[line] for line, need in self.short_lines(charges)):
            return True
        opened = self.open_lines(job_class)
        closed = {model for one in opened if one.amount > bound[one.line] for model in one.models}
        request = job_class.query.request
        return bool(closed) and closed >= set(
            self.cluster.devices.models_of(request.gpu_model, request.gpu_memory_mib)
        )

    def short_lines(self, charges: LineCharges) -> list[tuple[int, int]]:
        """Every line without room, not only the first."""
        limits = self.workspace.limits.tree
        found = [(line, need) for line, need in charges if limits.used[line] + need > limits.bound[line]]
        if not found and (first := limits.short(charges)) is not None:
            found.append(first)
        return found

    def most_within_limits(self, job_class: JobClass) -> int:
        """How many tasks quotas and pools allow a job that is enough with fewer, where those are allowed."""
        workspace, request = self.workspace, job_class.query.request

        def allowed(tasks: int) -> bool:
            charges = self.charges(job_class, tasks)
            opened = self.open_lines(job_class, tasks)
            return (
                workspace.limits.short_quota(charges) is None
                and workspace.limits.short_pool(request, tasks) is None
                and all(
                    one.line in closed or workspace.limits.short_quota(((one.line, one.amount),)) is None
                    for one in opened
                )
            )

        closed = {
            one.line
            for one in self.open_lines(job_class)
            if workspace.limits.short_quota(((one.line, one.amount),)) is not None
        }

        return largest(job_class.shape.tasks, job_class.shape.most, allowed)
