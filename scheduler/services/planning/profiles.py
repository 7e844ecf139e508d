"""Scheduler profiles as policies of the planner: by name, and without the plugins that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog

from quotas.models import Provider, ProviderState
from scheduler.core.placement.plugins import PluginFailed
from scheduler.core.policy import Policy, with_rules, without_plugins
from scheduler.models import PolicyChoice, PriorityClass, Queue, SchedulerProfile
from scheduler.models.queue import SchedulingPolicy
from scheduler.state.load.cluster_rows import TIE_BREAKERS, knobs_of, preemption_of
from scheduler.state.load.fair_share import SLURM
from scheduler.state.load.snapshots import Loaded

log = structlog.get_logger(__name__)
T = TypeVar("T")


def policy_of_profile(name: str) -> Policy | None:
    """The stored profile of this name as a policy, None when there is none; raises ValueError for a bad one."""
    profile = SchedulerProfile.objects.filter(name=name).first()
    return policy_of_row(profile) if profile is not None else None


def policy_of_row(profile: SchedulerProfile) -> Policy:
    """What a profile says as a policy, stored or not; raises ValueError for a bad one."""
    classes = [
        (one.value, sorted(victim.value for victim in one.preempts.all()))
        for one in PriorityClass.objects.prefetch_related("preempts").order_by("value")
    ]
    knobs = knobs_of(
        policy=profile.policy, tie_breakers=profile.tie_breakers, strict_order=profile.strict_order,
        placement=profile.placement, weights=profile.score_weights, plugins=profile.plugins,
        backfill=profile.backfill, options=profile.options, classes=class_begins(),
    )  # fmt: skip
    policy = Policy(
        **knobs, preemption=preemption_of(profile.preemption_enabled, profile.preemption, classes)
    )
    return ruled_policy(
        policy, profile=profile.name, rules=profile.rules, time_zone=profile.rule_time_zone,
        hold_seconds=profile.rule_hold_seconds,
    )  # fmt: skip


def ruled_policy(policy: Policy, *, profile: str, rules: Any, time_zone: str, hold_seconds: int) -> Policy:
    """The policy with these rules; raises ValueError that names the first that cannot be followed."""
    policy, problems = with_rules(
        policy, rules=rules, profile=profile, time_zone=time_zone, hold_seconds=hold_seconds,
        tie_breakers=TIE_BREAKERS,
    )  # fmt: skip
    for name, problem in problems.items():
        raise ValueError(f"rule {name}: {problem}")
    return policy


def refuse_unknown_shares(policy: Policy) -> None:
    """Raise ValueError for an order by Slurm's fair share where none was ever read."""
    if policy.shares != SLURM:
        return
    kept = ProviderState.objects.filter(provider=Provider.SLURM, facts__fair_share__users__isnull=False)
    if not kept.exists():
        raise ValueError(
            'shares "slurm" needs Slurm\'s fair share, which was read for no project: give one the provider slurm,'
            " over Slurm's commands (slurmrestd does not have it)"
        )


@dataclass(frozen=True, slots=True)
class OrderInForce:
    """By what the jobs of a queue are ordered and placed now, and which rule of a profile says so."""

    policy: SchedulingPolicy
    placement: str
    #: "" = no rule: the profile's own settings are in force.
    rule: str = ""
    #: Since when the rule, or none of the rules, is in force; None = the profile has no rules, or no cycle has run yet.
    since: datetime | None = None


def order_of(policy: Policy, queue_id: int) -> OrderInForce:
    """By what this policy orders and places the jobs of a queue."""
    own = policy.of_queue(queue_id)
    adaptive = own.adaptive
    return OrderInForce(
        SchedulingPolicy(own.name),
        own.placement,
        adaptive.rule if adaptive else "",
        datetime.fromtimestamp(adaptive.since_ms / 1000, tz=UTC) if adaptive else None,
    )


def orders_in_force(queues: Iterable[Queue]) -> dict[int, OrderInForce]:
    """By queue id; one query where a profile has rules, none elsewhere. Profiles are to be loaded with the queues."""
    found: dict[int, OrderInForce] = {}
    ruled: dict[tuple[int, int], list[int]] = {}
    for queue in queues:
        profile = queue.profile or queue.cluster.profile
        found[queue.pk] = OrderInForce(queue.policy, profile.placement if profile else Policy().placement)
        if profile is not None and profile.rules:
            own = queue.profile_id is not None and queue.profile_id != queue.cluster.profile_id
            ruled.setdefault((queue.cluster_id, queue.pk if own else 0), []).append(queue.pk)
    if not ruled:
        return found
    for choice in PolicyChoice.objects.filter(cluster_id__in={cluster_id for cluster_id, _ in ruled}):
        since = datetime.fromtimestamp(choice.since_ms / 1000, tz=UTC)
        for queue_id in ruled.get((choice.cluster_id, choice.queue_id), ()):
            found[queue_id] = OrderInForce(
                SchedulingPolicy(choice.policy), choice.placement, choice.rule, since
            )
    return found


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
