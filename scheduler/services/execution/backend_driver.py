"""Drives backends that have no agents: observes their tasks, submits new ones, stops and suspends others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.agent.protocol import Assignment, Report
from scheduler.backends.base import QuotaRefused
from scheduler.backends.registry import backend_of
from scheduler.core.lifecycle import StopReason
from scheduler.models import Cluster, Node
from scheduler.services.execution import dispatch
from scheduler.services.execution.reports import apply_reports


def drive_backend(cluster: Cluster) -> None:
    """Do for a backend without agents what an agent's sync does by itself: report, then take orders."""
    backend = backend_of(cluster)
    if not backend.capabilities.is_driven:
        return
    for node in cluster.nodes.select_related("cluster").order_by("id"):
        observation = backend.observe(node.name)
        stale = apply_reports(node=node, reports=observation.reports)
        backend.stop(node.name, dispatch.stale_stops(stale))
        orders = dispatch.orders_for(node, observation.known)
        backend.stop(node.name, orders.stops)
        try:
            backend.submit(node.name, orders.assignments)
        except QuotaRefused as refused:
            send_back(node, orders.assignments, refused.tasks)
        backend.pause(node.name, orders.pauses)
        backend.verify(node.name, orders.verify)


def send_back(node: Node, assignments: Sequence[Assignment], refused: Mapping[int, str]) -> None:
    """Queue the jobs again, with the reason, of tasks that a quota of the backend refused: they never started."""
    apply_reports(
        node=node,
        reports=[
            Report(
                task=assignment["task"],
                epoch=assignment["epoch"],
                state="stopped",
                stop_reason=StopReason.QUOTA_REFUSED.value,
                text=refused[assignment["task"]][:300],
            )
            for assignment in assignments
            if assignment["task"] in refused
        ],
    )
