"""A Docker host: calls of its API, and the words for what goes wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scheduler.backends.docker.container import CLUSTER_LABEL, moment
from scheduler.backends.docker.hosts import DockerHost

if TYPE_CHECKING:
    from docker import APIClient

#: A host that does not answer within this time is away.
CALL_SECONDS: Final = 10
#: The oldest API that has all calls used here: Docker 20.10, podman 4.
API_VERSION: Final = "1.40"


class HostAway(ConnectionError):
    """The host does not answer, or refuses its answer."""


class Refused(Exception):
    """The host answered that it does not do what it was asked to; `status` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HostLink:
    """Calls of one host. Each raises HostAway, or Refused."""

    def __init__(self, host: DockerHost, cluster_key: str) -> None:
        self.host = host
        self._cluster_key = cluster_key
        self._client: APIClient | None = None

    def client(self, seconds: float | None = CALL_SECONDS) -> APIClient:
        """A client of its own, for a thread that reads for long; None = it waits as long as there is no answer."""
        from docker import APIClient
        from docker.tls import TLSConfig

        tls: TLSConfig | bool = False
        if self.host.tls:
            folder = Path(self.host.tls)
            tls = TLSConfig(
                client_cert=(str(folder / "cert.pem"), str(folder / "key.pem")),
                ca_cert=str(folder / "ca.pem"),
                verify=True,
            )
        return APIClient(base_url=self.host.url, version=API_VERSION, timeout=seconds, tls=tls)

    @contextlib.contextmanager
    def calls(self) -> Iterator[APIClient]:
        """The client for short calls, with this module's errors in the place of the library's."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException

        try:
            if self._client is None:
                self._client = self.client()
            yield self._client
        except APIError as error:
            raise Refused(error.status_code or 500, str(error.explanation or error)) from error
        except (RequestException, DockerException, OSError) as error:
            self.close()
            raise HostAway(
                f"Docker host {self.host.name} ({self.host.url}) does not answer: {error}"
            ) from error

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def info(self) -> dict[str, Any]:
        with self.calls() as client:
            found: dict[str, Any] = client.info()
            return found

    def clock(self) -> datetime:
        """The clock of the host."""
        return moment(self.info()["SystemTime"]) or datetime.now(UTC)

    def containers(self) -> list[dict[str, Any]]:
        """All containers of the cluster, also those that have ended, as lists show them."""
        with self.calls() as client:
            found: list[dict[str, Any]] = client.containers(
                all=True, filters={"label": f"{CLUSTER_LABEL}={self._cluster_key}"}
            )
            return found

    def inspect(self, container: str) -> dict[str, Any] | None:
        """None where there is no such container any more."""
        try:
            with self.calls() as client:
                found: dict[str, Any] = client.inspect_container(container)
                return found
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def has_image(self, image: str) -> bool:
        try:
            with self.calls() as client:
                client.inspect_image(image)
        except Refused as refused:
            if refused.status == 404:
                return False
            raise
        return True

    def create(self, name: str, options: dict[str, Any]) -> str:
        """The id of the container of this name, made with these options unless it is there."""
        try:
            with self.calls() as client:
                made: dict[str, Any] = client.create_container_from_config(options, name)
                return str(made["Id"])
        except Refused as refused:
            there = self.inspect(name) if refused.status == 409 else None
            if there is None:
                raise
            return str(there["Id"])

    def put(self, container: str, archive: bytes) -> None:
        """Unpack a tar archive into the root of a container."""
        with self.calls() as client:
            client.put_archive(container, "/", archive)

    def start(self, container: str) -> None:
        with self.calls() as client:
            client.start(container)

    def kill(self, container: str, signal: str) -> None:
        """Send a signal; nothing happens where the container has ended."""
        with self._unless_over(), self.calls() as client:
            client.kill(container, signal)

    def pause(self, container: str, paused: bool) -> None:
        with self._unless_over(), self.calls() as client:
            (client.pause if paused else client.unpause)(container)

    def remove(self, container: str) -> None:
        with self._unless_over(), self.calls() as client:
            client.remove_container(container, v=True, force=True)

    @staticmethod
    @contextlib.contextmanager
    def _unless_over() -> Iterator[None]:
        """404: the container is gone; 409: it does not run, or is as it was to become."""
        try:
            yield
        except Refused as refused:
            if refused.status not in (404, 409):
                raise
