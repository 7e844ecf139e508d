"""Scheduler profiles as policies of the planner: by name, and without the plugins that fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from scheduler.core.placement.plugins import PluginFailed
from scheduler.core.policy import Policy, without_plugins
from scheduler.models import PriorityClass, SchedulerProfile
from scheduler.state.load.cluster_rows import knobs_of, preemption_of
from scheduler.state.load.snapshots import Loaded

log = structlog.get_logger(__name__)
T = TypeVar("T")


def policy_of_profile(name: str) -> Policy | None:
    """The stored profile of this name as a policy, None when there is none; raises ValueError for a bad one."""
    profile = SchedulerProfile.objects.filter(name=name).first()
    if profile is None:
        return None
    classes = [
        (one.value, sorted(victim.value for victim in one.preempts.all()))
        for one in PriorityClass.objects.prefetch_related("preempts").order_by("value")
    ]
    knobs = knobs_of(
        policy=profile.policy, tie_breakers=profile.tie_breakers, strict_order=profile.strict_order,
        placement=profile.placement, weights=profile.score_weights, plugins=profile.plugins,
        backfill=profile.backfill, options=profile.options, classes=class_begins(),
    )  # fmt: skip
    return Policy(**knobs, preemption=preemption_of(profile.preemption_enabled, profile.preemption, classes))


def class_begins() -> dict[str, int]:
    """Where the priority classes begin, by name."""
    return dict(PriorityClass.objects.values_list("name", "value"))


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
