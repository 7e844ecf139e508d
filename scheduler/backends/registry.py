"""Finds the backend of a cluster by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scheduler.backends.agents.backend import AgentsBackend
from scheduler.backends.base import Backend, Capabilities
from scheduler.models import Cluster

_FACTORIES: Final[dict[str, Callable[[], Backend]]] = {"agents": AgentsBackend}
_made: dict[str, Backend] = {}


class UnknownBackend(LookupError):
    """The cluster names a backend that this installation does not have."""


def backend_of(cluster: Cluster) -> Backend:
    """The backend that runs this cluster's attempts; one object for each kind and process."""
    return _named(str(cluster.backend), f"cluster {cluster.slug}")


def capabilities_of(name: str) -> Capabilities:
    """What the backend of this name can do; raises UnknownBackend."""
    return _named(name, "a caller").capabilities


def _named(name: str, who: str) -> Backend:
    if name not in _made:
        if name not in _FACTORIES:
            raise UnknownBackend(f"{who} names the backend {name}, which is not installed")
        _made[name] = _FACTORIES[name]()
    return _made[name]


def use_backend(name: str, backend: Backend | None) -> None:
    """Have this name mean a ready backend; None makes it mean the installed one again."""
    if backend is None:
        _made.pop(name, None)
    else:
        _made[name] = backend


def installed() -> list[str]:
    return sorted(_FACTORIES.keys() | _made.keys())
