"""Where this portal answers a script other than a real Slurm did, and why, by the id of the case."""

from __future__ import annotations

from typing import Final

#: Slurm takes it; here it is refused, and the refusal says that the feature does not exist.
ABSENT: Final[dict[str, str]] = {}

#: Another answer, and why.
DIFFERENT: Final[dict[str, str]] = {}
