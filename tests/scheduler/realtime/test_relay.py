"""The relay: one subscription of a process, for all who listen in it."""

from __future__ import annotations

import asyncio
import json

from infra import notifications
from infra.notifications import CHANNEL
from scheduler.relay import RECONNECT_SECONDS, Relay


def test_a_hint_reaches_one_who_listens_again_at_once() -> None:
    """All agents of a process may be given work by one hint, so that for a moment nobody listens."""

    def hint(topic: str) -> None:
        notifications.client().publish(CHANNEL, json.dumps({"topics": [topic]}))

    async def main() -> tuple[bool, set[str]]:
        relay = Relay()
        async with relay.listen(["node:1"]) as listener:
            await listener.take(timeout_seconds=5)  # all look once when the subscription begins
        hint("node:1")  # while nobody listens
        await asyncio.sleep(RECONNECT_SECONDS / 4)
        async with relay.listen(["node:1"]) as listener:
            connected = relay.connected
            hint("node:1")
            news = await listener.take(timeout_seconds=RECONNECT_SECONDS / 4)
        await relay.close()
        return connected, news

    assert asyncio.run(main()) == (True, {"node:1"})
