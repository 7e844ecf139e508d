"""Nodes are where the inventory service of the site says; here another portal's topology is the service's answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client

from accounts.models import AuditEvent
from infra.errors import Conflict
from infra.models import Circuit
from scheduler.models import Node
from scheduler.services.cluster.inventory_service import BadAnswer, ask_for_places, follow_inventory
from scheduler.services.cluster.settings import save_settings
from tests.support.factories import ClusterFactory, NodeFactory, OperatorFactory, bearer

pytestmark = pytest.mark.django_db


class Service:
    """A real HTTP server with one answer."""

    def __init__(self) -> None:
        self.body, self.status, self.asked = b"", 200, list[tuple[str, str]]()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append((self.path, self.headers.get("Authorization", "")))
                self.send_response(service.status)
                self.send_header("Content-Length", str(len(service.body)))
                self.end_headers()
                self.wfile.write(service.body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def service(settings: LazySettings) -> Iterator[Service]:
    found = Service()
    threading.Thread(target=found.server.serve_forever, args=(0.02,), daemon=True).start()
    settings.INVENTORY_SERVICE_URL, settings.INVENTORY_SERVICE_TOKEN = found.url, "key"
    yield found
    found.server.shutdown()
    found.server.server_close()


def topology(*nodes: str, zone: Any = "z1", rack: Any = "r7") -> bytes:
    racks = [{"rack": rack, "nodes": [{"name": name} for name in nodes]}]
    return json.dumps({"clusters": [{"cluster": "c", "zones": [{"zone": zone, "racks": racks}]}]}).encode()


def test_the_topology_of_another_portal_gives_nodes_their_places(service: Service, client: Client) -> None:
    cluster = ClusterFactory()
    moved = NodeFactory(cluster=cluster, name="n1", zone="east", rack="a1")
    nowhere = NodeFactory(cluster=cluster, name="n2")
    service.body = client.get("/api/v1/topology", headers=bearer(OperatorFactory(), "nodes:read")).content
    Node.objects.update(zone="", rack="b2")

    assert follow_inventory() == 1
    assert follow_inventory() == 0  # nothing else to write

    assert service.asked[0] == ("/api/v1/topology", "Bearer key")
    moved.refresh_from_db()
    nowhere.refresh_from_db()
    assert (moved.zone, moved.rack) == ("east", "a1")
    assert (nowhere.zone, nowhere.rack) == ("", "b2")  # the service names no place: the node keeps its own
    [row] = AuditEvent.objects.filter(action="node.edit")
    assert (row.before, row.after) == ({"zone": "", "rack": "b2"}, {"zone": "east", "rack": "a1"})


def test_a_place_is_not_changed_by_hand_where_the_service_decides(service: Service) -> None:
    node = NodeFactory(name="n1", rack="a1")
    node.rack = "other"

    with pytest.raises(
        Conflict, match="INVENTORY_SERVICE_URL is set: the inventory service decides the rack of n1"
    ):
        save_settings(thing=node, changed_fields=["rack"], by=OperatorFactory(), reason="try")


@pytest.mark.parametrize(
    "body",
    [
        b"not JSON", b"[]", b'{"clusters": [{"zones": 3}]}',
        topology("n1", rack=None), topology("n1", rack="x" * 81), topology("n1", zone="a\nb"),
    ],
)  # fmt: skip
def test_an_answer_that_is_no_topology_changes_nothing(service: Service, body: bytes) -> None:
    node = NodeFactory(name="n1", rack="a1")
    service.body = body

    assert follow_inventory() == 0

    node.refresh_from_db()
    assert node.rack == "a1"
    [row] = Circuit.objects.all()
    assert (row.system, row.failures) == ("inventory", 1)


def test_a_service_that_fails_is_left_alone_for_a_while_and_then_asked_again(service: Service) -> None:
    NodeFactory(name="n1")
    service.status = 404
    for _ in range(3):
        follow_inventory()
    asked = len(service.asked)

    follow_inventory()
    assert len(service.asked) == asked == 3  # the circuit is open

    Circuit.objects.update(open_until="2020-01-01T00:00:00Z")
    service.status, service.body = 200, topology("n1")
    assert follow_inventory() == 1
    assert not Circuit.objects.exists()


def test_nobody_is_asked_without_the_setting(settings: LazySettings, service: Service) -> None:
    settings.INVENTORY_SERVICE_URL = ""

    assert follow_inventory() == 0
    assert service.asked == []


def test_a_service_that_is_away_says_so() -> None:
    with pytest.raises(BadAnswer, match="No answer"):
        ask_for_places("http://127.0.0.1:9")
