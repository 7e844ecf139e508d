"""What one declared variable is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

#: In seconds and bytes, for defaults.
HOUR: Final = 3600
DAY: Final = 24 * HOUR
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable. `kind` is str, int, float, bool, list (comma-separated) or dict (`a=1,b=2`, numbers).

    A default of None means that the program computes the value; the meaning says how.
    """

    name: str
    kind: str
    default: Any
    meaning: str
    unit: str = ""
    #: False where a process reads the variable itself, before or without Django's settings.
    in_settings: bool = True
    #: A secret's default and value are never shown.
    secret: bool = False
