"""Contact with the agents of nodes: their keys, their heartbeats, and the lease of those who receive them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connection, transaction
from django.utils import timezone

from infra.db.prepared import ask
from scheduler import outbox
from scheduler.agent import PROTOCOL
from scheduler.core.lifecycle import NodeState
from scheduler.models import Node
from scheduler.services.cluster.inventory import Inventory, apply_inventory
from scheduler.services.cluster.quarantine import apply_health
from scheduler.state.db.sql import int_array

AGENT_PREFIX: Final = "muster_agent_"
#: A heartbeat is written at most this often.
HEARTBEAT_SECONDS: Final = 2.0
#: The lease of the web processes that agents call; while nobody holds it, no node counts as silent.
DOOR_SCOPE: Final = "agents-door"
DOOR_SECONDS: Final = 15.0
#: An agent stops its tasks at most this long before its node counts as lost.
FENCE_MARGIN_SECONDS: Final = 90


# ---------------------------------------------------------------- whose key is it


@dataclass(frozen=True, slots=True)
class KnownAgent:
    """The node whose agent called, and when it was last in contact before; None = never."""

    node: Node
    last_seen_at: datetime | None
    #: It has said before that it has tasks which the database does not know.
    has_unknown_tasks: bool = False


#: The columns that each call of an agent needs of its node; the rest are loaded on access.
_WANTED: Final = {
    "id", "cluster_id", "name", "address", "state", "boot_id", "agent_version", "agent_protocol", "cpu_millis",
    "agent_key_prefix", "agent_key_digest",
}  # fmt: skip
_COLUMNS: Final = [field.attname for field in Node._meta.concrete_fields if field.attname in _WANTED]
_OF_KEYS: Final = f"""
SELECT {", ".join(f"n.{name}" for name in _COLUMNS)}, h.last_seen_at,
    EXISTS (SELECT FROM scheduler_unknowntask u WHERE u.node_id = n.id)
FROM scheduler_node n LEFT JOIN scheduler_nodeheartbeat h ON h.node_id = n.id
WHERE n.agent_key_prefix = ANY(%s::text[])
"""  # noqa: S608


def agents_of_keys(keys: Iterable[str]) -> dict[str, KnownAgent]:
    """By key in plain text, the agent that has it; keys that no agent has are left out. One query."""
    halves = {key: split_key(key, AGENT_PREFIX) for key in keys}
    prefixes = sorted({prefix for prefix, _ in halves.values() if prefix})
    if not prefixes:
        return {}
    found: dict[str, list[KnownAgent]] = {}
    for *columns, last_seen_at, has_unknown in ask(_OF_KEYS, [prefixes]):
        node = Node.from_db(DEFAULT_DB_ALIAS, _COLUMNS, columns)
        found.setdefault(node.agent_key_prefix, []).append(KnownAgent(node, last_seen_at, has_unknown))
    return {
        key: agent
        for key, (prefix, secret) in halves.items()
        for agent in found.get(prefix, ())
        if hmac.compare_digest(agent.node.agent_key_digest, digest_of(secret))
    }


def split_key(plain: str, kind: str) -> tuple[str, str]:
    """Prefix and secret of a key of this kind; empty where it is none."""
    if not plain.startswith(kind):
        return "", ""
    prefix, _, secret = plain.removeprefix(kind).partition("_")
    return prefix[:16], secret


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


# ---------------------------------------------------------------- heartbeats


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What an agent says of itself with each message; `clock_ms` is its clock, since 1970."""

    agent: KnownAgent
    boot_id: str
    agent_version: str
    clock_ms: int
    inventory: Inventory | None = None
    protocol: int = PROTOCOL

    @property
    def changes_node(self) -> bool:
        node = self.agent.node
        return (
            node.state != NodeState.UP
            or node.boot_id != self.boot_id[:64]
            or node.agent_version != self.agent_version[:32]
            or node.agent_protocol != self.protocol
            or self.inventory is not None
        )


