"""The connection to the server: encrypted, or refused."""

from __future__ import annotations

import pytest

from scheduler.agent.server.client import InsecureServer, Refused, ServerClient


def test_keys_do_not_travel_in_the_clear() -> None:
    with pytest.raises(InsecureServer, match="not encrypted"):
        ServerClient("http://muster.example.org")
    with pytest.raises(InsecureServer):
        ServerClient("muster.example.org")
    ServerClient("https://muster.example.org")
    ServerClient("http://127.0.0.1:8000")
    ServerClient("http://10.0.0.1", insecure_ok=True)


def test_a_refusal_carries_its_words() -> None:
    refusal = Refused(401, "bad-agent-key", "The agent key is unknown.")

    assert (str(refusal), refusal.status, refusal.code) == ("The agent key is unknown.", 401, "bad-agent-key")
