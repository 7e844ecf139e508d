"""`muster profiles`: versions of scheduler profiles, what differs between two, and the way back."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from muster.client import Client, Failed, plain
from muster.output import all_pages, as_json, table


def _path(name: str, rest: str = "") -> str:
    if "/" in name:
        raise Failed(f"A profile with / in its name is named by its id: {name!r}.")
    return f"profiles/{name}{rest}"


def versions(client: Client, asked: Namespace) -> None:
    """Every version, newest first."""
    rows = all_pages(client, _path(asked.profile, "/versions"))
    if asked.json:
        as_json(rows)
        return
    table(
        (
            row["version"], row["made_at"], row["made_by"] or "-",
            row["origin"] + (f" {row['origin_number']}" if row["origin_number"] else ""), row["reason"],
        )
        for row in rows
    )  # fmt: skip


def diff(client: Client, asked: Namespace) -> None:
    """The fields in which two versions differ; the second is the newest where it is not given."""
    query = {"before": asked.before} | ({"after": asked.after} if asked.after else {})
    answer = client.call("GET", _path(asked.profile, "/versions/diff"), query=query)
    if asked.json:
        as_json(answer)
        return
    print(plain(f"{answer['profile']}: version {answer['before']} -> {answer['after']}"))
    for one in answer["changes"]:
        print(plain(f"    {one['field']}: {_value(one['before'])} -> {_value(one['after'])}"))


def rollback(client: Client, asked: Namespace) -> None:
    """Put a version in force again."""
    body = {"version": asked.version, "reason": asked.reason}
    answer = client.call("POST", _path(asked.profile, "/rollback"), body=body)
    if asked.json:
        as_json(answer)
        return
    print(
        plain(
            f"{answer['name']} is now version {answer['version']}, with the content of version {asked.version}."
        )
    )


def _value(value: Any) -> str:
    return json.dumps(value)
