"""Policy: the settings of a planning cycle, as one frozen value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from scheduler.core.adaptive.reading import read_rules, read_time_zone
from scheduler.core.adaptive.rules import HOLD_SECONDS, Adaptive, Ordering
from scheduler.core.preemption_policy import PreemptionPolicy

#: Orders a cycle knows (`ordering.ORDERS` holds their functions).
POLICIES: Final = ("fifo", "priority", "fairshare", "sjf", "edf", "fair_queue")

#: Where tasks go among the nodes that can take them.
PLACEMENTS: Final = (
    "best_fit", "spread", "frag", "least_loaded", "resource_balance", "round_robin",
    "balanced", "k8s", "multi-criteria", "quality",
)  # fmt: skip

#: How near to each other the tasks of one job should be when one node cannot take them all; "" = no wish.
PACKINGS: Final = ("", "rack", "zone")

#: Columns an order may be broken by after its own, all ascending unless the name starts with "-".
TIE_BREAKERS: Final = ("eligible_ms", "submitted_ms", "-priority", "tasks", "time_limit_seconds")

#: What may add to a job's priority, each from 0 to 1 times its weight (`ordering.factors`).
FACTORS: Final = ("priority", "queue", "age", "size", "fairshare")

#: What of a job's priority orders it under "priority": the number, or its band (Low to 33, Normal to 66, High).
PRIORITIES_BY: Final = ("number", "band")

#: How fair share counts: as a tree where there is one ("auto"), by projects alone, always as a tree, or by shares
#: multiplied down the tree ("product"), or as Slurm says ("slurm").
SHARES: Final = ("auto", "flat", "tree", "product", "slurm")

#: Whose jobs take turns under "fair_queue".
TENANTS: Final = ("project", "user")

#: How later jobs may pass earlier ones that wait for room (`backfill.take_turns`).
BACKFILLS: Final = ("none", "easy", "conservative", "aggressive", "deadline")

#: Who is tried first in the gaps.
BACKFILL_ORDERS: Final = ("queue", "shortest")

#: Every built-in filter, cheapest first: a node is charged to the first that turns it away.
FILTERS: Final = (
    "state",
    "fault",
    "cordoned",
    "draining",
    "partition",
    "wall",
    "labels",
    "isolation",
    "agent",
    "taints",
    "affinity",
    "reserved",
    "jobs",
    "gpu_model",
    "gpu_health",
    "size",
    "gpus",
    "cpu_millis",
    "memory_mib",
    "storage_mib",
    "numa",
)


@dataclass(frozen=True, slots=True)
class Policy:
    """How a cycle decides.

    `strict_order`: a job that waits for nodes or quota stops every job after it in its queue (they wait
    with the reason Priority). Without it a later job may start whenever it fits, which can make a large
    job wait long while small ones keep arriving.

    `factors` are (factor, weight) pairs; with any, "priority" orders by their weighted sum instead of queue, then
    job. Age counts up to `age_cap_seconds`. `tenant` is who takes turns under "fair_queue".

    `priority_by` "band": under "priority" without factors, jobs of one band (Low 0 to 33, Normal 34 to 66, High 67 to
    100) start first in, first out.

    `backfill` "none": a later job starts whenever it fits. "easy": only if it does not move the expected start
    of the first that does not fit. "conservative": of the first `backfill_promises`. "aggressive": as easy, but
    that start may move by up to `backfill_delay_seconds` in all. "deadline": of the first, and of jobs with a
    deadline. `backfill_scan` bounds how many jobs are tried in the gaps (0 = all);
    jobs above `backfill_max_priority` never pass others.

    `shares` "auto": fair share follows the tree of organizations, projects and people where there is one, and the
    projects alone where all of them stand side by side with members of equal weight. "flat", "tree": always so.
    "slurm": everybody by the fair share of Slurm, as the quota provider read it last.
    "product": each person by the product of the shares from the root down over its own use, whatever its siblings used.

    `assemblies`: the most gangs that gather nodes at once, of those that ask for it; 0 = none.

    `resize_seconds`: elastic jobs give up tasks instead of being stopped whole, and start again from their
    checkpoint with more when room is idle, each no sooner than so long after its last change; 0 = never.

    `packing` "rack": a job over several nodes goes into one rack if one holds it, else into one zone, else
    anywhere; "zone" begins with the zone. It keeps no job waiting.

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
    packing: str = ""
    factors: tuple[tuple[str, int], ...] = ()
    age_cap_seconds: int = 7 * 24 * 3600
    tenant: str = "project"
    shares: str = "auto"
    backfill: str = "none"
    backfill_order: str = "queue"
    backfill_promises: int = 16
    backfill_delay_seconds: int = 0
    backfill_scan: int = 0
    backfill_max_priority: int = 100
    assemblies: int = 1
    resize_seconds: int = 0
    preemption: PreemptionPolicy = PreemptionPolicy()
    #: (queue id, its own policy) of queues that have one: it says how their jobs take turns among each other, where
    #: they go, and whether they may pass others. What concerns all, backfill and preemption, is the cluster's.
    queues: tuple[tuple[int, Policy], ...] = ()
    priority_by: str = "number"
    #: The rules by which order, placement and weights are chosen each cycle (`ordering.choice`); None = none.
    adaptive: Adaptive | None = None

    def of_queue(self, queue_id: int) -> Policy:
        """By what the jobs of a queue are planned."""
        return dict(self.queues).get(queue_id, self)

    @property
    def ordering(self) -> Ordering:
        """The settings that rules may change, as they are."""
        return Ordering(
            self.name, self.tie_breakers, self.factors, self.priority_by, self.placement, self.weights
        )

    def ordered(self, ordering: Ordering, adaptive: Adaptive | None) -> Policy:
        """The policy with these settings, and these rules; raises ValueError for settings that none can follow."""
        return replace(
            self, name=ordering.name, tie_breakers=ordering.tie_breakers, factors=ordering.factors,
            priority_by=ordering.priority_by, placement=ordering.placement, weights=ordering.weights,
            adaptive=adaptive,
        )  # fmt: skip

    def variants(self) -> tuple[Policy, ...]:
        """The policy as it is and as its own settings and each of its rules have it, without those of queues."""
        alone = replace(self, queues=())
        if self.adaptive is None:
            return (alone,)
        names = ("", *(rule.name for rule in self.adaptive.rules))
        return (alone, *(alone.ordered(self.adaptive.ordering(name), None) for name in names))

    def __post_init__(self) -> None:
        if any(own.queues for _, own in self.queues):
            raise ValueError("a queue's own policy is about that queue alone")
        self._check_names()
        if any(weight <= 0 for _, weight in self.weights):
            raise ValueError("a score weight must be above 0")
        if self.age_cap_seconds < 1:
            raise ValueError("age must be capped at 1 second or more")
        if self.priority_by == "band" and (self.name != "priority" or self.factors):
            raise ValueError(
                'bands order jobs under the policy "priority" without factors; leave "priority_by" out, or change these'
            )
        if self.backfill != "none" and self.strict_order:
            raise ValueError("a strict order has no backfill")
        if self.resize_seconds < 0:
            raise ValueError(
                "elastic jobs change their size no sooner than 0 or more seconds after the last time"
            )
        if self.assemblies < 0:
            raise ValueError("0 or more gangs gather nodes at once")
        if self.backfill_promises < 1 or min(self.backfill_delay_seconds, self.backfill_scan) < 0:
            raise ValueError("backfill promises a start to 1 job or more; its delay and scan are 0 or more")

    def _check_names(self) -> None:
        """Raise ValueError for a name that no rule has."""
        for what, given, known in (
            ("policy", (self.name,), POLICIES),
            ("placement", (self.placement,), PLACEMENTS),
            ("packing", (self.packing,), PACKINGS),
            ("tie-breaker", self.tie_breakers, TIE_BREAKERS),
            ("filter", self.filters, FILTERS),
            ("factor", tuple(name for name, _ in self.factors), FACTORS),
            ("tenant", (self.tenant,), TENANTS),
            ("way to order by priority", (self.priority_by,), PRIORITIES_BY),
            ("way to count shares", (self.shares,), SHARES),
            ("backfill", (self.backfill,), BACKFILLS),
            ("backfill order", (self.backfill_order,), BACKFILL_ORDERS),
        ):
            for name in given:
                if name not in known:
                    raise ValueError(f"{name!r} is not a {what}; there are {', '.join(known)}")


