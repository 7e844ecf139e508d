"""Idle cluster: why a cluster could never start a job, were all of it idle and open."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final

import numpy as np

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.cluster.workspace import Workspace
from scheduler.core.context.cycle_context import CycleContext
from scheduler.core.context.pending_reasons import PendingReasons
from scheduler.core.placement.candidates import Candidates
from scheduler.core.placement.filters import FilterQuery
from scheduler.core.placement.plugins import resolve
from scheduler.core.placement.shape import Shape
from scheduler.core.plan import Decision
from scheduler.core.policy import Policy
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons.shortfalls import never_fits
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import (
    DeviceColumns,
    NodeColumns,
    PendingColumns,
    ProjectColumns,
    QueueColumns,
    QuotaColumns,
    Snapshot,
)

#: Requests whose answers are cached; with more the cluster is indexed again, so that the memory is bounded whatever
#: models and amounts people ask for.
MOST_ANSWERS: Final = 4096

#: Reasons for which a limit or the job has to be changed, even when no other job runs.
QUOTA_REASONS: Final = frozenset({ReasonCode.EXCEEDS_MAX_QUOTA, ReasonCode.QUOTA_ZERO})

_RULES: Final = resolve(Policy())


def idle(snapshot: Snapshot) -> Snapshot:
    """The cluster of a snapshot with nothing running or waiting, and every node of it idle and open.

    Open: up, neither cordoned nor draining, and without labels, taints, partitions, time bounds, racks, zones,
    regions and isolation. Operators change these while a job waits, so a job that asks for them could start one day: it
    waits, as in Kubernetes. What the machines have stays.
    """
    nodes, devices, pools = snapshot.nodes, snapshot.devices, snapshot.pools
    return Snapshot.build(
        now_ms=snapshot.now_ms,
        nodes=NodeColumns(
            **{
                name: getattr(nodes, name)
                for name in (
                    "id", "name", "cpu_millis", "memory_mib", "storage_mib", "size_cpu_millis", "size_memory_mib",
                    "domains",
                )
            }
        ),
        devices=replace(
            devices,
            healthy=np.ones(len(devices), dtype=np.bool_),
            used_millis=np.zeros(len(devices), dtype=np.int64),
        ),
        pools=replace(pools, used=np.zeros(len(pools), dtype=np.int64)),
    )  # fmt: skip


class IdleCluster:
    """A cluster as `idle` makes it. Answers come from the planner's own filters, and are cached."""

    def __init__(self, snapshot: Snapshot, guard: AbstractContextManager[Any] | None = None) -> None:
        """`snapshot` is one that `idle` made; `guard` is held while an answer is made, where threads share it."""
        self.snapshot = snapshot
        self._guard = guard or nullcontext()
        self._index()

    @property
    def largest_cpu_millis(self) -> int:
        """The most CPU that any node has for one task."""
        nodes = self.snapshot.nodes
        cpu, size = nodes.cpu_millis, nodes.size_cpu_millis
        return int(np.where(size > 0, np.minimum(cpu, size), cpu).max(initial=0))

    def _index(self) -> None:
        cluster = ClusterIndex(self.snapshot)
        cluster.asks_one_domain = True  # the next request may, though no job of the snapshot does
        self._workspace = Workspace(cluster)
        self._answers: dict[tuple[RequestClass, Shape], tuple[Decision, ...]] = {}

    def never_fits(self, request: RequestClass, shape: Shape) -> tuple[Decision, ...]:
        """Why the nodes could never hold a job of this shape; empty when they could.

        Of a task that is larger than every node in several amounts, one decision for each of these. A cluster
        without nodes refuses nothing: the first may still join.
        """
        if not self._workspace.cluster.node_count:
            return ()
        asked, shape = open_request(request), open_shape(shape)
        answer = self._answers.get((asked, shape))
        if answer is None:
            with self._guard:
                if len(self._answers) >= MOST_ANSWERS:
                    self._index()
                answer = self._answers[asked, shape] = tuple(self._reasons(asked, shape))
        return answer

    def _reasons(self, request: RequestClass, shape: Shape) -> list[Decision]:
        found: list[Decision] = []
        rest: RequestClass | None = request
        while rest is not None:
            decision = self._first_reason(rest, shape)
            if decision is None or (found and not _is_about_one_task(decision)):
                break
            found.append(decision)
            rest = _without(rest, decision)
        return found

    def _first_reason(self, request: RequestClass, shape: Shape) -> Decision | None:
        return never_fits(Candidates(FilterQuery(request), self._workspace, _RULES), shape, _RULES)

    def never_allowed(self, request: RequestClass, tasks: int, lines: QuotaColumns) -> tuple[Decision, ...]:
        """Every quota line that is smaller than what such a job counts there, even when no other job runs.

        `lines` are those that the job counts on, as if none was below another.
        """
        snapshot = Snapshot.build(
            now_ms=0,
            nodes=NodeColumns.from_rows([(1, "")], ("id", "name")),
            devices=self._one_of_each_model(),
            classes=[open_request(request)],
            pending=PendingColumns.from_rows(
                [(1, 0, 1, 1, tasks)], ("id", "class_index", "queue_id", "project_id", "tasks")
            ),
            queues=QueueColumns.from_rows([(1, "")], ("id", "name")),
            projects=ProjectColumns.from_rows([(1, tuple(lines.id.tolist()))], ("id", "quota_line_ids")),
            quotas=lines,
        )
        context = CycleContext(ClusterIndex(snapshot), _RULES)
        job_class = context.job_classes.of(0)
        if not context.never_by_quota(job_class):
            return ()
        reasons = PendingReasons(context)
        found = (*reasons.quota(job_class), *reasons.model_quota(job_class))
        return tuple(decision for decision in found if decision.reason in QUOTA_REASONS)

    def _one_of_each_model(self) -> DeviceColumns:
        """What a quota line of one GPU model has to know of the cluster: which models there are."""
        devices = self.snapshot.devices
        kinds = sorted(set(zip(devices.model, devices.memory_mib.tolist(), strict=True)))
        return DeviceColumns.from_rows(
            ((number, 1, *kind) for number, kind in enumerate(kinds, 1)),
            ("id", "node_id", "model", "memory_mib"),
        )


