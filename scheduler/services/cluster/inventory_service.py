"""Inventory service: zones and racks of nodes from a system of the site that INVENTORY_SERVICE_URL names.

The service answers `GET /api/v1/topology` as Muster does: clusters, in them zones, racks and nodes by name. A node that
the service does not name, and a place that has no name there, stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import urllib3
from django.conf import settings
from django.db import transaction

from accounts.services import audit
from infra.circuits.shared import SharedCircuit
from infra.errors import Conflict
from infra.models import System
from infra.plain_text import line_problem
from scheduler import outbox
from scheduler.models import Node

PATH: Final = "/api/v1/topology"
TIMEOUT_SECONDS: Final = 10.0
#: Of 100,000 nodes with eight GPUs each the answer has about this size.
MOST_BYTES: Final = 128 * 1024 * 1024
MOST_NAME: Final = 80

_pool = urllib3.PoolManager(num_pools=1, maxsize=1)
_RETRIES: Final = urllib3.Retry(total=2, backoff_factor=0.2, status_forcelist=(502, 503, 504), redirect=0)


class Place(NamedTuple):
    """Where a node is; an empty name says nothing."""

    zone: str
    rack: str


class BadAnswer(Exception):
    """The inventory service did not answer, or not in the form of a topology."""


def inventory_circuit() -> SharedCircuit:
    """The circuit of the inventory service."""
    return SharedCircuit(System.INVENTORY, label=str(settings.INVENTORY_SERVICE_URL))


def follow_inventory() -> int:
    """Give nodes the zones and racks that the inventory service names; the number of nodes that changed.

    Nothing is called without INVENTORY_SERVICE_URL. A service that fails is left alone for a while.
    """
    if not settings.INVENTORY_SERVICE_URL:
        return 0
    circuit = inventory_circuit()
    look = circuit.look()
    if look.open_until is not None:
        return 0
    try:
        places = ask_for_places(settings.INVENTORY_SERVICE_URL, settings.INVENTORY_SERVICE_TOKEN)
    except BadAnswer as error:
        circuit.failed(str(error))
        return 0
    if look.troubled:
        circuit.answered()
    return move_nodes(places)


def ask_for_places(url: str, token: str = "") -> dict[str, Place]:
    """By node name where the service says the node is; raises BadAnswer."""
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        answer = _pool.request(
            "GET", url.rstrip("/") + PATH, headers=headers, timeout=TIMEOUT_SECONDS, retries=_RETRIES,
            preload_content=False,
        )  # fmt: skip
        body = answer.read(MOST_BYTES + 1)
        answer.release_conn()
    except urllib3.exceptions.HTTPError as error:
        raise BadAnswer(f"No answer: {error}") from None
    if answer.status != 200:
        raise BadAnswer(f"The answer has the status {answer.status}.")
    if len(body) > MOST_BYTES:
        raise BadAnswer(f"The answer is longer than {MOST_BYTES:,} bytes.")
    try:
        return dict(_places(json.loads(body)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadAnswer(f"The answer is no topology ({type(error).__name__}: {error}).") from None


def _places(topology: Mapping[str, Any]) -> Iterator[tuple[str, Place]]:
    for cluster in topology["clusters"]:
        for zone in cluster["zones"]:
            for rack in zone["racks"]:
                place = Place(_name(zone["zone"]), _name(rack["rack"]))
                for node in rack["nodes"]:
                    yield _name(node["name"]), place


def _name(text: Any) -> str:
    if not isinstance(text, str) or len(text) > MOST_NAME or line_problem(text):
        raise ValueError(f"{str(text)[:40]!r} is no name of at most {MOST_NAME} characters")
    return text


@transaction.atomic
def move_nodes(places: Mapping[str, Place]) -> int:
    """Write these places, with an audit row for each node that changes; the number of nodes that changed."""
    there = Node.objects.filter(name__in=places).order_by("pk").values_list("pk", "name", "zone", "rack")
    moved = [pk for pk, name, zone, rack in there if _after(places[name], zone, rack) != (zone, rack)]
    entries: list[audit.Entry] = []
    clusters: set[int] = set()
    for node in Node.objects.select_for_update().filter(pk__in=moved).order_by("pk"):
        before = {"zone": node.zone, "rack": node.rack}
        node.zone, node.rack = _after(places[node.name], node.zone, node.rack)
        if before == (after := {"zone": node.zone, "rack": node.rack}):
            continue
        node.generation += 1
        node.save(update_fields=["zone", "rack", "generation"])
        clusters.add(node.cluster_id)
        entries.append(
            audit.Entry(
                by=None, action="node.edit", thing=node, before=before, after=after,
                reason="Set by the inventory service.",
            )
        )  # fmt: skip
    for cluster_id in sorted(clusters):
        outbox.wake_planner(cluster_id, trigger="settings")
    if entries:
        outbox.announce(outbox.CLUSTER_TOPIC)
        audit.record_all(entries)
    return len(entries)


def _after(place: Place, zone: str, rack: str) -> tuple[str, str]:
    return place.zone or zone, place.rack or rack


def refuse_other_place(node: Node, before: Mapping[str, Any]) -> None:
    """Raise Conflict for a zone or rack by hand where the inventory service decides them."""
    if settings.INVENTORY_SERVICE_URL and before:
        for field in ("zone", "rack"):
            if getattr(node, field) != before[field]:
                raise Conflict(
                    message=f"INVENTORY_SERVICE_URL is set: the inventory service decides the {field} of {node.name}.",
                    way_out="Change the place there, or remove the setting.",
                )
