"""The node's key: registered once, kept for its owner alone, and asked for again when it is refused."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from scheduler.agent.server.client import Refused
from scheduler.agent.server.identity import Identity


class Client:
    """Answers a registration, and remembers what it was asked with."""

    def __init__(self) -> None:
        self.key = "an old key"
        self.asked: list[tuple[str, str, dict[str, Any]]] = []

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((self.key, path, body))
        return {"agent_key": "fresh", "node_id": 7, "cluster": "main"}


def test_a_key_is_kept_for_the_next_start_of_the_same_node(tmp_path: Path) -> None:
    client, first = Client(), Identity(tmp_path, "n1")
    first.load()
    assert first.key == ""

    first.register(client, join_token="token", inventory={"cpu_millis": 1})  # type: ignore[arg-type]

    ((key, path, body),) = client.asked
    assert (key, path, body["join_token"], body["name"]) == ("", "/api/v1/agent/register", "token", "n1")
    again, other = Identity(tmp_path, "n1"), Identity(tmp_path, "n2")
    again.load()
    other.load()
    assert (first.key, again.key, other.key) == ("fresh", "fresh", "")
    assert stat.S_IMODE((tmp_path / "identity.json").stat().st_mode) == 0o600


def test_without_a_join_token_the_way_to_one_is_named(tmp_path: Path) -> None:
    client = Client()

    with pytest.raises(Refused, match=r"manage\.py join_token"):
        Identity(tmp_path, "n1").register(client, join_token="", inventory={})  # type: ignore[arg-type]

    assert client.asked == []


def test_a_file_that_cannot_be_read_means_no_key(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text("{")
    identity = Identity(tmp_path, "n1")

    identity.load()

    assert identity.key == ""
