"""`muster configuration`: what operators set of a site, as a file that is exported, compared and applied."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

from muster.client import Client, Failed, plain
from muster.output import as_json

PATH: Final = "configuration"
_SIGNS: Final = {"create": "+", "change": "~", "delete": "-"}


def export(client: Client, asked: Namespace) -> None:
    """Write the document to standard output."""
    sys.stdout.write(client.call("GET", PATH)["yaml"])


def apply(client: Client, asked: Namespace) -> None:
    """Apply a file; prints each row that changes, and of each field the value before and after."""
    try:
        text = sys.stdin.read() if asked.file == "-" else Path(asked.file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(
            f"{asked.file} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}"
        ) from None
    body = {"yaml": text, "reason": asked.reason, "dry_run": asked.dry_run, "prune": asked.prune}
    answer = client.call("POST", PATH, body=body)
    if asked.json:
        as_json(answer)
        return
    for change in answer["changes"]:
        print(plain(f"{_SIGNS[change['action']]} {change['kind']} {change['name']}"))
        for name in change["after"] or ():
            print(plain(f"    {name}: {_words(change, name)}"))
    count = len(answer["changes"])
    rows = f"{count} row{'' if count == 1 else 's'}"
    print(plain(f"{rows} changed." if answer["applied"] else f"{rows} would change. Nothing was changed."))


def _words(change: dict[str, Any], name: str) -> str:
    after = json.dumps(change["after"][name])
    return after if change["action"] == "create" else f"{json.dumps(change['before'].get(name))} -> {after}"