def open_request(request: RequestClass) -> RequestClass:
    """The same request without what it says of labels, taints, partitions, topology and other jobs."""
    return replace(
        request,
        node_selector=(),
        tolerations=(),
        required_affinity=(),
        partition_ids=(),
        preferred_affinity=(),
        job_terms=(),
        task_term=None,
        cpu_limit_millis=0,
        memory_limit_mib=0,
    )


def open_shape(shape: Shape) -> Shape:
    """The same shape without what it says of racks, zones and regions; that all tasks be on one node stays."""
    on_one_node = shape.must and shape.pack == "node"
    return replace(shape, pack="node" if on_one_node else "", must=on_one_node, spread=None)


def _is_about_one_task(decision: Decision) -> bool:
    """Whether no node is large enough for one task, in one amount."""
    facts = dict(decision.facts)
    return facts.get("kind") == "node" and facts.get("resource") != "tasks"


def _without(request: RequestClass, decision: Decision) -> RequestClass | None:
    """The request without the amount that no node has for one task; None where that is not the reason."""
    facts = dict(decision.facts)
    if facts.get("gate") == "gpu_model" or (
        _is_about_one_task(decision) and facts["resource"] in ("gpus", "gpu_millis")
    ):
        per_task = replace(request.per_task, gpus=0, gpu_millis=0)
        return replace(request, per_task=per_task, gpu_model="", gpu_memory_mib=0)
    if not _is_about_one_task(decision):
        return None
    left: dict[str, Any] = {str(facts["resource"]): 0}
    return replace(request, per_task=replace(request.per_task, **left))
