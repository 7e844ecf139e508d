"""What most events of jobs say: it follows from their kind and details, so it is read that way and not stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Of a job that completed as most do.
ALL_SUCCEEDED: Final = "every task ended with exit code 0"
#: What the details of such a job have beside those that are stored.
_SUCCEEDED: Final = {"attempt": "succeeded", "exit_code": 0}


def text_of(kind: str, details: Mapping[str, Any]) -> str:
    """The usual sentence of an event of this kind, which is stored as an empty text; "" where there is none."""
    if kind == "job.scheduled" and (nodes := details.get("nodes")):
        return f"placed on {', '.join(nodes)}"[:300]
    if kind == "job.running" and (node := details.get("node")):
        return f"started on {node}"
    if kind == "job.completed" and details.keys() <= {"node", *_SUCCEEDED}:
        return ALL_SUCCEEDED
    return ""


def details_of(kind: str, because: str, details: Mapping[str, Any]) -> dict[str, Any]:
    """All details of an event that is stored with these and this text."""
    if kind == "job.completed" and not because and details.keys() <= {"node"}:
        return {**_SUCCEEDED, **details}
    return dict(details)
