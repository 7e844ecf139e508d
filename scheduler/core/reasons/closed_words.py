"""Closed words: why no node is open to a job, in a sentence, with what would open one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

Facts = Mapping[str, int | str]

#: By filter: what one node does, what several do, and what opens them.
_WORDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "taints": ("has the taint {0}", "have the taint {0}", "add a toleration, or wait until the taint is removed"),
    "labels": ("lacks the label {0}", "lack the label {0}", "ask an operator to add the label, or change the job"),
    "partition": (
        "is outside the job's partitions", "are outside the job's partitions",
        "choose another partition or queue, or ask an operator",
    ),
    "wall": (
        "is in a partition with a shorter time limit", "are in partitions with a shorter time limit",
        "shorten the time limit, or ask an operator",
    ),
    "isolation": (
        "isolates jobs too little for the queue", "isolate jobs too little for the queue",
        "choose another queue, or ask an operator for such a node",
    ),
    "agent": (
        "runs an agent older than needed for {0}", "run an agent older than needed for {0}", "upgrade the agent",
    ),
    "affinity": (
        "does not match the node affinity {0}", "do not match the node affinity {0}",
        "change the affinity, or ask an operator to change the labels",
    ),
    "cordoned": ("is cordoned", "are cordoned", "wait until an operator uncordons {1}"),
    "draining": ("is draining", "are draining", "wait until an operator uncordons {1}"),
    "fault": ("reports a fault", "report a fault", "wait until an operator has mended {1}"),
    "gpu_health": (
        "has too few healthy GPUs", "have too few healthy GPUs", "wait until an operator has mended {1}",
    ),
    "reserved": ("is reserved for others", "are reserved for others", "wait for the end of the reservation"),
    "state": ("does not respond", "do not respond", "wait until {1} responds"),
    "jobs": (
        "is excluded by affinity to other jobs", "are excluded by affinity to other jobs",
        "wait for those jobs, or change the affinity",
    ),
}  # fmt: skip


def nodes_unavailable(facts: Facts) -> str:
    """`The only node with pool=a (n1) has the taint gpu=maintenance:NoSchedule. Add a toleration, or …`."""
    if "gates" not in facts:
        return "The nodes that could hold the job are closed to it."
    gates = str(facts["gates"]).split(", ")
    count = int(facts["nodes"])
    if gates == ["isolation"] and not facts["beside_open"]:
        return (
            f"No node offers {facts['isolation']} isolation, which the queue requires: node {facts['node']} "
            f"{facts['lacks']}. Choose another queue, or ask an operator for such a node."
        )
    if gates == ["labels"] and not facts["beside_open"]:
        who = f"No node that could hold the job has the label {facts['labels']}."
        return f"{who} {_ways(gates, facts)}"
    # Of several nodes each may be closed by another filter.
    does = (" and " if count == 1 else " or ").join(_words(gate, facts)[min(count, 2) - 1] for gate in gates)
    return f"{_who(facts, count)} {does}. {_ways(gates, facts)}"


def _who(facts: Facts, count: int) -> str:
    of = f"with {facts['with_labels']}" if facts.get("with_labels") else "that could hold the job"
    if facts["beside_open"]:
        which = f"node {facts['node']}" if count == 1 else f"{count:,} nodes {of}"
        return f"Too few nodes are open to the job: {which}"
    return f"The only node {of} ({facts['node']})" if count == 1 else f"All {count:,} nodes {of}"


def _words(gate: str, facts: Facts) -> tuple[str, str, str]:
    one, several, way = _WORDS.get(
        gate, (f"is excluded by {gate}", f"are excluded by {gate}", "ask an operator")
    )
    filled: Callable[[str], str] = lambda text: text.format(  # noqa: E731
        facts.get(gate, ""), "it" if facts["nodes"] == 1 else "one"
    )
    return filled(one), filled(several), filled(way)


def _ways(gates: list[str], facts: Facts) -> str:
    text = "; and ".join(_words(gate, facts)[2] for gate in gates)
    return f"{text[:1].upper()}{text[1:]}."


def closed_beside(facts: Facts) -> str:
    """` Node n2 would hold the job, but is cordoned.`; empty where there is no such node."""
    gate = facts.get("closed_gate")
    if not gate:
        return ""
    one, several, _ = _WORDS[str(gate)]
    count = int(facts["closed_nodes"])
    if count == 1:
        return f" Node {facts['closed_node']} has enough free resources, but {one}."
    return f" {count:,} more nodes have enough free resources, but {several}."
