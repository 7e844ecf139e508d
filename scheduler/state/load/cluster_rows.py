"""The cluster itself: its row with the profile, and the policy of a cycle from them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

from django.conf import settings

from scheduler.core.policy import Policy, options_of, with_rules, without_plugins
from scheduler.core.preemption_policy import MODES, PreemptionPolicy
from scheduler.models import PolicyFault
from scheduler.state.db.fragments import ms
from scheduler.state.db.query import RowQuery
from scheduler.state.records.policy_faults import rule_label

#: Tie-breakers as profiles name them, and the columns they are.
TIE_BREAKERS: Final = {
    "submitted": "submitted_ms",
    "eligible": "eligible_ms",
    "priority": "-priority",
    "smallest": "tasks",
    "shortest": "time_limit_seconds",
}

_PAUSED_TEXT: Final = """CASE WHEN cluster.paused THEN concat('with the whole cluster ', cluster.name,
        nullif(' by ' || cluster.paused_by, ' by '),
        to_char(cluster.paused_at AT TIME ZONE 'UTC', '" since "YYYY-MM-DD"T"HH24:MI:SS"Z"'),
        nullif(': ' || cluster.paused_reason, ': ')) END"""


_RULES: Final = """json_build_object('profile', {profile}.name, 'rules', {profile}.rules,
            'time_zone', {profile}.rule_time_zone, 'hold_seconds', {profile}.rule_hold_seconds)"""


class AppliedClusterRow(NamedTuple):
    """What applying a plan needs of its cluster."""

    now_ms: int  # the moment of the statement
    paused_text: str | None  # None while it is not paused
    lends: bool  # some line of some project lends no more than a limit
    has_budgets: bool


APPLIED_CLUSTER: Final = RowQuery(
    AppliedClusterRow,
    {
        "now_ms": ms("statement_timestamp()"),
        "paused_text": _PAUSED_TEXT,
        "lends": "EXISTS (SELECT FROM quotas_quota WHERE lending_limit IS NOT NULL AND enforce)",
        "has_budgets": "EXISTS (SELECT FROM quotas_budget)",
    },
    "SELECT {columns} FROM scheduler_cluster cluster WHERE cluster.id = %s",
)


class ClusterRow(NamedTuple):
    """A cluster with its profile, and the moment of the picture; texts in JSON are None without a profile."""

    now_ms: int
    name: str
    backend: str
    paused_text: str | None  # None while it is not paused
    policy: str | None  # None without a profile, and so all that follow
    tie_breakers: str | None
    strict_order: bool | None
    placement: str | None
    weights: str | None
    plugins: str | None
    backfill: str | None
    options: str | None
    preemption_enabled: bool | None
    preemption: str | None
    priority_classes: str  # [[value, [values it may stop]], ...]
    queue_profiles: str  # [{"queue": id, "policy": ..., words of `knobs_of`}, ...] of queues with their own
    ageing: str  # [[value, thousandths of a point an hour], ...] of all priority classes, if any of them ages
    class_names: str  # where the priority classes begin, by name
    faults: str  # [subject, ...] of what of the policy is out of use
    rules: (
        str | None
    )  # {"profile": name, "rules": [...], "time_zone", "hold_seconds"}; None without a profile
    choices: str  # [[queue, rule, since in ms], ...] of the last cycle
    profiles: str  # [{"queue": id, 0 for the cluster, "profile": name, "version": number}, ...]


CLUSTER: Final = RowQuery(
    ClusterRow,
    {
        "now_ms": ms("statement_timestamp()"),
        "name": "cluster.name",
        "backend": "cluster.backend",
        "paused_text": _PAUSED_TEXT,
        "policy": "profile.policy",
        "tie_breakers": "profile.tie_breakers::text",
        "strict_order": "profile.strict_order",
        "placement": "profile.placement",
        "weights": "profile.score_weights::text",
        "plugins": "profile.plugins::text",
        "backfill": "profile.backfill",
        "options": "profile.options::text",
        "preemption_enabled": "profile.preemption_enabled",
        "preemption": "profile.preemption::text",
        "priority_classes": """(SELECT coalesce(json_agg(json_build_array(class.value, ARRAY(
            SELECT victim.value FROM scheduler_priorityclass_preempts may
            JOIN scheduler_priorityclass victim ON victim.id = may.to_priorityclass_id
            WHERE may.from_priorityclass_id = class.id ORDER BY 1
        )) ORDER BY class.value), '[]')::text FROM scheduler_priorityclass class)""",
        "queue_profiles": """(SELECT coalesce(json_agg(json_build_object('queue', queue.id, 'policy', own.policy,
            'tie_breakers', own.tie_breakers, 'strict_order', own.strict_order, 'placement', own.placement,
            'weights', own.score_weights, 'plugins', own.plugins, 'backfill', own.backfill,
            'options', own.options, 'rules', """
        + _RULES.format(profile="own")
        + """) ORDER BY queue.id), '[]')::text
        FROM scheduler_queue queue JOIN scheduler_schedulerprofile own ON own.id = queue.profile_id
        WHERE queue.cluster_id = cluster.id AND queue.profile_id IS DISTINCT FROM cluster.profile_id)""",
        "ageing": """(SELECT coalesce(json_agg(json_build_array(class.value, round(class.boost_per_hour * 1000)::int)
            ORDER BY class.value), '[]')::text
        FROM scheduler_priorityclass class
        WHERE EXISTS (SELECT FROM scheduler_priorityclass one WHERE one.boost_per_hour > 0))""",
        "class_names": """(SELECT coalesce(json_object_agg(class.name, class.value), '{{}}')::text
        FROM scheduler_priorityclass class)""",
        "faults": """(SELECT coalesce(json_agg(fault.subject), '[]')::text
        FROM scheduler_policyfault fault WHERE fault.cluster_id = cluster.id)""",
        "rules": f"CASE WHEN profile.id IS NOT NULL THEN {_RULES.format(profile='profile')}::text END",
        "choices": """(SELECT coalesce(json_agg(json_build_array(choice.queue_id, choice.rule, choice.since_ms)
            ORDER BY choice.queue_id), '[]')::text
        FROM scheduler_policychoice choice WHERE choice.cluster_id = cluster.id)""",
        "profiles": """(SELECT coalesce(json_agg(json_build_object('queue', of.queue, 'profile', one.name,
            'version', one.version) ORDER BY of.queue), '[]')::text
        FROM (SELECT 0 AS queue, cluster.profile_id UNION ALL SELECT queue.id, queue.profile_id
            FROM scheduler_queue queue WHERE queue.cluster_id = cluster.id
                AND queue.profile_id IS DISTINCT FROM cluster.profile_id) of
        JOIN scheduler_schedulerprofile one ON one.id = of.profile_id)""",
    },
    """SELECT {columns}