#: Knobs that a profile keeps by name among its options.
OPTIONS: Final = (
    "packing",
    "factors",
    "age_cap_seconds",
    "tenant",
    "priority_by",
    "shares",
    "backfill_order",
    "backfill_promises",
    "backfill_delay_seconds",
    "backfill_scan",
    "backfill_max_priority",
    "assemblies",
    "resize_seconds",
)


#: Those that are a word; the others but "factors" are whole numbers.
_TEXTS: Final = frozenset({"packing", "tenant", "shares", "backfill_order", "priority_by"})


def without_plugins(policy: Policy, names: Collection[str]) -> Policy:
    """The policy, and those of queues, that name none of these plugins, neither as such nor with a weight."""
    if not names:
        return policy
    return replace(
        policy,
        plugins=tuple(name for name in policy.plugins if name not in names),
        weights=tuple((name, weight) for name, weight in policy.weights if name not in names),
        queues=tuple((queue, without_plugins(own, names)) for queue, own in policy.queues),
        adaptive=_adaptive_without(policy.adaptive, names),
    )


def _adaptive_without(adaptive: Adaptive | None, names: Collection[str]) -> Adaptive | None:
    """The rules with no weight for these plugins; a rule that had no other keeps the weights of its placement."""
    if adaptive is None:
        return None

    def left(weights: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        return tuple((name, weight) for name, weight in weights if name not in names)

    return replace(
        adaptive,
        own=replace(adaptive.own, weights=left(adaptive.own.weights)),
        rules=tuple(replace(rule, weights=left(rule.weights)) for rule in adaptive.rules),
    )


def every_policy(policy: Policy) -> list[tuple[int, Policy]]:
    """All that a cycle may order or place by: (queue id, policy), 0 for the cluster's, each in all its variants."""
    each = ((0, policy), *policy.queues)
    return [(queue_id, variant) for queue_id, own in each for variant in own.variants()]


def with_rules(
    policy: Policy,
    *,
    rules: Any,
    profile: str,
    time_zone: str = "UTC",
    hold_seconds: int = HOLD_SECONDS,
    tie_breakers: Mapping[str, str] | None = None,
    set_aside: Callable[[str], bool] = lambda name: False,
) -> tuple[Policy, dict[str, str]]:
    """The policy with the rules of its profile, and by name why some of them cannot be followed.

    `tie_breakers` are the columns of tie-breakers by the names that profiles use. Rules whose name is `set_aside`
    are left out.
    """
    readable, problems = read_rules(rules)
    try:
        read_time_zone(time_zone)
        zone_problem = ""
    except ValueError as problem:
        zone_problem = str(problem)
    kept = []
    for read in readable:
        ties = read.tie_breakers
        if ties is not None and tie_breakers:
            ties = tuple(tie_breakers.get(name, name) for name in ties)
        rule = replace(read, tie_breakers=ties)
        try:
            if zone_problem and rule.when.names_time:
                raise ValueError(zone_problem)
            ordering = rule.over(policy.ordering)
            if ordering.name != "priority" and rule.factors is not None:
                raise ValueError(
                    'factors order jobs under the policy "priority"; name that policy, or no factors'
                )
            policy.ordered(ordering, None)
        except ValueError as problem:
            problems[rule.name] = str(problem)
        else:
            kept.append(rule)
    kept = [rule for rule in kept if not set_aside(rule.name)]
    if not kept:
        return policy, problems
    zone = "UTC" if zone_problem else time_zone
    return replace(
        policy, adaptive=Adaptive(profile, tuple(kept), policy.ordering, zone, hold_seconds)
    ), problems


#: The same by the name of a priority class: its jobs and those below it may pass others, none above.
BACKFILL_MAX_CLASS: Final = "backfill_max_class"


#: The least isolation of nodes for the jobs of every queue with this profile: read with the queue, not with the policy.
ISOLATION: Final = "isolation"
ISOLATIONS: Final = ("", "partial", "strict")


def class_tops(classes: Mapping[str, int]) -> dict[str, int]:
    """By name, the highest priority that is in a class, from where each begins."""
    begins = sorted(set(classes.values()))
    return {
        name.upper(): min((one for one in begins if one > begin), default=101) - 1
        for name, begin in classes.items()
    }


def _without_isolation(written: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are the policy's own; raises ValueError for an isolation that is no level."""
    own = dict(written)
    if (level := own.pop(ISOLATION, "")) not in ISOLATIONS:
        raise ValueError(f'"isolation" is "partial", "strict" or "" (any node), not {level!r}')
    return own


def options_of(written: Mapping[str, Any], classes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The further knobs of a policy from what a profile says; raises ValueError for what is none.

    `classes` are where the priority classes begin, by name.
    """
    words: dict[str, Any] = {}
    for name, value in _without_isolation(written).items():
        if name == BACKFILL_MAX_CLASS:
            tops = class_tops(classes or {})
            if "backfill_max_priority" in written:
                raise ValueError(f"say either {BACKFILL_MAX_CLASS} or backfill_max_priority, not both")
            if not isinstance(value, str) or value.upper() not in tops:
                raise ValueError(f"{value!r} is not a priority class; there are {', '.join(tops)}")
            words["backfill_max_priority"] = tops[value.upper()]
            continue
        if name not in OPTIONS:
            known = ", ".join((*OPTIONS, BACKFILL_MAX_CLASS, ISOLATION))
            raise ValueError(f"{name!r} is not an option; there are {known}")
        if name == "factors":
            if not isinstance(value, Mapping) or not all(type(weight) is int for weight in value.values()):
                raise ValueError(
                    '"factors" is an object of whole numbers, such as {"age": 2, "priority": 10}'
                )
            words[name] = tuple(sorted(value.items()))
        elif type(value) is not (str if name in _TEXTS else int):
            raise ValueError(f"the option {name!r} cannot be {value!r}")
        else:
            words[name] = value
    return words
