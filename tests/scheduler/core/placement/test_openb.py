"""GPU fragments on the openb trace, scaled down: the strategies stand where the published ones do."""

from __future__ import annotations

import statistics

from benchmarks.replays import openb
from tests.support.traces import trace


def test_the_fragmentation_gradient_leaves_fewer_gpus_idle_than_best_fit() -> None:
    """A fifth of the nodes and of the tasks, two seeds; `make bench` runs the whole with ten."""
    trace("openb-fgd")

    shares = {
        placement: statistics.mean(openb.run(placement, seed, every=5) for seed in (1, 2))
        for placement in ("best_fit", "frag")
    }

    assert shares["best_fit"] >= 92.0
    assert shares["frag"] >= 94.5
    assert shares["frag"] >= shares["best_fit"] + 1.0
