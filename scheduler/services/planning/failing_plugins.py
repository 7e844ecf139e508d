"""Previews, explanations and forecasts where a plugin fails before the planner has put it out of use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from scheduler.core.placement.plugins import PluginFailed
from scheduler.core.policy import without_plugins
from scheduler.state.load.snapshots import Loaded

log = structlog.get_logger(__name__)
T = TypeVar("T")


def leaving_out_failing(loaded: Loaded, work: Callable[[Loaded], T]) -> T:
    """Do this by the cluster's policy, without each plugin that fails at it: so does the next cycle.

    Nothing is written: the planner is the one who puts a plugin out of use. Raises what `work` raises otherwise.
    """
    left_out: set[str] = set()
    while True:
        try:
            return work(loaded)
        except PluginFailed as failed:
            if failed.name in left_out:
                raise
            left_out.add(failed.name)
            log.warning(
                "plugin_left_out", plugin=failed.name, reason=failed.reason, cluster=loaded.cluster_id
            )
            loaded = replace(loaded, policy=without_plugins(loaded.policy, left_out))