FROM scheduler_cluster cluster LEFT JOIN scheduler_schedulerprofile profile ON profile.id = cluster.profile_id
WHERE cluster.id = %s""",
)


def the_cluster(rows: Sequence[ClusterRow], cluster_id: int) -> ClusterRow:
    """The row of this cluster; raises LookupError where there is none."""
    if not rows:
        raise LookupError(f"there is no cluster with id {cluster_id}")
    return rows[0]


class PolicyFound(NamedTuple):
    """The policy that a cluster can be planned with, and why its profiles cannot be followed; "" = they can."""

    policy: Policy
    problem: str
    #: By label, why a rule cannot be followed and is left out, where no alarm says so yet.
    rule_problems: Mapping[str, str] = {}
    #: Labels of rules that have an alarm and are in no profile of the cluster any more.
    rules_gone: Collection[str] = ()


class _RulesOfProfiles:
    """The rules of the profiles of a cluster as they are read: which are left out, and why."""

    def __init__(self, set_aside: Collection[str] = ()) -> None:
        self.set_aside = frozenset(set_aside)
        self.problems: dict[str, str] = {}
        self._met: set[str] = set()

    def added(self, policy: Policy, written: Mapping[str, Any]) -> Policy:
        """The policy of a profile with those of its rules that can be followed and have no alarm."""
        profile = written["profile"]

        def is_set_aside(name: str) -> bool:
            self._met.add(rule_label(name, profile))
            return rule_label(name, profile) in self.set_aside

        policy, refused = with_rules(policy, **written, tie_breakers=TIE_BREAKERS, set_aside=is_set_aside)
        self.problems |= {
            rule_label(name, profile): why for name, why in refused.items() if not is_set_aside(name)
        }
        return policy

    @property
    def gone(self) -> frozenset[str]:
        """The labels with an alarm that no profile has."""
        return self.set_aside - self._met


def usable_policy_of(cluster: ClusterRow) -> PolicyFound:
    """The policy of the profiles without plugins and rules that are out of use; the default one where they name what
    is not.
    """
    subjects = json.loads(cluster.faults)
    plugins = {
        name.removeprefix(PolicyFault.PLUGIN) for name in subjects if name.startswith(PolicyFault.PLUGIN)
    }
    rules = _RulesOfProfiles(
        [name.removeprefix(PolicyFault.RULE) for name in subjects if name.startswith(PolicyFault.RULE)]
    )
    try:
        policy = without_plugins(_policy_of(cluster, rules), plugins)
        return PolicyFound(policy, "", rules.problems, rules.gone)
    except ValueError as error:
        return PolicyFound(Policy(), str(error))


def policy_of(cluster: ClusterRow) -> Policy:
    """The cluster's profile as a policy; without one, SCHEDULING_POLICY and the built-in defaults.

    Rules that cannot be followed are left out. Raises ValueError that names the unknown word of anything else.
    """
    return _policy_of(cluster, _RulesOfProfiles())


def _policy_of(cluster: ClusterRow, rules: _RulesOfProfiles) -> Policy:
    classes = json.loads(cluster.class_names)
    queues = tuple(
        (
            queue["queue"],
            rules.added(
                Policy(**knobs_of(classes=classes, **{k: v for k, v in queue.items() if k not in _NO_KNOBS})),
                queue["rules"],
            ),
        )
        for queue in json.loads(cluster.queue_profiles)
    )
    if cluster.policy is None:
        return Policy(name=settings.SCHEDULING_POLICY, queues=queues)
    own = Policy(
        **knobs_of(
            policy=cluster.policy,
            tie_breakers=json.loads(cluster.tie_breakers or "[]"),
            strict_order=bool(cluster.strict_order),
            placement=cluster.placement or "best_fit",
            weights=json.loads(cluster.weights or "{}"),
            plugins=json.loads(cluster.plugins or "[]"),
            backfill=cluster.backfill or "none",
            options=json.loads(cluster.options or "{}"),
            classes=classes,
        ),
        queues=queues,
        preemption=preemption_of(
            bool(cluster.preemption_enabled),
            json.loads(cluster.preemption or "{}"),
            json.loads(cluster.priority_classes),
        ),
    )
    return rules.added(own, json.loads(cluster.rules)) if cluster.rules else own


#: What a row of `ClusterRow.queue_profiles` has beside the words of `knobs_of`.
_NO_KNOBS: Final = frozenset({"queue", "rules"})


def knobs_of(
    *,
    policy: str,
    tie_breakers: Sequence[str],
    strict_order: bool,
    placement: str,
    weights: Mapping[str, int],
    plugins: Sequence[str],
    backfill: str,
    options: Mapping[str, Any],
    classes: Mapping[str, int],
) -> dict[str, Any]:
    """What a profile says, as `Policy` takes it; `classes` are the beginnings of priority classes by name."""
    return {
        "name": policy,
        "tie_breakers": tuple(TIE_BREAKERS.get(name, name) for name in tie_breakers),
        "strict_order": strict_order,
        "placement": placement,
        "weights": tuple(sorted(weights.items())),
        "plugins": tuple(plugins),
        "backfill": backfill,
        **options_of(options, classes),
    }


#: What a profile may say about preemption.
OF_PREEMPTION: Final = tuple(
    sorted({f.name for f in fields(PreemptionPolicy)} - {"enabled", "classes", "cannot_suspend"})
)


def _levels(value: Any) -> tuple[tuple[int, int], ...]:
    """`{"75": 50, "0": 90}`: percents by the priority from which each counts, lowest first."""
    if not isinstance(value, Mapping) or not all(
        str(key).isdecimal() and len(str(key)) < 4 and type(percent) is int for key, percent in value.items()
    ):
        raise ValueError('pressure_levels must be whole numbers by priority, as {"75": 50}')
    return tuple(sorted((int(key), percent) for key, percent in value.items()))


def preemption_of(enabled: bool, words: Mapping[str, Any], classes: Iterable[Any] = ()) -> PreemptionPolicy:
    """A profile's rules of preemption; raises ValueError that names the unknown word.

    Quality of service counts unless the profile says otherwise: of one priority guaranteed jobs are stopped last.
    """
    for name, value in words.items():
        if name not in OF_PREEMPTION:
            raise ValueError(f"{name!r} is not a setting of preemption; there are {', '.join(OF_PREEMPTION)}")
        if name == "mode":
            if value not in MODES:
                raise ValueError(f"{value!r} is not a mode of preemption; there are {', '.join(MODES)}")
        elif name == "pressure_levels":
            words = {**words, name: _levels(value)}
        elif type(value) is not int:
            raise ValueError(f"{name} must be a whole number")
    if not enabled and not words.get("reclaim"):
        return PreemptionPolicy(grace_seconds=words.get("grace_seconds", PreemptionPolicy().grace_seconds))
    matrix = tuple((int(begin), tuple(int(victim) for victim in victims)) for begin, victims in classes)
    return PreemptionPolicy(enabled=enabled, classes=matrix, **{"qos": 1, **words})
