"""Images that a host does not have yet: fetched beside everything else, each once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler.backends.docker.host_link import HostAway, HostLink, Refused


@dataclass(slots=True)
class Pull:
    """One fetch of an image. `error` says why it failed; layers have (bytes there, bytes in all)."""

    image: str
    is_done: bool = False
    error: str = ""
    layers: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """How far it is, for people."""
        there = sum(done for done, _ in self.layers.values())
        whole = sum(total for _, total in self.layers.values())
        if not whole:
            return f"Fetching image {self.image}"
        return f"Fetching image {self.image}: {there // 2**20} of {whole // 2**20} MiB"


class Images:
    """The images of one host."""

    def __init__(self, link: HostLink) -> None:
        self._link = link
        self._pulls: dict[str, Pull] = {}

    def pull_of(self, image: str) -> Pull | None:
        """None where the host has the image; otherwise its fetch, which begins now unless it has begun."""
        pull = self._pulls.get(image)
        if pull is not None and pull.is_done and not pull.error:
            del self._pulls[image]
            pull = None
        if pull is None:
            if self._link.has_image(image):
                return None
            pull = self._pulls[image] = Pull(image)
            threading.Thread(target=self._fetch, args=(pull,), name="image", daemon=True).start()
        return pull

    def forget(self, image: str) -> None:
        """The next task that needs this image tries again."""
        self._pulls.pop(image, None)

    def _fetch(self, pull: Pull) -> None:
        try:
            with self._link.calls():
                client = self._link.client(None)
                for line in client.pull(*_name_and_tag(pull.image), stream=True, decode=True):
                    self._note(pull, line)
                    if message := line.get("error"):
                        pull.error = str(message)
                        break
                client.close()
        except (HostAway, Refused) as error:
            pull.error = str(error)
        pull.is_done = True

    @staticmethod
    def _note(pull: Pull, line: Mapping[str, Any]) -> None:
        detail = line.get("progressDetail") or {}
        if "id" in line and detail.get("total"):
            pull.layers[str(line["id"])] = (int(detail.get("current", 0)), int(detail["total"]))


def _name_and_tag(image: str) -> tuple[str, str | None]:
    """`name:tag` and `name@digest` apart; an image without either is fetched as `latest`."""
    if "@" in image:
        return image, None
    name, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:
        return image, "latest"
    return name, tag
