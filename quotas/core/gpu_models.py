"""Whether a device is of the model, and the slice of one, that somebody names."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_VENDORS: Final = re.compile(r"^(?:(?:nvidia|amd|intel|tesla|geforce|instinct)-)+")
#: What drivers call a slice of a device: `MIG 1g.10gb` at the end of its name.
_SLICE: Final = re.compile(r"(?:^|[^a-z0-9])mig[ -](\d+g\.\d+gb(?:\+[a-z.]+)?)$", re.IGNORECASE)
#: What people write: `1g.10gb`, `h100_1g.10gb`, `H100 MIG 1g.10gb`.
_ASKED: Final = re.compile(r"(?:(.*?)[ _-]+)??(?:mig[ -])?(\d+g\.\d+gb(?:\+[a-z.]+)?)", re.IGNORECASE)
#: No model has a longer name; `_ASKED` looks for its end at every place.
MAX_NAME: Final = 120
#: Devices with four parts; all others have seven.
_OF_FOUR: Final = ("1g.6gb", "2g.12gb", "4g.24gb")


@lru_cache(maxsize=4096)
def model_matches(wanted: str, have: str) -> bool:
    """`H100` matches `H100`, `h100-80GB` and `NVIDIA H100 80GB HBM3`; `A10` does not match `A100`.

    `A100|H100` matches whatever one of them matches. A slice of a model is of that model.
    """
    model = _plain(have)
    return any(
        model == want or model.startswith(want + "-") for want in map(_plain, wanted.split("|")) if want
    )


@lru_cache(maxsize=4096)
def suits(wanted: str, have: str) -> bool:
    """Whether a task that asks for this may be given that device: "" is any whole one.

    A request that names a slice gets such a slice; one that names none gets none.
    """
    if slice_of(wanted.split("|")[0]) != slice_of(have):
        return False
    models = [model for model in map(without_slice, wanted.split("|")) if model]
    return not models or model_matches("|".join(models), have)


@lru_cache(maxsize=4096)
def slice_of(model: str) -> str:
    """`H100 MIG 1g.10gb` -> `1g.10gb`; "" of a whole device."""
    found = _SLICE.search(model.strip())
    return found.group(1).lower() if found else ""


def slice_share(name: str) -> int:
    """Thousandths of a device that a slice counts for: `1g.10gb` is one of seven parts."""
    parts = int(name.partition("g")[0])
    return min(1000 * parts // (4 if name in _OF_FOUR else 7), 1000)


def share_of(model: str) -> int:
    """Thousandths of a whole device that a device with this name is."""
    name = slice_of(model)
    return slice_share(name) if name else 1000


def sliced(models: str, name: str) -> str:
    """The name of such a slice of each of these models, of any if none is named; `models` where no slice is."""
    if not name:
        return models
    return "|".join(f"{model.strip()} MIG {name}".strip() for model in models.split("|"))


def read_slice(text: str) -> tuple[str, str] | None:
    """(model or "", slice) from what somebody wrote; None when it names no slice."""
    found = _ASKED.fullmatch(text.strip()) if len(text) <= MAX_NAME else None
    return ((found.group(1) or "").strip(), found.group(2).lower()) if found else None


def without_slice(model: str) -> str:
    """`H100 MIG 1g.10gb` -> `H100`."""
    return _SLICE.sub("", model.strip()).strip()


def _plain(model: str) -> str:
    """Lower case, words joined by "-", without the maker's name."""
    plain = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return _VENDORS.sub("", plain)
