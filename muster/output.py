"""What verbs print: JSON, a table; and the question before something is deleted for good."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from muster.client import Client, Failed, plain


def as_json(answer: Any) -> None:
    """As the API answers."""
    json.dump(answer, sys.stdout, indent=1)
    print()


def all_pages(client: Client, path: str) -> list[Any]:
    """The rows of a list, page after page."""
    rows: list[Any] = []
    cursor: str | None = None
    while True:
        page = client.call("GET", path, query={"cursor": cursor})
        rows += page["results"]
        found = re.search(r"[?&]cursor=([^&]+)", page["next"] or "")
        if found is None:
            return rows
        cursor = found[1]


def table(rows: Iterable[Sequence[object]]) -> None:
    """Rows with their columns one below the other."""
    texts = [[plain(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def confirmed(what: str, *, yes: bool) -> None:
    """Raises Failed unless the person says that this may be deleted."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failed(f"This deletes {what} for good: say so with --yes.")
    if input(f"Delete {what} for good? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Failed("Nothing was deleted.")
