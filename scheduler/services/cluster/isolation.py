"""What keeps the jobs of a node apart and bounds them: read from the agent's message, put into words, made a label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infra.plain_text import line_problem
from scheduler.core.snapshot.node_isolation import BITS, NEEDED, IsolationLevel

#: The label that each node gets by what its agent reports, so that jobs can ask for it.
LABEL: Final = "isolation"
#: And the one that says what keeps a job's limit of the disk there.
DISK_LABEL: Final = "disk-limit"
BY_KERNEL, MEASURED = "kernel", "measured"
STRICT, PARTIAL, NONE = IsolationLevel.STRICT.value, IsolationLevel.PARTIAL.value, "none"

#: What an agent says holds on its node, and how that is said to people.
HOLDS: Final = {
    "files": "a job sees the system and its own files only",
    "people": "no job can read or signal another person's processes",
    "processes": "whatever a job starts ends with it",
    "amounts": "the kernel bounds memory, processes and CPU",
}
_MOST_TEXTS: Final = 20
_MOST_CHARACTERS: Final = 300


def read_isolation(data: Any) -> dict[str, Any]:
    """The facts of a message, as the node keeps them; an agent of an earlier version says and isolates nothing.

    What cannot be read counts as not said: it must never make a node look safer than it is.
    """
    if not isinstance(data, Mapping):
        return {}
    fault = _texts([data.get("fault")])[:1]
    return {
        **{name: data.get(name) is True for name in HOLDS},
        "means": _texts(data.get("means")),
        "missing": _texts(data.get("missing")),
        # An agent of an earlier version does not say them.
        **{name: said for name in ("secrets_in_memory", "disk") if isinstance(said := data.get(name), bool)},
        **({"fault": fault[0]} if fault and fault[0] else {}),
    }


def _texts(data: Any) -> list[str]:
    if not isinstance(data, list):
        return []
    texts = [text[:_MOST_CHARACTERS] for text in data[:_MOST_TEXTS] if isinstance(text, str)]
    return [text for text in texts if not line_problem(text)]


def level_of(isolation: Mapping[str, Any]) -> str:
    """`strict` where all holds, `partial` where people's files and processes are apart, else `none`."""
    if isolation.get("fault"):
        return NONE
    bits = sum(bit for name, bit in BITS.items() if isolation.get(name))
    for level in (IsolationLevel.STRICT, IsolationLevel.PARTIAL):
        if bits & NEEDED[level] == NEEDED[level]:
            return level.value
    return NONE


def labels_by(isolation: Mapping[str, Any]) -> dict[str, str]:
    """The labels by which jobs ask for what keeps them apart and bounds them."""
    return {LABEL: level_of(isolation), DISK_LABEL: BY_KERNEL if isolation.get("disk") else MEASURED}


def isolation_shown(isolation: Mapping[str, Any]) -> dict[str, Any]:
    """What a page shows: the level, each promise in words and whether it is kept, by what, and what is missing."""
    return {
        "level": level_of(isolation),
        "promises": [(bool(isolation.get(name)), text) for name, text in HOLDS.items()],
        "means": isolation.get("means", []),
        "missing": isolation.get("missing", []),
        "secrets_in_memory": isolation.get("secrets_in_memory"),
        "disk": isolation.get("disk"),
    }
