"""Reservations: of nodes and parts of nodes, and requests for them."""

from __future__ import annotations

import uuid
from argparse import Namespace
from typing import Any

from muster.client import Client, plain
from muster.output import as_json, table
from muster.submit import setting


def listed(client: Client, asked: Namespace) -> None:
    """Those that you may see, without those that are over."""
    rows = client.call("GET", "reservations", query={"current": None if asked.all else "true"})["results"]
    if asked.json:
        as_json(rows)
        return
    head = ["ID", "NAME", "STATE", "FOR", "FROM", "UNTIL", "HOLDS"]
    table([head, *([row["id"], row["name"], row["state"], _who(row), row["starts_at"], row["ends_at"], _holds(row)]
                   for row in rows)])  # fmt: skip


def show(client: Client, asked: Namespace) -> None:
    """One reservation; with --cost, which jobs a request would delay."""
    row = client.call("GET", f"reservations/{asked.id}")
    if asked.cost:
        row["cost"] = client.call("GET", f"reservations/{asked.id}/cost")
    if asked.json:
        as_json(row)
        return
    _say(row)
    time = row["gpu_time"]
    print(
        f"{time['reserved_seconds']:,} GPU-seconds reserved so far, {time['unused_seconds']:,} of them unused"
    )
    for job in row.get("cost", {}).get("jobs", ()):
        print(
            plain(
                f"Job {job['number']} {job['name']}: {job['start_without']} -> {job['start_with'] or 'later'}"
            )
        )


def create(client: Client, asked: Namespace) -> None:
    """Make a reservation, or ask for one."""
    path = "reservations" if asked.verb == "create" else "reservations/requests"
    body = dict(map(setting, asked.set))
    _answer(client.call("POST", path, body=body, headers={"Idempotency-Key": str(uuid.uuid4())}), asked)


def change(client: Client, asked: Namespace) -> None:
    """Change name, reason or window."""
    _answer(client.call("PATCH", f"reservations/{asked.id}", body=dict(map(setting, asked.set))), asked)


def decide(client: Client, asked: Namespace) -> None:
    """Approve, decline or cancel."""
    path = f"reservations/{asked.id}"
    if asked.verb == "cancel":
        answer = client.call("DELETE", path, query={"reason": asked.reason or None})
    elif asked.verb == "decline":
        answer = client.call("POST", f"{path}/decline", body={"reason": asked.reason})
    else:
        body = {"changes": dict(map(setting, asked.set)), "reason": asked.reason}
        answer = client.call("POST", f"{path}/approve", body=body)
    _answer(answer, asked)


def _answer(row: Any, asked: Namespace) -> None:
    if asked.json:
        as_json(row)
    else:
        _say(row)


def _say(row: Any) -> None:
    print(plain(f"Reservation {row['id']} {row['name']} is {row['state']}, for {_who(row)}"))
    print(plain(f"{row['starts_at']} to {row['ends_at']}: {_holds(row) or 'nothing is held yet'}"))
    if row["decision_reason"]:
        print(plain(row["decision_reason"]))


def _who(row: Any) -> str:
    names = [row["project"], *row["users"]] if row["project"] else row["users"]
    return ", ".join(names) or "maintenance"


def _holds(row: Any) -> str:
    parts = [
        f"{part['node']} ({part['cpu_cores']:g} cores, {part['memory_bytes'] >> 30} GiB, {len(part['gpus'])} GPUs)"
        for part in row["parts"]
    ]
    return ", ".join([*row["nodes"], *parts])
