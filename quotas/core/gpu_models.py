"""Whether a device is of the model that somebody names."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_VENDORS: Final = re.compile(r"^(?:nvidia|amd|intel|tesla|geforce|instinct)-")


@lru_cache(maxsize=4096)
def model_matches(wanted: str, have: str) -> bool:
    """`H100` matches `H100`, `h100-80GB` and `NVIDIA H100 80GB HBM3`; `A10` does not match `A100`.

    `A100|H100` matches whatever one of them matches.
    """
    model = _plain(have)
    return any(
        model == want or model.startswith(want + "-") for want in map(_plain, wanted.split("|")) if want
    )


def _plain(model: str) -> str:
    """Lower case, words joined by "-", without the maker's name."""
    plain = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    while (shorter := _VENDORS.sub("", plain)) != plain:
        plain = shorter
    return plain
