"""Pricing: what it costs to hold so much for so long, in millionths of the site's currency."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from quotas.core.gpu_models import without_slice

#: How many of a resource's own units make one of what a price is named for: a core, a GiB, a GPU.
UNITS: Final = {"cpu_millis": 1000, "memory_mib": 1024, "gpu_millis": 1000, "storage_mib": 1024}
HOUR: Final = 3600
#: Every unit times an hour divides it, so that sums over several prices stay exact until they are rounded.
_PARTS: Final = 128_000 * HOUR


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour of one core, GiB or GPU costs from one moment until another; times in whole seconds.

    A price with a GPU model goes before one without, and one for a slice before that of its model. All are those
    of a whole GPU: a slice costs its part of it. `until_s` None = until further notice.
    """

    resource: str
    micros_per_hour: int
    from_s: int
    until_s: int | None = None
    gpu_model: str = ""


@dataclass(frozen=True, slots=True)
class Rates:
    """What is held at one time: all tasks of an attempt together, on GPUs of one model."""

    cpu_millis: int = 0
    memory_mib: int = 0
    gpu_millis: int = 0
    storage_mib: int = 0
    gpu_model: str = ""


def cost_micros(rates: Rates, from_s: int, until_s: int, prices: Iterable[Price]) -> int:
    """What holding so much from one second until another costs.

    Rounding: every second counts at the price that is valid as it begins; the parts are added up exactly
    and the sum is rounded once, half up, to a whole millionth.
    """
    known = list(prices)
    if until_s <= from_s or not known:
        return 0
    cuts = {from_s, until_s}
    for price in known:
        cuts |= {moment for moment in (price.from_s, price.until_s) if moment and from_s < moment < until_s}
    edges = sorted(cuts)
    parts = 0
    for begin, end in pairwise(edges):
        for resource, unit in UNITS.items():
            amount = getattr(rates, resource)
            valid = _valid(known, resource, rates.gpu_model, begin) if amount else None
            if valid is not None:
                parts += amount * valid.micros_per_hour * (end - begin) * (_PARTS // (unit * HOUR))
    return (2 * parts + _PARTS) // (2 * _PARTS)


def _valid(prices: list[Price], resource: str, gpu_model: str, at_s: int) -> Price | None:
    """The price of a resource at a moment: of the model itself if there is one, the youngest if several."""
    names = ("", without_slice(gpu_model), gpu_model)
    found = [
        price
        for price in prices
        if price.resource == resource
        and price.gpu_model in names
        and price.from_s <= at_s
        and (price.until_s is None or at_s < price.until_s)
    ]
    return max(found, key=lambda price: (len(price.gpu_model), price.from_s), default=None)
