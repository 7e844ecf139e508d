"""Jobs: why one waits, or why it runs where it does."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from muster.client import Client, plain
from muster.output import as_json, table


def why(client: Client, asked: Namespace) -> None:
    """The headline with its cause, what else blocks, and of a job that has started the scores of its nodes."""
    found = client.call("GET", f"jobs/{asked.job}/why")
    if asked.json:
        as_json(found)
        return
    print(plain(found["headline"]))
    if found["cause"]:
        print(plain(f"cause: {found['cause']['code']} {found['cause']['subject']}".rstrip()))
    for blocker in found["blockers"]:
        if blocker["text"] != found["headline"] and not found["headline"].startswith(blocker["text"]):
            print(plain(f"also: {blocker['text']}"))
    if found["placement"]:
        _placement(found["placement"])


def _placement(basis: dict[str, Any]) -> None:
    if basis["unknown"]:
        print(plain(basis["unknown"]))
        return
    print(
        plain(
            f"cycle {basis['cycle']}: start {basis['place']} of {basis['starts']} by {basis['order']}, "
            f"placement {basis['placement']}, backfill {basis['backfill']}"
        )
    )
    for gate in basis["gates"]:
        count = gate["turned_away"] or gate["left"]
        print(plain(f"  {count:,} {gate['words']}"))
    rows: list[list[object]] = [["node", "score", "", "parts"]]
    for node in basis["nodes"]:
        parts = ", ".join(f"{name} {points}" for name, points in node["parts"].items())
        rows.append([node["name"], node["total"], "chosen" if node["chosen"] else "", parts])
    table(rows)