#: In the order of their nodes, so that two web processes that write some of the same do not wait in a circle.
_WRITE: Final = """
INSERT INTO scheduler_nodeheartbeat AS h (node_id, last_seen_at, lease_expires_at, clock_skew_ms)
SELECT v.id, clock_timestamp(), clock_timestamp() + make_interval(secs => %s), v.skew
FROM unnest(%s::bigint[], %s::int[]) AS v(id, skew) ORDER BY v.id
ON CONFLICT (node_id) DO UPDATE SET last_seen_at = excluded.last_seen_at,
    lease_expires_at = excluded.lease_expires_at, clock_skew_ms = excluded.clock_skew_ms
"""


def record_heartbeats(beats: Sequence[Heartbeat]) -> None:
    """Record calls of agents: extend the leases of their nodes, and write what has changed of the machines.

    One statement for the heartbeats that are due, which waits for no lock on nodes. Only a node that comes back, or
    one whose agent reports something new of the machine, is written itself, in a transaction of its own.
    """
    now = timezone.now()
    due = {beat.agent.node.pk: beat for beat in beats if _is_due(beat, now)}
    if due:
        skews = [_skew_ms(beat.clock_ms, now) for beat in due.values()]
        ask(_WRITE, [settings.MUSTER_NODE_SILENT_SECONDS, int_array(due), int_array(skews)])
    for beat in due.values():
        if beat.changes_node:
            _write_node(beat)


def _is_due(beat: Heartbeat, now: datetime) -> bool:
    last = beat.agent.last_seen_at
    return beat.changes_node or last is None or (now - last).total_seconds() >= HEARTBEAT_SECONDS


def _skew_ms(clock_ms: int, now: datetime) -> int:
    return max(-(2**31), min(2**31 - 1, clock_ms - int(now.timestamp() * 1000)))


@transaction.atomic
def _write_node(beat: Heartbeat) -> None:
    row = Node.objects.select_for_update(no_key=True).select_related("cluster").get(pk=beat.agent.node.pk)
    Node.objects.filter(pk=row.pk).update(
        boot_id=beat.boot_id[:64], agent_version=beat.agent_version[:32], agent_protocol=beat.protocol
    )
    if beat.inventory is not None:
        apply_inventory(row, beat.inventory)
    mark_up(row)
    if beat.inventory is not None and beat.inventory.health_problem is not None:
        apply_health(row, beat.inventory.health_problem)


def note_refused_agent(node: Node, *, version: str, protocol: int | None, why: str) -> None:
    """Show on the node that its agent was refused, and as what; the inventory of an agent that is served ends that.

    It is no heartbeat: a node whose agent is refused is silent, and is lost once its lease has run out.
    """
    Node.objects.filter(pk=node.pk).exclude(trouble=why[:200]).update(
        trouble=why[:200], agent_version=version[:32], agent_protocol=protocol
    )


def begin_contact(node: Node) -> None:
    """The first heartbeat of a node, or the first after its agent has got a new key; in the caller's transaction."""
    ask(_WRITE, [settings.MUSTER_NODE_SILENT_SECONDS, int_array([node.pk]), int_array([0])])
    mark_up(node)


def mark_up(node: Node) -> None:
    """Set the state of a locked node to up; one that is up already is not written."""
    if node.state == NodeState.UP:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE scheduler_node SET state = 'up', generation = generation + 1 WHERE id = %s", [node.pk]
        )
    node.state = NodeState.UP
    outbox.announce(outbox.CLUSTER_TOPIC)
    outbox.wake_planner(node.cluster_id, trigger="node")


# ---------------------------------------------------------------- leases


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
            cursor.execute(_EXTEND_ALL, [settings.MUSTER_NODE_SILENT_SECONDS])
        cursor.execute(
            "UPDATE scheduler_lease SET expires_at = clock_timestamp() + make_interval(secs => %s),"
            " token = token + %s WHERE scope = %s",
            [DOOR_SECONDS, 1 if was_shut else 0, DOOR_SCOPE],
        )


#: In the order in which heartbeats are written.
_EXTEND_ALL: Final = """
WITH silent AS (
    SELECT h.node_id FROM scheduler_nodeheartbeat h JOIN scheduler_node n ON n.id = h.node_id
    WHERE n.state <> 'down' ORDER BY h.node_id FOR NO KEY UPDATE OF h
)
UPDATE scheduler_nodeheartbeat h SET lease_expires_at = clock_timestamp() + make_interval(secs => %s)
FROM silent WHERE h.node_id = silent.node_id
"""
