"""The backend of our own node agents: they pull their assignments, so every call here does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.agent.protocol import Assignment, Stop
from scheduler.backends.base import Capabilities, Machine, Observation, Output


class AgentsBackend:
    """An agent's sync call reads its assignments from the rows, and the outbox wakes it."""

    name = "agents"
    capabilities = Capabilities(
        is_driven=False,
        reports_usage=True,
        streams_logs=True,
        suspends=True,
        keeps_secrets=True,
        takes_uploads=True,
        changes_limits=True,
    )

    def submit(self, node: str, assignments: Sequence[Assignment]) -> None:
        """Nothing to do: applying a plan notifies the agents of the nodes that it has changed."""

    def stop(self, node: str, stops: Sequence[Stop]) -> None:
        """Nothing to do: the transaction that asks an attempt to stop notifies the agents of its nodes."""

    def pause(self, node: str, pauses: Sequence[Sequence[int]]) -> None:
        """Nothing to do: it is part of every answer to an agent."""

    def verify(self, node: str, asked: Sequence[Sequence[int]]) -> None:
        """Nothing to do: it is part of every answer to an agent."""

    def observe(self, node: str) -> Observation:
        """Nothing to observe: agents report changes themselves."""
        return Observation()

    def machines(self) -> Sequence[Machine]:
        """None that Muster has to look for: agents register themselves."""
        return ()

    def output(self, node: str) -> Sequence[Output]:
        """Nothing to read: agents send it."""
        return ()

    def keep_output(self, node: str, ends: Mapping[tuple[int, str], int]) -> None:
        """Nothing to do: the answer to an agent says what is stored."""

    def close(self) -> None:
        """Nothing to release."""
