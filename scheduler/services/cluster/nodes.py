"""Nodes: machines register and report, and operators cordon and drain them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connection, transaction
from django.db.models import F
from django.utils import timezone

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.db.prepared import ask
from infra.errors import Conflict, InvalidInput, NotAllowed
from infra.plain_text import check_line
from scheduler import outbox
from scheduler.core.lifecycle import NodeState
from scheduler.models import Cluster, JoinToken, Node, Partition
from scheduler.services.cluster.inventory import Inventory, apply_inventory, read_inventory

JOIN_PREFIX: Final = "muster_join_"
AGENT_PREFIX: Final = "muster_agent_"
#: A node's row is written at most this often.
HEARTBEAT_SECONDS: Final = 2.0
#: The lease of the web processes that agents call; while nobody holds it, no node counts as silent.
DOOR_SCOPE: Final = "agents-door"
DOOR_SECONDS: Final = 15.0
#: An agent stops its tasks at most this long before its node counts as lost.
FENCE_MARGIN_SECONDS: Final = 90


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
            digest=_digest(secret),
            created_by=by.username if by else "local",
            expires_at=timezone.now() + timedelta(days=days),
        )
        audit.record(
            by=by, action="join_token.issue", thing=token,
            after={"cluster": cluster.slug, "prefix": prefix, "expires_at": token.expires_at.isoformat()},
        )  # fmt: skip
    return token, plain


def node_of_key(plain: str) -> Node | None:
    """The node whose agent has this key."""
    prefix, secret = _split(plain, AGENT_PREFIX)
    if not prefix:
        return None
    rows = ask(_OF_KEY, [prefix])
    if not rows:
        return None
    node = Node.from_db(DEFAULT_DB_ALIAS, _KNOWN, rows[0])
    return node if hmac.compare_digest(node.agent_key_digest, _digest(secret)) else None


#: The columns that each call of an agent needs of its node; the rest are loaded on access.
_WANTED: Final = {
    "id", "cluster_id", "name", "address", "state", "last_seen_at", "boot_id", "cpu_millis", "agent_key_digest",
}  # fmt: skip
_KNOWN: Final = [field.attname for field in Node._meta.concrete_fields if field.attname in _WANTED]
_OF_KEY: Final = (
    f"SELECT {', '.join(_KNOWN)} FROM scheduler_node WHERE agent_key_prefix = %s ORDER BY id LIMIT 1"  # noqa: S608
)


def _cluster_of_join_token(plain: str) -> Cluster | None:
    fixed = settings.MUSTER_JOIN_TOKEN
    if fixed and hmac.compare_digest(plain.encode(), fixed.encode()):
        return Cluster.objects.order_by("id").first()
    prefix, secret = _split(plain, JOIN_PREFIX)
    token = JoinToken.objects.filter(prefix=prefix).select_related("cluster").first() if prefix else None
    if token is None or not hmac.compare_digest(token.digest, _digest(secret)):
        return None
    if token.revoked_at is not None or token.expires_at <= timezone.now():
        return None
    return token.cluster


def _new_key(kind: str) -> tuple[str, str, str]:
    prefix, secret = secrets.token_hex(5), secrets.token_urlsafe(32)
    return prefix, secret, f"{kind}{prefix}_{secret}"


def _split(plain: str, kind: str) -> tuple[str, str]:
    if not plain.startswith(kind):
        return "", ""
    prefix, _, secret = plain.removeprefix(kind).partition("_")
    return prefix[:16], secret


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


# ---------------------------------------------------------------- register and answer


def register_node(
    *, join_token: str, name: str, inventory: Mapping[str, Any], address: str = ""
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
        node.agent_key_prefix, node.agent_key_digest = prefix, _digest(secret)
        node.address = address
        node.registered_at = timezone.now()
        node.save(update_fields=["agent_key_prefix", "agent_key_digest", "address", "registered_at"])
        _join_partitions(node, machine.partitions)
        apply_inventory(node, machine)
        _mark_up(node)
        audit.record(
            by=None, action="node.register", thing=node,
            after={"cluster": cluster.slug, "address": address, "key_prefix": prefix, "new": created},
        )  # fmt: skip
    return Registration(node, plain)


def _is_alive(node: Node) -> bool:
    return (
        node.state == NodeState.UP
        and node.lease_expires_at is not None
        and node.lease_expires_at > timezone.now()
    )


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


def record_heartbeat(
    node: Node, *, boot_id: str, agent_version: str, clock_ms: int, inventory: Inventory | None = None
) -> None:
    """Record a call of the node's agent: extend the node's lease, and write what the agent reports."""
    now = timezone.now()
    recent = node.last_seen_at is not None and (now - node.last_seen_at).total_seconds() < HEARTBEAT_SECONDS
    if recent and node.state == NodeState.UP and node.boot_id == boot_id and inventory is None:
        return
    skew_ms = max(-(2**31), min(2**31 - 1, clock_ms - int(now.timestamp() * 1000)))
    with transaction.atomic():
        row = Node.objects.select_for_update(no_key=True).select_related("cluster").get(pk=node.pk)
        Node.objects.filter(pk=node.pk).update(
            boot_id=boot_id[:64], agent_version=agent_version[:32], clock_skew_ms=skew_ms
        )
        if inventory is not None:
            apply_inventory(row, inventory)
        _mark_up(row)


def _mark_up(node: Node) -> None:
    """Set the state to up and extend the lease, by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE scheduler_node SET state = 'up', last_seen_at = clock_timestamp(),"
            " lease_expires_at = clock_timestamp() + make_interval(secs => %s),"
            " generation = generation + CASE WHEN state = 'up' THEN 0 ELSE 1 END WHERE id = %s",
            [settings.MUSTER_NODE_SILENT_SECONDS, node.pk],
        )
    if node.state != NodeState.UP:
        node.state = NodeState.UP
        outbox.announce(outbox.CLUSTER_TOPIC)
        outbox.wake_planner(node.cluster_id, trigger="node")


