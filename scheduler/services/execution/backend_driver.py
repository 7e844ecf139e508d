"""Drives backends that have no agents: finds their nodes, observes their tasks, submits, stops and suspends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from scheduler.agent.protocol import LOG_BATCH_BYTES, Assignment, Report
from scheduler.backends.base import Backend, Machine, QuotaRefused
from scheduler.backends.registry import backend_of
from scheduler.core.lifecycle import NodeState, StopReason
from scheduler.models import Cluster, Node, NodeHeartbeat
from scheduler.services.cluster.heartbeats import begin_contact
from scheduler.services.cluster.inventory import apply_inventory, read_inventory
from scheduler.services.execution import dispatch
from scheduler.services.execution.reports import apply_reports
from scheduler.services.jobs.logs import IncomingChunk, append_chunks

log = structlog.get_logger(__name__)

#: Nodes are looked at anew this often.
INVENTORY_SECONDS = 10.0


def drive_backend(cluster: Cluster) -> None:
    """Do for a backend without agents what an agent's sync does by itself: report, then take orders.

    A node that does not answer delays no other node; its silence ends its lease, as an agent's does.
    """
    backend = backend_of(cluster)
    if not backend.capabilities.is_driven:
        return
    away: ConnectionError | None = None
    for node in cluster.nodes.select_related("cluster").order_by("id"):
        try:
            _drive_node(backend, node)
        except ConnectionError as error:
            away = error
    if away is not None:
        raise away


def _drive_node(backend: Backend, node: Node) -> None:
    store_output(backend, node)
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


def store_output(backend: Backend, node: Node) -> None:
    """Store what tasks on this node have printed since the last time, as much as an agent sends at once."""
    stored = 0
    while stored < LOG_BATCH_BYTES and (more := _store_chunks(backend, node)):
        stored += more


def _store_chunks(backend: Backend, node: Node) -> int:
    """One chunk of each stream; answers how many bytes there were."""
    chunks = [
        IncomingChunk(one.task, one.epoch, one.stream, one.offset, one.data)
        for one in backend.output(node.name)
    ]
    if not chunks:
        return 0
    appended = append_chunks(node=node, chunks=chunks)
    whole = {(one.task, one.stream): one.offset + len(one.data) for one in chunks}
    # Output of tasks that are no longer the node's is kept nowhere.
    gone = {key: end for key, end in whole.items() if key[0] in appended.gone}
    backend.keep_output(node.name, {**appended.next_offsets, **gone})
    return sum(len(one.data) for one in chunks)


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


# ---------------------------------------------------------------- nodes


def follow_machines(cluster: Cluster) -> None:
    """Make a node of each machine of the backend, keep what is known of it up to date, and extend its lease.

    A machine that does not answer says why on its node, and its lease runs out. A node whose machine the settings no
    longer name is left as it is: an operator removes it.
    """
    for machine in backend_of(cluster).machines():
        _follow_machine(cluster, machine)


@transaction.atomic
def _follow_machine(cluster: Cluster, machine: Machine) -> None:
    if machine.trouble:
        Node.objects.filter(cluster=cluster, name=machine.name).exclude(trouble=machine.trouble[:200]).update(
            trouble=machine.trouble[:200]
        )
        return
    inventory = read_inventory(dict(machine.inventory))
    node, _ = Node.objects.get_or_create(
        cluster=cluster,
        name=machine.name,
        defaults={"state": NodeState.DOWN, "registered_at": timezone.now()},
    )
    node = Node.objects.select_for_update(no_key=True).select_related("cluster").get(pk=node.pk)
    apply_inventory(node, inventory)
    begin_contact(node)


def is_due(cluster: Cluster) -> bool:
    """Whether the nodes of the cluster were not looked at lately, by this process or another."""
    seconds = min(INVENTORY_SECONDS, settings.MUSTER_NODE_SILENT_SECONDS / 3)
    latest = NodeHeartbeat.objects.filter(node__cluster=cluster).order_by("last_seen_at").first()
    return latest is None or latest.last_seen_at < timezone.now() - timedelta(seconds=seconds)
