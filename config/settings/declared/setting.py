"""What one declared variable is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

#: In seconds and bytes, for defaults.
HOUR: Final = 3600
DAY: Final = 24 * HOUR
MIB: Final = 1024 * 1024

#: The longest time in seconds and the largest number that a variable may have: 100 years, and what 8 bytes hold.
LONGEST: Final = 100 * 365 * DAY
LARGEST: Final = 2**63 - 1


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
    #: The only values of a text, items of a list or keys of a map; empty: any.
    choices: tuple[str, ...] = ()
    #: Beside the choices: a list of `name=...`, whose names are values too.
    or_named_in: str = ""
    #: The bounds of a number, or of each number of a map.
    least: float = 0
    most: float | None = None
    #: What a text is: "", "url" (http or https), "address" (of a database or broker), "folder" or "code" (letters);
    #: what each item of a list is: "", "url", "network", "port" or "provider" (`name=module:Class`).
    form: str = ""
    #: Set by `manage.py up` for its processes, and by no operator.
    internal: bool = False

    @property
    def upper(self) -> float:
        """The largest number that is allowed."""
        if self.most is not None:
            return self.most
        return LONGEST if self.unit == "s" else LARGEST
