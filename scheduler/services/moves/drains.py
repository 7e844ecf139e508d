"""Drains of one node or of several, with a deadline: what is asked for, what it would mean, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import QuerySet
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from scheduler.models import Node
from scheduler.services.cluster.nodes import drain_node
from scheduler.services.moves.drain_plan import DrainPlan, plan_drain
from scheduler.services.submission.fields import BadValue, Inputs, read_moment, read_seconds

#: Nodes of one drain.
MOST_NODES: Final = 500
_SELECTORS: Final = ("nodes", "labels", "rack", "zone", "cluster")
_FIELDS: Final = (*_SELECTORS, "deadline", "reason", "dry_run")


@dataclass(frozen=True, slots=True)
class AskedDrain:
    """A drain as a person asks for it."""

    nodes: tuple[Node, ...]
    deadline: datetime | None
    reason: str
    dry_run: bool = False


def read_deadline(value: Any) -> datetime:
    """A moment in the future, from `2h`, `90` (seconds) or `2027-01-31T18:00:00Z`. Raises BadValue."""
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and "T" in text[:11].upper():
        deadline = read_moment(text)
    else:
        try:
            deadline = timezone.now() + timedelta(seconds=read_seconds(text))
        except BadValue as broken:
            raise BadValue(f"{broken}, or a date and time such as 2027-01-31T18:00:00Z") from broken
    if deadline <= timezone.now():
        raise BadValue("The deadline has passed; give a deadline in the future, such as 2h")
    return deadline


def read_drain(payload: Mapping[str, Any]) -> AskedDrain:
    """The nodes of a drain by name, labels, rack or zone, with its deadline and reason. Raises InvalidInput."""
    inputs = Inputs(payload)
    inputs.refuse_unknown(_FIELDS)
    deadline = inputs.read("deadline", read_deadline)
    reason = inputs.text("reason", most=200)
    dry_run = inputs.flag("dry_run", default=False)
    nodes = _nodes(inputs)
    inputs.finish("The nodes cannot be drained")
    return AskedDrain(tuple(nodes), deadline, reason, dry_run)


def read_drain_of(payload: Mapping[str, Any], node: Node) -> AskedDrain:
    """Deadline and reason of the drain of one node. Raises InvalidInput."""
    inputs = Inputs(payload)
    inputs.refuse_unknown(("deadline", "reason"))
    deadline = inputs.read("deadline", read_deadline)
    reason = inputs.text("reason", most=200)
    inputs.finish(f"Node {node.name} cannot be drained")
    return AskedDrain((node,), deadline, reason)


def drain(asked: AskedDrain, *, by: User) -> DrainPlan:
    """Drain these nodes, one transaction each, or with `dry_run` none; answers what that means for their jobs.

    A plan is of the moment: places may be taken until a job has saved. Raises NotAllowed and InvalidInput.
    """
    permissions.require(by, "operate")
    if not asked.dry_run:
        for node in asked.nodes:
            drain_node(node=node, by=by, reason=asked.reason, deadline=asked.deadline)
    return plan_drain(asked.nodes, asked.deadline)


def drain_of(node: Node, *, by: User, payload: Mapping[str, Any] | None = None) -> DrainPlan:
    """What is left on a node, and what a drain makes of that: with its own deadline, or that of `payload`.

    Raises NotAllowed and InvalidInput.
    """
    permissions.require(by, "operate")
    inputs = Inputs(payload or {})
    inputs.refuse_unknown(("deadline",))
    deadline = inputs.read("deadline", read_deadline, default=node.drain_deadline_at)
    inputs.finish("There is no such drain")
    return plan_drain((node,), deadline)


def _nodes(inputs: Inputs) -> list[Node]:
    rows = _chosen(inputs)
    if inputs.problems:
        return []
    named = _names(inputs)
    nodes = list(rows.select_related("cluster").order_by("cluster_id", "name")[: MOST_NODES + 1])
    if missing := sorted(set(named) - {node.name for node in nodes}):
        inputs.wrong("nodes", _why_missing(missing), code="not-found")
    elif not nodes:
        inputs.wrong("nodes", "No node matches.", code="not-found")
    elif len(nodes) > MOST_NODES:
        inputs.wrong("nodes", f"More than {MOST_NODES} nodes match; drain them in parts.", code="too-many")
    elif len({node.cluster_id for node in nodes}) > 1:
        inputs.wrong("cluster", "Nodes of several clusters match; name the cluster.", code="inconsistent")
    return nodes


def _why_missing(names: list[str]) -> str:
    there = list(Node.objects.filter(name__in=names).order_by("name").values_list("name", flat=True)[:5])
    if there:
        return (
            f"Not all conditions hold for {', '.join(map(repr, there))}: leave out the node, or a condition."
        )
    known = ", ".join(Node.objects.order_by("name").values_list("name", flat=True)[:20]) or "none"
    return f"There is no node {', '.join(map(repr, names))[:120]}. There is: {known}."


def _names(inputs: Inputs) -> list[str]:
    return [str(one) for one in inputs.listing("nodes", most=MOST_NODES, or_one=True)]


def _chosen(inputs: Inputs) -> QuerySet[Node]:
    """The nodes for which all holds that is given; without any condition that is a problem."""
    named = _names(inputs)
    labels = {str(key): str(value) for key, value in inputs.mapping("labels", most=16).items()}
    for name, texts in (("nodes", named), ("labels", [*labels, *labels.values()])):
        if any("\x00" in text or len(text) > 255 for text in texts):
            inputs.wrong(name, "Must be names of at most 255 characters.", code="bad-text")
    found: dict[str, Any] = {"name__in": named} if named else {}
    if labels:
        found["labels__contains"] = labels
    for name in ("rack", "zone"):
        if text := inputs.text(name, most=80):
            found[name] = text
    if not found and not inputs.problems:
        inputs.wrong("nodes", "Required, or labels, rack or zone: which nodes are drained.", code="required")
    if cluster := inputs.text("cluster", most=80):
        found["cluster__slug"] = cluster
    return Node.objects.filter(**found)
