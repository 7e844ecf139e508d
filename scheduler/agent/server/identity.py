"""The node's key: kept in the state folder, and got from the server in exchange for a join token."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from scheduler.agent import PROTOCOL
from scheduler.agent.console import say
from scheduler.agent.server.client import Refused, ServerClient


class Identity:
    """`key` is empty until the node is registered."""

    def __init__(self, state: Path, name: str) -> None:
        self.key = ""
        self._name = name
        self._file = state / "identity.json"

    def load(self) -> None:
        """Read the key that an earlier start kept; leave it empty where there is none for this name."""
        try:
            identity = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return
        if identity.get("name") == self._name:
            self.key = str(identity["key"])

    def forget(self) -> None:
        """The server does not accept the key: the next call registers again."""
        self.key = ""

    def register(self, client: ServerClient, *, join_token: str, inventory: dict[str, Any]) -> None:
        """Exchange the join token for a key of this node; raises Refused when the server does not accept it."""
        if not join_token:
            raise Refused(
                401, "no-join-token",
                "This node has no valid key and no join token. Make one with `manage.py join_token` and give it "
                "with --join-token-file or MUSTER_JOIN_TOKEN.",
            )  # fmt: skip
        client.key = ""
        answer = client.post(
            "/api/v1/agent/register",
            {"protocol": PROTOCOL, "join_token": join_token, "name": self._name, "inventory": inventory},
        )
        self.key = str(answer["agent_key"])
        self._save({"name": self._name, "node_id": answer["node_id"], "key": self.key})
        say(f"registered as node {self._name} ({answer['node_id']}) of cluster {answer['cluster']}")

    def _save(self, identity: dict[str, Any]) -> None:
        fresh = self._file.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(identity, file)
        fresh.replace(self._file)
