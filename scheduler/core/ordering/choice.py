"""Choice: which rule of a profile is in force in a cycle, from the snapshot alone.

The first rule whose condition holds wins, else the profile's own settings do. A choice is kept for as long as the
profile says, and a rule in force ends at the threshold of leaving; so the order does not flap from cycle to cycle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple

import numpy as np

from scheduler.core.adaptive.reading import read_time_zone
from scheduler.core.adaptive.rules import Adaptive, Rule
from scheduler.core.columns import Bools, Ints
from scheduler.core.lifecycle import NodeState
from scheduler.core.policy import Policy
from scheduler.core.snapshot.snapshot import ChoiceColumns, JobGate, Snapshot


class InForce(NamedTuple):
    """A rule in force: of which profile, for the cluster (queue 0) or for a queue's own profile."""

    queue_id: int
    profile: str
    rule: str  # "" = the profile's own settings
    since_ms: int


def choose(snapshot: Snapshot, policy: Policy) -> Policy:
    """The policy as its rules, and those of its queues' own policies, have it at the moment of this snapshot.

    The same snapshot and rules give the same choice, whichever rule the policy has in force.
    """
    if not _has_rules(policy):
        return policy
    measures = _Measures(snapshot)
    before = {
        queue_id: (rule, since_ms)
        for queue_id, rule, since_ms in zip(
            snapshot.choices.id.tolist(),
            snapshot.choices.rule,
            snapshot.choices.since_ms.tolist(),
            strict=True,
        )
    }
    queues = tuple(
        (queue_id, _chosen(own, measures, queue_id, before.get(queue_id))) for queue_id, own in policy.queues
    )
    return replace(_chosen(policy, measures, 0, before.get(0)), queues=queues)


def in_force(policy: Policy) -> tuple[InForce, ...]:
    """Of every profile with rules, the cluster's first: what `choose` has chosen."""
    return tuple(
        InForce(queue_id, own.adaptive.profile, own.adaptive.rule, own.adaptive.since_ms)
        for queue_id, own in ((0, policy), *policy.queues)
        if own.adaptive is not None
    )


def choices_of(policy: Policy) -> ChoiceColumns:
    """What `choose` has chosen, as the next snapshot has it."""
    return ChoiceColumns.from_rows((one.queue_id, one.rule, one.since_ms) for one in in_force(policy))


def without_rules(policy: Policy, names: Collection[tuple[str, str]]) -> Policy:
    """The policy without these rules, by (profile, rule); call `choose` on it."""

    def left(own: Policy) -> Policy:
        if (adaptive := own.adaptive) is None:
            return own
        rules = tuple(rule for rule in adaptive.rules if (adaptive.profile, rule.name) not in names)
        return own.ordered(adaptive.own, replace(adaptive, rules=rules, rule="") if rules else None)

    return replace(left(policy), queues=tuple((queue_id, left(own)) for queue_id, own in policy.queues))


def _has_rules(policy: Policy) -> bool:
    return policy.adaptive is not None or any(own.adaptive is not None for _, own in policy.queues)


def _chosen(policy: Policy, measures: _Measures, queue_id: int, before: tuple[str, int] | None) -> Policy:
    adaptive = policy.adaptive
    if adaptive is None:
        return policy
    now_ms = measures.snapshot.now_ms
    rule, since_ms = before if before and before[0] in _names(adaptive) else (None, now_ms)
    if rule is None or now_ms - since_ms >= adaptive.hold_seconds * 1000:
        found = next(
            (
                one.name
                for one in adaptive.rules
                if measures.hold(one, queue_id, adaptive.time_zone, in_force=one.name == rule)
            ),
            "",
        )
        if found != rule:
            rule, since_ms = found, now_ms
    return policy.ordered(adaptive.ordering(rule), replace(adaptive, rule=rule, since_ms=since_ms))


def _names(adaptive: Adaptive) -> Iterator[str]:
    yield ""
    yield from (rule.name for rule in adaptive.rules)


class _Measures:
    """What rules ask of a snapshot, each worked out once and only where a rule asks for it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._of_queue: dict[int, _Pending] = {}

    def hold(self, rule: Rule, queue_id: int, time_zone: str, *, in_force: bool) -> bool:
        """Whether the whole condition of a rule holds for the jobs of this queue, or of all queues for 0."""
        when = rule.when
        if when.names_time:
            at = datetime.fromtimestamp(self.snapshot.now_ms / 1000, tz=UTC)
            if not when.is_time(at.astimezone(read_time_zone(time_zone))):
                return False
        return all(
            bound.holds(self._value(bound.measure, bound.gpus, queue_id), in_force=in_force)
            for bound in when.bounds
        )

    def _value(self, measure: str, gpus: int, queue_id: int) -> int:
        """A measure in jobs or whole percent, rounded down."""
        if measure == "allocated_gpus_percent":
            devices = self.snapshot.devices
            usable = devices.healthy & np.isin(devices.node_id, self.snapshot.nodes.id[self._up])
            return _percent(int(devices.used_millis[usable].sum()), 1000 * int(usable.sum()))
        if measure == "allocated_cpus_percent":
            nodes = self.snapshot.nodes
            return _percent(int(nodes.used_cpu_millis[self._up].sum()), int(nodes.cpu_millis[self._up].sum()))
        pending = self._pending(queue_id)
        large = pending.gpu_millis >= 1000 * gpus
        if measure == "gpu_jobs_percent":
            return _percent(int((pending.gpu_millis > 0).sum()), pending.jobs)
        if measure == "large_jobs_percent":
            return _percent(int(large.sum()), pending.jobs)
        if measure == "large_gpus_percent":
            return _percent(int(pending.gpu_millis[large].sum()), int(pending.gpu_millis.sum()))
        return pending.jobs

    @cached_property
    def _up(self) -> Bools:
        return np.array([state == NodeState.UP.value for state in self.snapshot.nodes.state], dtype=np.bool_)

    @cached_property
    def _could_start(self) -> Bools:
        """The pending jobs that nothing of their own and no paused queue keeps waiting."""
        pending, queues = self.snapshot.pending, self.snapshot.queues
        found: Bools = (pending.gate == JobGate.OPEN) & (pending.eligible_ms <= self.snapshot.now_ms)
        if queues.paused.any():
            found &= ~np.isin(pending.queue_id, queues.id[queues.paused])
        return found

    def _pending(self, queue_id: int) -> _Pending:
        if queue_id not in self._of_queue:
            pending = self.snapshot.pending
            rows = self._could_start & (pending.queue_id == queue_id) if queue_id else self._could_start
            each = np.array(
                [request.per_task.gpu_millis_charged for request in self.snapshot.classes] or [0],
                dtype=np.int64,
            )
            millis = each[pending.class_index[rows]] * pending.tasks[rows]
            self._of_queue[queue_id] = _Pending(int(rows.sum()), millis)
        return self._of_queue[queue_id]


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    jobs: int
    gpu_millis: Ints  # of each job, all its tasks


def _percent(part: int, whole: int) -> int:
    return 100 * part // whole if whole else 0
