"""Nodes: machines register and report, and operators cordon and drain them."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import Conflict, InvalidInput, NotAllowed
from infra.plain_text import check_line
from infra.times_in_text import written
from scheduler import outbox
from scheduler.agent import PROTOCOL
from scheduler.core.lifecycle import NodeState
from scheduler.models import (
    DRAINED_BY_UNKNOWN_TASKS,
    Cluster,
    JoinToken,
    Node,
    NodeHeartbeat,
    Partition,
)
from scheduler.services.cluster.heartbeats import AGENT_PREFIX, begin_contact, digest_of, split_key
from scheduler.services.cluster.inventory import apply_inventory, read_inventory
from scheduler.services.cluster.unknown_tasks import stop_unknown

JOIN_PREFIX: Final = "muster_join_"


@dataclass(frozen=True, slots=True)
class Registration:
    """A registered node and its key in plain text; only the digest of the key is stored."""

    node: Node
    agent_key: str


# ---------------------------------------------------------------- keys


def issue_join_token(*, cluster: Cluster, by: User | None, days: int = 365) -> tuple[JoinToken, str]:
    """A token that lets machines register in this cluster, and its plain text, shown once."""
    if by is not None:
        permissions.require(by, "operate", cluster)
    prefix, secret, plain = _new_key(JOIN_PREFIX)
    with transaction.atomic():
        token = JoinToken.objects.create(
            cluster=cluster,
            prefix=prefix,
            digest=digest_of(secret),
            created_by=by.username if by else "local",
            expires_at=timezone.now() + timedelta(days=days),
        )
        audit.record(
            by=by, action="join_token.issue", thing=token,
            after={"cluster": cluster.slug, "prefix": prefix, "expires_at": token.expires_at.isoformat()},
        )  # fmt: skip
    return token, plain


def _cluster_of_join_token(plain: str) -> Cluster | None:
    fixed = settings.MUSTER_JOIN_TOKEN
    if fixed and hmac.compare_digest(plain.encode(), fixed.encode()):
        return Cluster.objects.order_by("id").first()
    prefix, secret = split_key(plain, JOIN_PREFIX)
    token = JoinToken.objects.filter(prefix=prefix).select_related("cluster").first() if prefix else None
    if token is None or not hmac.compare_digest(token.digest, digest_of(secret)):
        return None
    if token.revoked_at is not None or token.expires_at <= timezone.now():
        return None
    return token.cluster


def _new_key(kind: str) -> tuple[str, str, str]:
    prefix, secret = secrets.token_hex(5), secrets.token_urlsafe(32)
    return prefix, secret, f"{kind}{prefix}_{secret}"


# ---------------------------------------------------------------- register


def register_node(
    *, join_token: str, name: str, inventory: Mapping[str, Any], address: str = "", protocol: int = PROTOCOL
) -> Registration:
    """Register a machine, or give one that has lost its key a new one.

    The key of a node whose agent still reports is not replaced: a join token cannot take over a live node.
    Raises NotAllowed, Conflict or InvalidInput.
    """
    cluster = _cluster_of_join_token(join_token)
    if cluster is None:
        raise NotAllowed(
            message="The join token is unknown, revoked or expired.",
            code="bad-join-token",
            way_out="Make a new one with `manage.py join_token`.",
            status=401,
        )
    if not isinstance(name, str) or not 0 < len(name) <= 120 or "\0" in name:
        raise InvalidInput(message="`name` has to be text of 1 to 120 characters.")
    check_line(name, "name")
    machine = read_inventory(inventory)
    with transaction.atomic():
        node, created = Node.objects.get_or_create(
            cluster=cluster, name=name, defaults={"state": NodeState.DOWN, "registered_at": timezone.now()}
        )
        node = Node.objects.select_for_update(no_key=True).select_related("cluster").get(pk=node.pk)
        if not created and node.agent_key_digest and _is_alive(node):
            raise Conflict(
                message=f"A node named {name} is connected already, and its agent answers.",
                code="node-is-alive",
                way_out=f"Choose another name, or stop that agent and wait {settings.MUSTER_NODE_SILENT_SECONDS} s.",
            )
        prefix, secret, plain = _new_key(AGENT_PREFIX)
        node.agent_key_prefix, node.agent_key_digest = prefix, digest_of(secret)
        node.address, node.agent_protocol = address, protocol
        node.registered_at = timezone.now()
        node.save(
            update_fields=[
                "agent_key_prefix",
                "agent_key_digest",
                "address",
                "agent_protocol",
                "registered_at",
            ]
        )
        _join_partitions(node, machine.partitions)
        apply_inventory(node, machine)
        begin_contact(node)
        outbox.announce(outbox.node_topic(node.pk))  # a stream that still has the old key ends
        audit.record(
            by=None, action="node.register", thing=node,
            after={"cluster": cluster.slug, "address": address, "key_prefix": prefix, "new": created},
        )  # fmt: skip
    return Registration(node, plain)


def _is_alive(node: Node) -> bool:
    last = NodeHeartbeat.objects.filter(node=node).first()
    return node.state == NodeState.UP and last is not None and last.lease_expires_at > timezone.now()


def _join_partitions(node: Node, names: tuple[str, ...]) -> None:
    partitions = Partition.objects.filter(cluster=node.cluster)
    if names:
        found = list(partitions.filter(name__in=names))
        if missing := set(names) - {partition.name for partition in found}:
            raise InvalidInput(
                message=f"Cluster {node.cluster.slug} has no partition {', '.join(sorted(missing))}.",
                way_out="Create it in the admin, or start the agent without --partition.",
            )
        node.partitions.set(found)
    elif not node.partitions.exists() and (first := partitions.order_by("id").first()):
        node.partitions.add(first)


# ---------------------------------------------------------------- what people do


def cordon_node(*, node: Node, by: User, reason: str) -> Node:
    """Start no more jobs on the node; its running jobs continue."""
    return _set_flags(node, by, "node.cordon", reason, cordoned=True)


def drain_node(*, node: Node, by: User, reason: str, deadline: datetime | None = None) -> Node:
    """Start no more jobs on the node, and let its running jobs end, or with a deadline leave until then.

    Until the deadline jobs that make checkpoints are moved to other nodes, and what still runs then is requeued
    (`services.moves`). Drained again, a node has the new deadline or none. Raises NotAllowed and InvalidInput.
    """
    return _set_flags(node, by, "node.drain", reason, deadline=deadline, draining=True)


def uncordon_node(*, node: Node, by: User, reason: str = "") -> Node:
    """Let the node take jobs again, whether it was cordoned or drained; jobs that have not left yet stay.

    Tasks there that the database does not know are ended first: the node drains until it has none.
    """
    return _set_flags(node, by, "node.uncordon", reason, cordoned=False, draining=False)


@transaction.atomic
def _set_flags(
    node: Node, by: User, action: str, reason: str, *, deadline: datetime | None = None, **flags: bool
) -> Node:
    permissions.require(by, "operate", node)
    reason = " ".join(reason.split())
    check_line(reason, "reason")
    away = any(flags.values())
    if away and not reason:
        raise InvalidInput(
            message=f"Give the reason why {node.name} is taken out of service.",
            way_out="Give a reason; it is shown with the node.",
        )
    if deadline is not None and deadline <= timezone.now():
        raise InvalidInput(
            message=f"The deadline {written(deadline)} has passed.",
            way_out="Give one in the future, such as 2h; to stop the jobs at once, requeue or cancel them.",
        )
    row = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
    before = _out_of_service(row)
    for name, value in flags.items():
        setattr(row, name, value)
    row.drain_reason = reason[:200] if away else ""
    row.drained_by = by.username if away else ""
    row.drained_at = timezone.now() if away else None
    if "draining" in flags:
        row.drain_deadline_at = deadline
    unknown = [] if away else stop_unknown(row, because=f"{row.name} was uncordoned", at=timezone.now())
    if unknown:
        row.draining, row.drained_by, row.drained_at = True, DRAINED_BY_UNKNOWN_TASKS, timezone.now()
        row.drain_reason = f"Ends {len(unknown)} of its tasks, which the database does not know"
    row.generation = F("generation") + 1
    row.save(update_fields=_OUT_OF_SERVICE)
    row.refresh_from_db()
    outbox.announce(outbox.CLUSTER_TOPIC, outbox.node_topic(row.pk))
    outbox.wake_planner(row.cluster_id, trigger=action.replace(".", "-"))
    audit.record(
        by=by, action=action, thing=row, before=before, reason=reason,
        after=_out_of_service(row)
        | ({"unknown_tasks": [[task.task, task.epoch, task.job] for task in unknown]} if unknown else {}),
    )  # fmt: skip
    for name in _OUT_OF_SERVICE:
        setattr(node, name, getattr(row, name))
    return node


_OUT_OF_SERVICE: Final = (
    "cordoned", "draining", "drain_reason", "drained_by", "drained_at", "drain_deadline_at", "generation",
)  # fmt: skip


def _out_of_service(node: Node) -> dict[str, Any]:
    return {
        "cordoned": node.cordoned,
        "draining": node.draining,
        "reason": node.drain_reason,
        "deadline": node.drain_deadline_at,
    }
