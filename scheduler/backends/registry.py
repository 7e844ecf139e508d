"""Finds the backend of a cluster by its name; what is not installed cannot be chosen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from django.conf import settings

from infra.errors import InvalidInput
from scheduler.backends.agents.backend import AgentsBackend
from scheduler.backends.base import Backend, Capabilities
from scheduler.backends.docker.backend import CAPABILITIES as DOCKER_CAPABILITIES
from scheduler.backends.docker.backend import DockerBackend
from scheduler.backends.docker.hosts import read_docker_settings
from scheduler.models import Cluster


class UnknownBackend(LookupError):
    """The cluster names a backend that this installation does not have."""


@dataclass(frozen=True, slots=True)
class Installable:
    """A kind of backend: what it can do, how one is made for a cluster, and what it needs.

    `package` is the library that it needs, and `install` the way to get it. `check` raises InvalidInput where the
    cluster's settings cannot be used.
    """

    capabilities: Capabilities
    make: Callable[[Cluster], Backend]
    check: Callable[[Any], object]
    package: str = ""
    install: str = ""

    @property
    def is_installed(self) -> bool:
        return not self.package or find_spec(self.package) is not None


def _no_settings(data: Any) -> None:
    if data:
        raise InvalidInput(
            message="Nodes of this backend report themselves: the cluster needs no backend settings.",
            way_out="Leave the backend settings empty.",
        )


KINDS: Final[Mapping[str, Installable]] = {
    "agents": Installable(AgentsBackend.capabilities, lambda cluster: AgentsBackend(), _no_settings),
    "docker": Installable(
        DOCKER_CAPABILITIES,
        lambda cluster: DockerBackend(
            read_docker_settings(cluster.backend_settings),
            str(cluster.backend_key),
            log_cap_bytes=settings.MUSTER_LOG_CAP_BYTES,
        ),
        read_docker_settings,
        package="docker",
        install=".venv/bin/pip install docker==7.2.0",
    ),
}

#: Ready backends in the place of the installed ones, by name: for tests.
_replaced: dict[str, Backend] = {}
#: By cluster: the backend, and the name and settings that it was made from.
_made: dict[int, tuple[str, Backend]] = {}


def backend_of(cluster: Cluster) -> Backend:
    """The backend that runs this cluster's attempts: one object for each cluster and process, made anew once its
    settings have changed. Raises UnknownBackend, or InvalidInput for settings that cannot be used."""
    name = str(cluster.backend)
    if name in _replaced:
        return _replaced[name]
    kind = _kind(name, f"cluster {cluster.slug}")
    made_from = json.dumps([name, str(cluster.backend_key), cluster.backend_settings], sort_keys=True)
    before = _made.get(cluster.pk)
    if before is not None and before[0] == made_from:
        return before[1]
    backend = kind.make(cluster)
    if before is not None:
        before[1].close()
    _made[cluster.pk] = made_from, backend
    return backend


def capabilities_of(name: str) -> Capabilities:
    """What the backend of this name can do; raises UnknownBackend."""
    return _replaced[name].capabilities if name in _replaced else _kind(name, "a caller").capabilities


def check_settings(name: str, data: Any) -> None:
    """Raises InvalidInput where a cluster of this backend cannot have these settings."""
    if name in KINDS:
        KINDS[name].check(data)


def _kind(name: str, who: str) -> Installable:
    kind = KINDS.get(name)
    if kind is None or not kind.is_installed:
        way = f"; install it: {kind.install}" if kind is not None else ""
        raise UnknownBackend(f"{who} names the backend {name}, which is not installed{way}")
    return kind


def use_backend(name: str, backend: Backend | None) -> None:
    """Have this name mean a ready backend; None makes it mean the installed one again."""
    if backend is None:
        _replaced.pop(name, None)
    else:
        _replaced[name] = backend


def forget_backends() -> None:
    """Have each cluster's backend made anew, as after a restart."""
    _made.clear()


def installed() -> list[str]:
    return sorted({name for name, kind in KINDS.items() if kind.is_installed} | _replaced.keys())
