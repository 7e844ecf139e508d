"""Scheduler profiles by name, as policies of the planner."""

from __future__ import annotations

from scheduler.core.policy import Policy
from scheduler.models import PriorityClass, SchedulerProfile
from scheduler.state.load.cluster_rows import knobs_of, preemption_of


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
