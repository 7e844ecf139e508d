"""The circuit of each webhook receiver."""

from __future__ import annotations

from urllib.parse import urlsplit

from infra.circuits.shared import SharedCircuit
from infra.models import System
from notifications.models import Endpoint


def circuit_of(endpoint: Endpoint) -> SharedCircuit:
    """While it is open, messages to this endpoint wait and keep their tries."""
    return SharedCircuit(System.WEBHOOK, str(endpoint.pk), label=urlsplit(endpoint.url).hostname or "")
