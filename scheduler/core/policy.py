"""Policy: the knobs of a planning cycle, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Orders a cycle knows (`ordering.ORDERS` holds their functions).
POLICIES: Final = ("fifo", "priority")

#: Where tasks go among the nodes that can take them.
PLACEMENTS: Final = ("best_fit", "spread")

#: Columns an order may be broken by after its own, all ascending unless the name starts with "-".
TIE_BREAKERS: Final = ("eligible_ms", "submitted_ms", "-priority", "tasks", "time_limit_seconds")

#: Every built-in filter, cheapest first: a node is charged to the first that turns it away.
FILTERS: Final = (
    "state",
    "cordoned",
    "draining",
    "partition",
    "labels",
    "taints",
    "affinity",
    "reserved",
    "gpu_model",
    "gpu_health",
    "gpus",
    "cpu_millis",
    "memory_mib",
    "storage_mib",
)


@dataclass(frozen=True, slots=True)
class Policy:
    """How a cycle decides.

    `strict_order`: a job that waits for nodes or quota stops every job after it in its queue (they wait
    with the reason Priority). Without it a later job may start whenever it fits, which can make a large
    job wait long while small ones keep arriving.

    `weights` are (scorer, weight) pairs that replace those of the placement; empty takes the placement's own.
    `plugins` names outside plugins, in order; the caller of `plan_cycle` hands over the objects.
    """

    name: str = "fifo"
    tie_breakers: tuple[str, ...] = ()
    strict_order: bool = False
    placement: str = "best_fit"
    weights: tuple[tuple[str, int], ...] = ()
    filters: tuple[str, ...] = FILTERS
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, given, known in (
            ("policy", (self.name,), POLICIES),
            ("placement", (self.placement,), PLACEMENTS),
            ("tie-breaker", self.tie_breakers, TIE_BREAKERS),
            ("filter", self.filters, FILTERS),
        ):
            for name in given:
                if name not in known:
                    raise ValueError(f"{name!r} is not a {what}; there are {', '.join(known)}")
        if any(weight <= 0 for _, weight in self.weights):
            raise ValueError("a score weight must be above 0")
