"""Node isolation: what keeps the jobs of a node apart and bounds them, as one number, and the levels made of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

#: What an agent may say holds on its node, by its bit; in order of importance.
BITS: Final = {"files": 1, "people": 2, "processes": 4, "amounts": 8}

#: What a node without it is like, for the person who waits for one.
LACKS: Final = {
    "files": "does not confine jobs to their own files",
    "people": "does not keep people's processes apart",
    "processes": "has neither PID namespaces nor cgroups",
    "amounts": "has no cgroups that bound memory, processes and CPU",
}


class IsolationLevel(StrEnum):
    """The least isolation that the jobs of a queue get, the weakest first; "" = any node."""

    ANY = ""
    PARTIAL = "partial"
    STRICT = "strict"


#: The bits that a node needs for each level.
NEEDED: Final = {
    IsolationLevel.ANY: 0,
    IsolationLevel.PARTIAL: BITS["files"] | BITS["people"],
    IsolationLevel.STRICT: sum(BITS.values()),
}


def level_of_bits(needed: int) -> IsolationLevel:
    """The level that needs these bits; STRICT for any other number of them."""
    return next((level for level, bits in NEEDED.items() if bits == needed), IsolationLevel.STRICT)


def lacking(has: int, needed: int) -> list[str]:
    """What a node with the bits `has` lacks of those needed, in words."""
    return [LACKS[name] for name, bit in BITS.items() if needed & bit and not has & bit]
