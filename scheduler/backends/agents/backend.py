"""Node agents ask for their orders themselves; all there is to do here is to tell them that there are some."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.agent.protocol import Assignment, Stop
from scheduler.backends.base import Capabilities, Observation


class AgentsBackend:
    """The rows are the orders: an agent's sync call reads them, woken by the outbox."""

    name = "agents"
    capabilities = Capabilities(is_driven=False, reports_usage=True, streams_logs=True, suspends=True)

    def submit(self, node: str, assignments: Sequence[Assignment]) -> None:
        """Applying a plan announces the nodes it touched, and that wakes their agents."""

    def stop(self, node: str, stops: Sequence[Stop]) -> None:
        """The code that asks an attempt to stop announces its nodes in the same transaction."""

    def pause(self, node: str, pauses: Sequence[Sequence[int]]) -> None:
        """Part of every answer to an agent."""

    def verify(self, node: str, asked: Sequence[Sequence[int]]) -> None:
        """Part of every answer to an agent."""

    def observe(self, node: str) -> Observation:
        """Agents report by themselves, at once."""
        return Observation()
