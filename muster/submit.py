"""`muster submit`: a command, a script, an sbatch script or a job request, with a folder that it begins with."""

from __future__ import annotations

import json
import re
import sys
import uuid
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

from muster.client import Client, Failed, plain
from muster.output import as_json
from muster.uploads import send_folder

_SBATCH: Final = re.compile(r"^#SBATCH\b", re.MULTILINE)


def submit(client: Client, asked: Namespace) -> None:
    path, request = _request(asked)
    request |= dict(map(setting, asked.set))
    if asked.upload:
        if "upload" in request:
            raise Failed("The job names an upload already: leave out --upload, or the field.")
        request["upload"] = send_folder(client, Path(asked.upload), asked.exclude)["id"]
    try:
        answer = client.call("POST", path, body=request, headers={"Idempotency-Key": uuid.uuid4().hex})
    except Failed as error:
        kept = (
            f"\nThe folder is uploaded: go on with --set upload={request['upload']}" if asked.upload else ""
        )
        raise Failed(f"{error}{kept}") from error
    if asked.json:
        as_json(answer)
        return
    for one in answer.get("ignored", ()):
        print(
            f"line {one['line']} has no effect: {plain(one['text'])}. {plain(one['reason'])}", file=sys.stderr
        )
    late = answer.get("deadline_outlook") or {}
    if late.get("state") == "late":
        print(plain(late["text"]), file=sys.stderr)
    number = answer.get("array_id") or answer.get("job_id") or answer.get("number")
    print(f"Submitted job {number}")


def _request(asked: Namespace) -> tuple[str, dict[str, Any]]:
    """Where the request goes, and what it says."""
    if (asked.command is None) == (asked.file is None):
        raise Failed("Give a file, or a command with --command.")
    if asked.command is not None:
        return "jobs", {"command": asked.command}
    try:
        text = sys.stdin.read() if asked.file == "-" else Path(asked.file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"{plain(asked.file)} cannot be read: {error}") from error
    if text.lstrip().startswith("{"):
        try:
            request = json.loads(text)
        except ValueError as error:
            raise Failed(f"{plain(asked.file)} is no JSON: {error}") from error
        return "jobs", dict(request)
    if _SBATCH.search(text):
        return "slurm/sbatch", {"script": text}
    return "jobs", {"script": text} if text.startswith("#!") else {"command": text}


def setting(text: str) -> tuple[str, Any]:
    """`cpu_cores=4`: a value that is JSON is taken as such, any other as text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Failed(f"{plain(text)} is no setting: write for example --set cpu_cores=4")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
