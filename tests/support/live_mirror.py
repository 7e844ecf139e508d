"""A client of the live socket: the merge rule of `static/js/live.js`, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Outcome(Enum):
    """What a client does after a message."""

    MERGED = "merged"
    IGNORED = "ignored"
    RESYNC = "resync"  # subscribe again, under a new `sub`: something was missed


@dataclass
class Mirror:
    """A client's copy of one topic: the merge rule that `static/js/live.js` follows too.

    Only an unbroken chain is merged: the next `seq` of this subscription, on the version that the patch
    starts from. A repeat is ignored; anything else means that a message was lost or overtaken, and the
    answer is to ask again. A loss at the very end shows at the next `pong`, which says how far each topic has come.
    """

    topic: str
    sub: int = 0
    seq: int = -1
    version: str = ""
    rows: dict[str, Any] = field(default_factory=dict)

    def ask(self) -> dict[str, Any]:
        """A subscription to send; what an earlier one still brings is ignored from now on."""
        self.sub, self.seq = self.sub + 1, -1
        return {"op": "subscribe", "topic": self.topic, "sub": self.sub, "since": self.version}

    def take(self, message: Mapping[str, Any]) -> Outcome:
        if message["op"] == "pong":
            return self._compare(message["topics"].get(self.topic))
        if message.get("topic") != self.topic or message.get("sub") != self.sub:
            return Outcome.IGNORED
        if message["op"] == "snapshot":
            return self._take_snapshot(message)
        if message["op"] not in ("patch", "dirty") or message["seq"] <= self.seq:
            return Outcome.IGNORED
        if message["op"] == "dirty" or message["seq"] != self.seq + 1 or message["base"] != self.version:
            return Outcome.RESYNC
        for key in message["patch"]["removed"]:
            self.rows.pop(key, None)
        self.rows.update(message["patch"]["changed"])
        self.seq, self.version = message["seq"], message["version"]
        return Outcome.MERGED

    def _take_snapshot(self, message: Mapping[str, Any]) -> Outcome:
        if self.seq >= 0:
            return Outcome.IGNORED
        if "data" in message:
            self.rows = dict(message["data"]["rows"])
        elif message["version"] != self.version:
            self.version = ""
            return Outcome.RESYNC
        self.seq, self.version = 0, message["version"]
        return Outcome.MERGED

    def _compare(self, sent: list[int] | None) -> Outcome:
        """`sent` is [sub, seq] of this topic on the server; seq -1 while the snapshot is being made."""
        return Outcome.MERGED if sent == [self.sub, self.seq] else Outcome.RESYNC
