"""Judges a campaign by its files alone: what jobs did, what the portal says of them, and what nodes held at all times.

The checks are those of a history that is complete: each is a pure function of what was recorded (Jepsen's way of
looking for broken promises after a run, jepsen.io/analyses).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tests.chaos.work import Piece, Trace, trace

#: A job that may not start again ends so, without an exit code, when its node was lost or its guard was killed.
EXCUSED: Final = ("node-lost", "infrastructure")

Broken = dict[str, list[str]]
#: (node, CPU in thousandths, MiB, since, until or None), in seconds since 1970.
Held = tuple[int, int, int, float, float | None]


def verdict(folder: Path, traces: Path) -> Broken:
    """Every promise, and each case in which it was broken; raises OSError or ValueError where a file is missing."""
    rows = json.loads((folder / "rows.json").read_text())
    accepted = [Piece(**piece) for piece in json.loads((folder / "accepted.json").read_text())]
    found = judge_jobs(
        accepted, rows["jobs"], {name: trace(traces, name) for p in accepted for name in p.names}
    )
    found["two attempts with one number"] = twins([(job, epoch) for job, epoch, _, _ in rows["attempts"]])
    found["more held than a node has (I2)"] = overfull(
        [tuple(one) for one in rows["held"]], {int(node): size for node, size in rows["nodes"].items()}
    )
    found["invariants I1 to I8 in the rows"] = rows["invariants"]
    return found


def judge_jobs(accepted: list[Piece], rows: list[dict[str, Any]], traces: dict[str, Trace]) -> Broken:
    """What became of each accepted job, by the portal and by what it did itself."""
    found: Broken = {
        name: []
        for name in (
            "lost (I4)", "made up (I4)", "not ended", "wrong exit code", "live twice at once (I5)", "done twice",
            "done again without need",
        )
    }  # fmt: skip
    by_name = {row["name"]: row for row in rows}
    wanted = {name: piece for piece in accepted for name in piece.names}
    found["made up (I4)"] += twins(row["name"] for row in rows) + sorted(by_name.keys() - wanted.keys())
    for name, piece in wanted.items():
        row = by_name.get(name)
        if row is None:
            found["lost (I4)"].append(name)
        else:
            _judge(name, piece, row, traces[name], found)
    return found


def _judge(name: str, piece: Piece, row: dict[str, Any], did: Trace, found: Broken) -> None:
    case = f"{name} ({piece.restart_policy}): {row}, begun {did.begun}, done {did.done}"
    once = piece.restart_policy == "never"
    if row["state"] not in ("completed", "failed"):
        found["not ended"].append(case)
    elif row["exit_code"] != piece.exit_code and not (
        row["exit_code"] is None and row["failure"] in EXCUSED and once
    ):
        found["wrong exit code"].append(case)
    if did.together:
        found["live twice at once (I5)"].append(case)
    # An attempt begins once. A job that may not start again has one attempt; one that may is done again only where
    # the portal could not know that it had been done: its node was lost.
    if (once and len(did.begun) > 1) or twins(attempt for attempt, _ in did.begun):
        found["done twice"].append(case)
    if row["state"] == "completed" and not did.done:
        found["lost (I4)"].append(case)
    if len(did.begun) > row["attempts"]:
        found["done again without need"].append(case)


def twins(values: Iterable[Any]) -> list[str]:
    return [str(value) for value, count in Counter(values).items() if count > 1]


def overfull(held: list[Any], nodes: dict[int, list[int]]) -> list[str]:
    """Moments at which a node held more CPU or memory than it has; what is released at a moment is free at it."""
    changes: defaultdict[int, list[tuple[float, int, int]]] = defaultdict(list)
    for node, cpu, memory, since, until in held:
        changes[node].append((since, cpu, memory))
        if until is not None:
            changes[node].append((until, -cpu, -memory))
    found = []
    for node, ones in changes.items():
        cpu = memory = 0
        for at, more_cpu, more_memory in sorted(ones):
            cpu, memory = cpu + more_cpu, memory + more_memory
            if cpu > nodes[node][0] or memory > nodes[node][1]:
                found.append(f"node {node} at {at:.3f}: {cpu} thousandths of a CPU, {memory} MiB")
    return found


def lines(broken: Broken) -> list[str]:
    """For people: each promise with how often it was broken, and the first cases."""
    said = []
    for promise, cases in broken.items():
        said.append(f"{len(cases):5}  {promise}")
        said += [f"         {case}" for case in cases[:10]]
    return said
