"""What jobs leave: `muster results`, `artifacts` and `checkpoints`, each with list, download and delete."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from muster.client import Client, Failed, plain
from muster.download import local_path, save, unpack
from muster.output import as_json, confirmed, table


def results_list(client: Client, asked: Namespace) -> None:
    found = client.call("GET", f"jobs/{asked.job}/results")
    if asked.json:
        return as_json(found)
    for folder in found["folders"]:
        where = {"attempt": folder["attempt"], "rank": folder["rank"]}
        print(f"attempt {folder['attempt']} task {folder['rank']} on {plain(folder['node'])}")
        after: str | None = ""
        while after is not None:
            query = {**where, "after": after or None}
            page = client.call("GET", f"jobs/{asked.job}/results/files", query=query)
            table(
                (one["size_bytes"], one["kind"], one["modified_at"], one["path"]) for one in page["results"]
            )
            after = page["next"]
    return None


def results_download(client: Client, asked: Namespace) -> None:
    where = {"attempt": asked.attempt, "rank": asked.rank}
    into = _into(asked, "results")
    if not asked.path:
        with client.open("GET", f"jobs/{asked.job}/results/archive", query=where) as answer:
            return _said(into, *unpack(answer, into))
    target = local_path(into, asked.path)
    with client.open("GET", f"jobs/{asked.job}/results/file", query={**where, "path": asked.path}) as answer:
        return _said(target, 1, save(answer, target))


def artifacts_list(client: Client, asked: Namespace) -> None:
    files = _artifacts(client, asked.job)
    if asked.json:
        return as_json(files)
    columns = ("id", "size_bytes", "attempt", "rank", "sha256", "path")
    return table(tuple(one[name] for name in columns) for one in files)


def artifacts_download(client: Client, asked: Namespace) -> None:
    into = _into(asked, "artifacts")
    if asked.id is None:
        with client.open("GET", f"jobs/{asked.job}/artifacts/archive") as answer:
            return _said(into, *unpack(answer, into))
    found = [one for one in _artifacts(client, asked.job) if one["id"] == asked.id]
    if not found:
        raise Failed(f"Job {asked.job} has no artefact {asked.id}.")
    target = local_path(into, found[0]["path"])
    with client.open("GET", f"jobs/{asked.job}/artifacts/file", query={"id": asked.id}) as answer:
        return _said(target, 1, save(answer, target, sha256=found[0]["sha256"]))


def _artifacts(client: Client, job: int) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = client.call("GET", f"jobs/{job}/artifacts", query={"after": after})
        files += page["results"]
        after = page["next"]
    return files


def checkpoints_list(client: Client, asked: Namespace) -> None:
    rows = client.call("GET", f"jobs/{asked.job}/checkpoints")["results"]
    if asked.json:
        return as_json(rows)
    columns = ("id", "state", "size_bytes", "attempt", "rank", "node", "taken_at", "name")
    return table(tuple(one[name] for name in columns) for one in rows)


def checkpoints_download(client: Client, asked: Namespace) -> None:
    id = _checkpoint(client, asked)
    into = _into(asked, f"checkpoint-{id[:8]}")
    with client.open("GET", f"jobs/{asked.job}/checkpoints/{id}/archive") as answer:
        return _said(into, *unpack(answer, into))


def _checkpoint(client: Client, asked: Namespace) -> str:
    """The id of the checkpoint that was named by id or name; without either the newest complete one."""
    rows = client.call("GET", f"jobs/{asked.job}/checkpoints")["results"]
    for one in rows:
        if one["state"] == "complete" and asked.checkpoint in (None, one["id"], one["name"]):
            return str(one["id"])
    named = (
        f"no complete checkpoint {plain(asked.checkpoint)}" if asked.checkpoint else "no complete checkpoint"
    )
    raise Failed(f"Job {asked.job} has {named}.")


def delete(client: Client, asked: Namespace) -> None:
    """`delete` of each of them; what is deleted is gone for good, so it is asked for twice."""
    path, what = f"jobs/{asked.job}/{asked.noun}", f"the {asked.noun} of job {asked.job}"
    if asked.noun == "checkpoints":
        id = _checkpoint(client, asked)
        path, what = f"{path}/{id}", f"checkpoint {id} of job {asked.job}"
    confirmed(what, yes=asked.yes)
    answer = client.call("DELETE", path, body={"reason": asked.reason})
    counted = ", ".join(f"{count} {name}" for name, count in (answer or {}).items())
    print(f"Deleted {what}{f': {counted}' if counted else ''}.")


def _into(asked: Namespace, what: str) -> Path:
    return Path(asked.into or f"job-{asked.job}-{what}")


def _said(where: Path, files: int, size: int) -> None:
    print(f"{plain(where)}: {files} {'file' if files == 1 else 'files'}, {size:,} bytes")
