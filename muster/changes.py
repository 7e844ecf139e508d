"""Changes of submitted jobs: of one, of all elements of an array, of many by a filter."""

from __future__ import annotations

import sys
import uuid
from argparse import Namespace
from typing import Any

from muster.client import Client, Failed, plain
from muster.output import as_json, table
from muster.submit import setting

_DONE = {
    "cancel": "cancelled", "hold": "held", "release": "released", "requeue": "requeued", "change": "changed",
    "reprioritise": "changed",
}  # fmt: skip


def change(client: Client, asked: Namespace) -> None:
    """Change fields of a job; a job that changes between the read and the change is refused."""
    path = f"jobs/{asked.job}"
    body = dict(map(setting, asked.set))
    if asked.reason:
        body["reason"] = asked.reason
    with client.open("GET", path) as read:
        seen = read.headers["ETag"]
    answer = client.call("PATCH", path, body=body, headers={"If-Match": seen})
    _say_job(answer, asked, "changed")


def act(client: Client, asked: Namespace) -> None:
    """Cancel, hold, release or requeue a job."""
    path = f"jobs/{asked.job}"
    if asked.verb == "cancel":
        answer = client.call("DELETE", path, query={"reason": asked.reason or None})
    else:
        answer = client.call("POST", f"{path}/{asked.verb}", body={"reason": asked.reason}, headers=_once())
    _say_job(answer, asked, _DONE[asked.verb])


def _say_job(answer: Any, asked: Namespace, done: str) -> None:
    if asked.json:
        as_json(answer)
        return
    said = "is being stopped" if answer["state_detail"] == "stopping" else f"is {done}"
    reason = answer["reason"]["text"] if answer["reason"] else ""
    print(plain(f"Job {asked.job} {said}. {reason}".rstrip()))


def array(client: Client, asked: Namespace) -> None:
    """Show an array, or do something to all elements."""
    path = f"arrays/{asked.array}"
    if asked.verb == "show":
        answer = client.call("GET", path)
    elif asked.verb == "cancel":
        answer = client.call("DELETE", path, query={"reason": asked.reason or None})
    elif asked.verb == "change":
        body = {"max_running": _number_or_none(asked.max_running), "reason": asked.reason}
        answer = client.call("PATCH", path, body=body)
    else:
        answer = client.call("POST", f"{path}/{asked.verb}", body={"reason": asked.reason}, headers=_once())
    if asked.json:
        as_json(answer)
        return
    if changed := answer.get("changed"):
        print(f"{changed['done']:,} changed, {changed['unchanged']:,} were so already, "
              f"{changed['refused']:,} in another state")  # fmt: skip
    print(
        plain(
            f"Array {answer['number']} {answer['name']}: {answer['over']:,} of {answer['jobs']:,} have ended"
        )
    )
    table([[state, f"{count:,}"] for state, count in answer["states"].items() if count])


def _number_or_none(text: str) -> int | None:
    if text.strip().lower() in ("none", "null"):
        return None
    try:
        return int(text)
    except ValueError as error:
        raise Failed(f"{plain(text)} is no number; write for example --max-running 10, or none") from error


def many(client: Client, asked: Namespace) -> None:
    """One verb on all jobs that a filter finds."""
    filters: dict[str, Any] = {}
    for text in asked.filter:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Failed(f"{plain(text)} is no filter: write for example --filter user=me")
        if name in filters:
            raise Failed(f"--filter {plain(name)} is there twice, and a filter has one value; give one")
        filters[name] = value
    body: dict[str, Any] = {
        "verb": asked.verb,
        "filter": filters,
        "dry_run": asked.dry_run,
        "reason": asked.reason,
    }
    if asked.most is not None:
        body["most"] = asked.most
    if asked.verb == "reprioritise":
        body["priority"] = int(asked.priority) if asked.priority.isdecimal() else asked.priority
    answer = client.call("POST", "jobs:act", body=body, headers=_once())
    while answer["left"] and asked.most is None:
        more = client.call("POST", "jobs:act", body={**body, "after": answer["last"]}, headers=_once())
        for name in ("matched", "done", "unchanged", "refused", "refusals"):
            answer[name] += more[name]
        answer["left"], answer["last"] = more["left"], more["last"]
    if asked.json:
        as_json(answer)
        return
    word = f"would be {_DONE[asked.verb]}" if asked.dry_run else _DONE[asked.verb]
    print(f"{answer['matched']:,} matched: {answer['done']:,} {word}, {answer['unchanged']:,} were so already, "
          f"{answer['refused']:,} refused")  # fmt: skip
    for one in answer["refusals"]:
        print(plain(f"{one['job_id']}: {one['detail']}"), file=sys.stderr)
    if answer["left"]:
        print(f"{answer['left']:,} more match", file=sys.stderr)


def _once() -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex}
