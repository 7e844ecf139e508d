"""What messages of agents do, for as many at a time as there are: reports, heartbeats, orders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from django.utils import timezone

from infra.errors import MusterError
from scheduler.agent import PROTOCOL
from scheduler.agent.protocol import Report
from scheduler.models import Node
from scheduler.services.cluster import heartbeats, unknown_tasks
from scheduler.services.cluster.heartbeats import Heartbeat, KnownAgent
from scheduler.services.cluster.inventory import Inventory
from scheduler.services.cluster.unknown_tasks import DescribedTask
from scheduler.services.execution import dispatch
from scheduler.services.execution.dispatch import Orders
from scheduler.services.execution.reports import NodeReports, apply_together


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """A message of an agent that has been read; `key` proves which node it is of.

    `known` are the tasks that the agent answers for, with their epochs; None when it asks for no orders.
    """

    key: str
    boot_id: str
    agent_version: str
    #: The agent's clock, since 1970.
    clock_ms: int
    known: Mapping[int, int] | None = None
    reports: Sequence[Report] = ()
    inventory: Inventory | None = None
    #: When it came: its ages count from then, however long it waits for its turn.
    came_at: datetime = field(default_factory=timezone.now)
    protocol: int = PROTOCOL
    #: Looked at again while the agent waits: that is no sign of life.
    again: bool = False
    #: Whose the tasks are that the server asked about.
    described: Sequence[DescribedTask] = ()
    #: Of tasks whose job has become smaller: the size that their files say, by task; None from an agent of before.
    worlds: Mapping[int, int] | None = None
    #: Of tasks whose time limit was changed while they ran: the limit that the agent has heard of, by task.
    limits: Mapping[int, int] | None = None


class AgentAnswer(NamedTuple):
    """The node that a message was of, and its orders."""

    node: Node
    orders: Orders


class UnknownAgent(MusterError):
    """No valid agent key."""


def agent_of_key(key: str) -> KnownAgent:
    """The agent that has this key; raises UnknownAgent."""
    agent = heartbeats.agents_of_keys([key]).get(key)
    if agent is None:
        raise unknown_agent()
    return agent


def unknown_agent() -> UnknownAgent:
    return UnknownAgent(
        message="The agent key is unknown or was replaced.",
        code="bad-agent-key",
        way_out="Register again with a join token.",
        status=401,
    )


def take_reports(messages: Sequence[AgentMessage]) -> list[AgentAnswer | Exception]:
    """Take over what these messages report; each answer is what its node is to stop, or UnknownAgent.

    Safe to do again: a message that was not answered is sent once more.
    """
    agents = heartbeats.agents_of_keys(message.key for message in messages)
    stale = apply_together(
        [NodeReports(agents[m.key].node, m.reports, m.came_at) for m in messages if m.key in agents]
    )
    _beat(messages, agents)
    unknown = unknown_tasks.to_spare(pair for pairs in stale.values() for pair in pairs)
    return [
        AgentAnswer(
            agent.node,
            Orders(stops=dispatch.stale_stops(p for p in stale[agent.node.pk] if p not in unknown)),
        )
        if (agent := agents.get(message.key)) is not None
        else unknown_agent()
        for message in messages
    ]


def find_orders(messages: Sequence[AgentMessage]) -> list[AgentAnswer | Exception]:
    """What the nodes of these messages are to do by now; tasks to start are handed out, or UnknownAgent."""
    agents = heartbeats.agents_of_keys(message.key for message in messages)
    _beat([message for message in messages if not message.again], agents)
    for message in messages:
        if message.key in agents:  # as it is now: the agent may be another one than at its last call
            agents[message.key].node.agent_protocol = message.protocol
    asked = [(agents[m.key].node, m.known or {}) for m in messages if m.key in agents]
    orders = iter(dispatch.orders_together(asked))
    return [
        AgentAnswer(agent.node, without_known_news(message, _spare_unknown(message, agent, next(orders))))
        if (agent := agents.get(message.key)) is not None
        else unknown_agent()
        for message in messages
    ]


def without_known_news(message: AgentMessage, orders: Orders) -> Orders:
    """Without what the agent knows by now, or does not understand: it would be answered at once again."""
    sizes, limits = message.worlds, message.limits
    orders.worlds = [one for one in orders.worlds if sizes is not None and sizes.get(one[0]) != one[2]]
    orders.limits = [one for one in orders.limits if limits is not None and limits.get(one[0]) != one[2]]
    return orders


def _spare_unknown(message: AgentMessage, agent: KnownAgent, orders: Orders) -> Orders:
    """Leave tasks that the database does not know running until an operator decides, and ask whose they are."""
    stale = {(stop["task"], stop["epoch"]) for stop in orders.stops if stop["stale"]}
    if stale or agent.has_unknown_tasks:
        found = unknown_tasks.take_over(agent.node, stale, message.described)
        orders.stops = [stop for stop in orders.stops if (stop["task"], stop["epoch"]) not in found.spared]
        orders.describe = found.describe
    return orders


def _beat(messages: Iterable[AgentMessage], agents: Mapping[str, KnownAgent]) -> None:
    heartbeats.record_heartbeats(
        [
            Heartbeat(agents[m.key], m.boot_id, m.agent_version, m.clock_ms, m.inventory, m.protocol)
            for m in messages
            if m.key in agents
        ]
    )
