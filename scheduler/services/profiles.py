"""Scheduler profiles by name, as policies of the core."""

from __future__ import annotations

from scheduler.core.policy import Policy, options_of
from scheduler.models import PriorityClass, SchedulerProfile
from scheduler.state.snapshots import TIE_BREAKERS, preemption_of


def policy_of_profile(name: str) -> Policy | None:
    """The stored profile of this name as a policy, None when there is none; raises ValueError for a bad one."""
    profile = SchedulerProfile.objects.filter(name=name).first()
    if profile is None:
        return None
    classes = [
        (one.value, sorted(victim.value for victim in one.preempts.all()))
        for one in PriorityClass.objects.prefetch_related("preempts").order_by("value")
    ]
    return Policy(
        name=profile.policy,
        tie_breakers=tuple(TIE_BREAKERS.get(name, name) for name in profile.tie_breakers),
        strict_order=profile.strict_order,
        placement=profile.placement,
        weights=tuple(sorted(profile.score_weights.items())),
        plugins=tuple(profile.plugins),
        preemption=preemption_of(profile.preemption_enabled, profile.preemption, classes),
        backfill=profile.backfill,
        **options_of(profile.options, class_begins()),
    )


def class_begins() -> dict[str, int]:
    """Where the priority classes begin, by name."""
    return dict(PriorityClass.objects.values_list("name", "value"))