def fence_seconds() -> float:
    """Seconds without contact after which an agent stops its tasks: before their resources go to other jobs.

    0 means never: the time until a node counts as lost is too short to stop tasks in.
    """
    lost, silent = settings.MUSTER_NODE_LOST_SECONDS, settings.MUSTER_NODE_SILENT_SECONDS
    fence = lost - min(FENCE_MARGIN_SECONDS, lost / 3)
    return float(fence) if fence > silent else 0.0


def keep_door_open() -> None:
    """Renew the lease of the web processes that agents call; after a gap, extend the leases of all nodes first.

    While no web process ran, no agent could report: no node may count as lost for that.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO scheduler_lease (scope, holder, token, expires_at) VALUES (%s, '', 0, NULL)"
            " ON CONFLICT (scope) DO NOTHING",
            [DOOR_SCOPE],
        )
        cursor.execute(
            "SELECT coalesce(expires_at <= clock_timestamp(), true) FROM scheduler_lease"
            " WHERE scope = %s FOR NO KEY UPDATE",
            [DOOR_SCOPE],
        )
        (was_shut,) = cursor.fetchone()
        if was_shut:
            cursor.execute(
                "UPDATE scheduler_node SET"
                " lease_expires_at = clock_timestamp() + make_interval(secs => %s)"
                " WHERE lease_expires_at IS NOT NULL AND state <> 'down'",
                [settings.MUSTER_NODE_SILENT_SECONDS],
            )
        cursor.execute(
            "UPDATE scheduler_lease SET expires_at = clock_timestamp() + make_interval(secs => %s),"
            " token = token + %s WHERE scope = %s",
            [DOOR_SECONDS, 1 if was_shut else 0, DOOR_SCOPE],
        )


# ---------------------------------------------------------------- what people do


def cordon_node(*, node: Node, by: User, reason: str) -> Node:
    """Start no more jobs on the node; its running jobs continue."""
    return _set_flags(node, by, "node.cordon", reason, cordoned=True)


def drain_node(*, node: Node, by: User, reason: str) -> Node:
    """Start no more jobs on the node and let its running jobs end."""
    return _set_flags(node, by, "node.drain", reason, draining=True)


def uncordon_node(*, node: Node, by: User, reason: str = "") -> Node:
    """Let the node take jobs again, whether it was cordoned or drained."""
    return _set_flags(node, by, "node.uncordon", reason, cordoned=False, draining=False)


@transaction.atomic
def _set_flags(node: Node, by: User, action: str, reason: str, **flags: bool) -> Node:
    permissions.require(by, "operate", node)
    reason = " ".join(reason.split())
    check_line(reason, "reason")
    away = any(flags.values())
    if away and not reason:
        raise InvalidInput(
            message=f"Give the reason why {node.name} is taken out of service.",
            way_out="Give a reason; it is shown with the node.",
        )
    row = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
    before = {"cordoned": row.cordoned, "draining": row.draining, "reason": row.drain_reason}
    for name, value in flags.items():
        setattr(row, name, value)
    row.drain_reason = reason[:200] if away else ""
    row.drained_by = by.username if away else ""
    row.drained_at = timezone.now() if away else None
    row.generation = F("generation") + 1
    row.save(update_fields=["cordoned", "draining", "drain_reason", "drained_by", "drained_at", "generation"])
    row.refresh_from_db()
    outbox.announce(outbox.CLUSTER_TOPIC, outbox.node_topic(row.pk))
    outbox.wake_planner(row.cluster_id, trigger=action.replace(".", "-"))
    audit.record(
        by=by, action=action, thing=row, before=before, reason=reason,
        after={"cordoned": row.cordoned, "draining": row.draining, "reason": row.drain_reason},
    )  # fmt: skip
    for name in ("cordoned", "draining", "drain_reason", "drained_by", "drained_at", "generation"):
        setattr(node, name, getattr(row, name))
    return node
