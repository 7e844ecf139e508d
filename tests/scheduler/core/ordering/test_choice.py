"""Rules choose order, placement and weights from the snapshot alone, and the choice does not flap."""

from __future__ import annotations

import zlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.cycle import plan_cycle
from scheduler.core.ordering.choice import choices_of, choose, in_force, without_rules
from scheduler.core.policy import Policy, with_rules
from scheduler.core.snapshot.codec import decode_policy, encode_policy
from scheduler.core.snapshot.snapshot import JobGate, Snapshot
from scheduler.simulator.cluster_replay import simulate
from scheduler.simulator.cluster_workload import ClusterWorkload
from tests.support.builders import NodeSpec, QueueSpec, RunningSpec, a_job, a_world

NIGHT = {"name": "night", "when": {"times": ["22:00-06:00"]}, "policy": "sjf"}


def ruled(*rules: dict[str, Any], own: Policy | None = None, **words: Any) -> Policy:
    policy, problems = with_rules(own or Policy(), rules=[*rules], profile="p", **words)
    assert not problems, problems
    return policy


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def rule_at(policy: Policy, text: str) -> str:
    (one, *_) = in_force(choose(a_world(now_ms=at(text)).snapshot, policy))
    return one.rule


def next_cycle(
    snapshot: Snapshot, policy: Policy, *, seconds: int = 0, pending: int | None = None
) -> Snapshot:
    """What the cycle after one by this policy sees."""
    later = replace(snapshot, choices=choices_of(policy), now_ms=snapshot.now_ms + 1000 * seconds)
    return later if pending is None else replace(later, pending=crowd(pending).pending)


def crowd(jobs: int, **words: Any) -> Snapshot:
    return a_world(
        nodes=[NodeSpec("n1", gpus=8)], pending=[a_job(f"j{n}", gpus=1, **words) for n in range(jobs)]
    ).snapshot


@pytest.mark.parametrize(
    ("when", "zone", "inside", "outside"),
    [
        ({"times": ["22:00-06:00"]}, "UTC",
         ["2026-03-02T22:00", "2026-03-03T05:59"], ["2026-03-02T21:59", "2026-03-03T06:00"]),
        # The night of Friday goes on into Saturday; that into Friday is Thursday's.
        ({"times": ["22:00-06:00"], "weekdays": ["fri"]}, "UTC",
         ["2026-03-06T23:00", "2026-03-07T05:00"], ["2026-03-06T05:00", "2026-03-07T23:00"]),
        ({"weekdays": ["sat", "sun"]}, "UTC", ["2026-03-07T00:00", "2026-03-08T23:59"], ["2026-03-09T00:00"]),
        ({"times": ["00:00-24:00"]}, "UTC", ["2026-03-07T00:00", "2026-03-07T23:59"], []),
        # 22:00 in Berlin is 21:00 UTC in winter, 20:00 in summer.
        ({"times": ["22:00-23:00"]}, "Europe/Berlin",
         ["2026-03-02T21:30", "2026-07-02T20:30"], ["2026-03-02T22:30", "2026-07-02T21:30"]),
    ],
)  # fmt: skip
def test_times_are_local_and_a_night_belongs_to_the_day_on_which_it_began(
    when: dict[str, Any], zone: str, inside: list[str], outside: list[str]
) -> None:
    policy = ruled({**NIGHT, "when": when}, time_zone=zone)
    assert {rule_at(policy, text) for text in inside} == {"night"}
    assert {rule_at(policy, text) for text in outside} <= {""}


def test_the_first_rule_that_applies_sets_what_it_names_and_leaves_the_rest() -> None:
    own = Policy(
        name="priority",
        factors=(("age", 2),),
        tie_breakers=("tasks",),
        weights=(("device_fit", 3),),
        backfill="easy",
    )
    many = {"pending_jobs": {"at_least": 2}}
    first = {"name": "crowd", "when": many, "policy": "sjf"}
    second = {"name": "also", "when": many, "placement": "spread"}
    chosen = choose(crowd(2), ruled(first, second, own=own))
    assert (chosen.name, chosen.tie_breakers, chosen.factors) == ("sjf", (), ())
    assert (chosen.placement, chosen.weights, chosen.backfill) == (own.placement, own.weights, "easy")
    chosen = choose(crowd(2), ruled(second, first, own=own))
    assert (chosen.name, chosen.factors) == ("priority", own.factors)
    assert (chosen.placement, chosen.weights) == ("spread", ())
    none = choose(crowd(1), ruled(first, second, own=own))
    assert none.ordering == own.ordering
    assert in_force(none)[0].rule == ""


def test_measures_count_what_could_start_and_what_is_in_use() -> None:
    world = a_world(
        nodes=[NodeSpec("n1", cpus=10, gpus=4), NodeSpec("n2", cpus=90, gpus=4, state="down")],
        queues=[QueueSpec("main"), QueueSpec("stopped", paused=True)],
        running=[RunningSpec(a_job("r", gpus=3, cpus=2), on=(("n1", (0, 1, 2)),))],
        pending=[
            a_job("large", gpus=2, tasks=4),
            a_job("small", gpus=1),
            a_job("cpu 1"),
            a_job("cpu 2"),
            a_job("held", gpus=1, gate=JobGate.HELD_BY_USER),
            a_job("later", gpus=1, begin=60),
            a_job("elsewhere", gpus=1, queue="stopped"),
        ],
    )
    values = {
        "pending_jobs": 4, "gpu_jobs_percent": 50, "large_jobs_percent": 25, "large_gpus_percent": 88,
        "allocated_gpus_percent": 75, "allocated_cpus_percent": 20,
    }  # fmt: skip
    for measure, value in values.items():
        gpus = {"gpus": 8} if measure.startswith("large") else {}
        for least, rule in ((value, "r"), (value + 1, "")):
            policy = ruled({"name": "r", "when": {measure: {"at_least": least, **gpus}}, "policy": "sjf"})
            assert in_force(choose(world.snapshot, policy))[0].rule == rule, (measure, least)


def test_a_choice_is_kept_for_its_time_and_a_rule_ends_at_its_own_threshold() -> None:
    crowded = {"name": "crowd", "when": {"pending_jobs": {"at_least": 5, "leave": 3}}, "policy": "sjf"}
    policy = ruled(crowded, hold_seconds=60)
    seen = crowd(5)
    chosen = choose(seen, policy)
    began_ms = seen.now_ms
    assert in_force(chosen)[0][2:] == ("crowd", began_ms)
    # Between the thresholds the rule stays, long after the time it is kept at least.
    seen = next_cycle(seen, chosen, seconds=600, pending=3)
    chosen = choose(seen, policy)
    assert in_force(chosen)[0][2:] == ("crowd", began_ms)
    seen = next_cycle(seen, chosen, seconds=10, pending=2)
    chosen = choose(seen, policy)
    ended_ms = seen.now_ms
    assert in_force(chosen)[0][2:] == ("", ended_ms)
    # The choice of no rule is a choice, too: kept for 60 s, whatever comes.
    seen = next_cycle(seen, chosen, seconds=59, pending=9)
    chosen = choose(seen, policy)
    assert in_force(chosen)[0][2:] == ("", ended_ms)
    seen = next_cycle(seen, chosen, seconds=1)
    assert in_force(choose(seen, policy))[0][2:] == ("crowd", seen.now_ms)
    # A rule that is gone is not kept.
    other = ruled({**crowded, "name": "other"}, hold_seconds=60)
    gone = replace(seen, choices=choices_of(replace(chosen, adaptive=replace(chosen.adaptive, rule="crowd"))))  # type: ignore[type-var]
    assert in_force(choose(gone, other))[0].rule == "other"


def test_a_queue_with_its_own_profile_counts_its_own_jobs() -> None:
    rule = {"name": "crowd", "when": {"pending_jobs": {"at_least": 2}}, "policy": "sjf"}
    world = a_world(
        queues=[QueueSpec("main"), QueueSpec("own")],
        pending=[a_job("a"), a_job("b", queue="own"), a_job("c")],
    )
    number = world.snapshot.queues.id.tolist()[world.snapshot.queues.name.index("own")]
    policy = replace(ruled(rule), queues=((number, ruled(rule)),))
    chosen = choose(world.snapshot, policy)
    assert [(one.queue_id, one.rule) for one in in_force(chosen)] == [(0, "crowd"), (number, "")]
    assert (chosen.name, chosen.of_queue(number).name) == ("sjf", "fifo")
    assert without_rules(chosen, {("p", "crowd")}) == replace(Policy(), queues=((number, Policy()),))


@given(
    jobs=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 90)), max_size=8),
    least=st.integers(0, 9),
    hour=st.integers(0, 23),
    kept=st.sampled_from(["", "night", "crowd", "unknown"]),
    ago=st.integers(0, 1000),
)
def test_choosing_is_a_function_of_the_snapshot_and_survives_a_recording(
    jobs: list[tuple[int, int]], least: int, hour: int, kept: str, ago: int
) -> None:
    policy = ruled(
        NIGHT,
        {"name": "crowd", "when": {"pending_jobs": {"at_least": least}}, "placement": "spread"},
        hold_seconds=300,
    )
    snapshot = a_world(
        nodes=[NodeSpec("n1", gpus=8)],
        pending=[a_job(f"j{n}", gpus=gpus, minutes=minutes) for n, (gpus, minutes) in enumerate(jobs)],
        now_ms=at(f"2026-03-02T{hour:02}:30"),
    ).snapshot
    before = replace(
        policy, adaptive=replace(policy.adaptive, rule=kept, since_ms=snapshot.now_ms - 1000 * ago)
    )  # type: ignore[type-var]
    snapshot = replace(snapshot, choices=choices_of(before))
    chosen = choose(snapshot, policy)
    assert choose(snapshot, chosen) == chosen  # whichever rule it starts from
    assert choose(snapshot, replace(before, name="edf")) == chosen
    again = decode_policy(encode_policy(chosen))
    assert again == chosen
    assert plan_cycle(snapshot, again) == plan_cycle(snapshot, chosen)
    # The plan is that of a profile that has what the rule sets.
    plain = chosen.ordered(chosen.ordering, None)
    assert plan_cycle(snapshot, plain) == plan_cycle(snapshot, chosen)


def test_without_rules_nothing_is_chosen_and_recordings_stay_as_they_were() -> None:
    policy = Policy(name="priority", queues=((1, Policy(name="sjf")),))
    assert choose(crowd(3), policy) is policy
    assert b"adaptive" not in zlib.decompress(encode_policy(policy)[8:])


def test_the_simulator_follows_rules_as_cycles_do() -> None:
    """Six jobs wait for one GPU: while four or more wait the shortest goes first, then who came first."""
    world = a_world(
        nodes=[NodeSpec("n1", gpus=1)],
        pending=[a_job(f"j{n}", gpus=1, minutes=60 - 10 * n) for n in range(6)],
    )
    rule = {"name": "crowd", "when": {"pending_jobs": {"at_least": 4}}, "policy": "sjf"}
    run_ms = np.array([60_000 * (60 - 10 * n) for n in range(6)], dtype=np.int64)
    workload = ClusterWorkload(
        "six", world.snapshot, run_ms, amounts=np.full(6, 1000, dtype=np.int64), capacity=1000
    )
    played = simulate(workload, ruled(rule, hold_seconds=0))
    assert np.argsort(played.started_ms).tolist() == [5, 4, 3, 0, 1, 2]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("night", "a rule is an object"),
        ({"name": "", "when": {"weekdays": ["mon"]}, "policy": "sjf"}, '"name" is a text'),
        ({"name": "r", "policy": "sjf"}, "without a condition, set the profile itself"),
        ({"name": "r", "when": {}, "policy": "sjf"}, "without a condition"),
        ({"name": "r", "when": {"moon": "full"}, "policy": "sjf"}, "'moon' is not known in when; there are times"),
        ({"name": "r", "when": {"times": ["25:00-26:00"]}, "policy": "sjf"}, "not a time of day"),
        ({"name": "r", "when": {"times": ["10:00-10:00"]}, "policy": "sjf"}, "a whole day is 00:00-24:00"),
        ({"name": "r", "when": {"weekdays": ["freitag"]}, "policy": "sjf"}, "not a weekday; there are mon"),
        ({"name": "r", "when": {"pending_jobs": 5}, "policy": "sjf"}, '{"at_least": 50}'),
        ({"name": "r", "when": {"pending_jobs": {"leave": 5}}, "policy": "sjf"}, "neither at_least nor at_most"),
        ({"name": "r", "when": {"pending_jobs": {"at_least": 5, "leave": 6}}, "policy": "sjf"}, "leaves below"),
        ({"name": "r", "when": {"pending_jobs": {"at_most": 5, "leave": 4}}, "policy": "sjf"}, "leaves below"),
        ({"name": "r", "when": {"pending_jobs": {"at_least": 5, "at_most": 4}}, "policy": "sjf"}, "never at least 5"),
        ({"name": "r", "when": {"gpu_jobs_percent": {"at_least": 101}}, "policy": "sjf"}, "from 0 to 100"),
        ({"name": "r", "when": {"large_jobs_percent": {"at_least": 50}}, "policy": "sjf"}, "how many GPUs"),
        ({"name": "r", "when": {"pending_jobs": {"at_least": 5, "gpus": 2}}, "policy": "sjf"}, "has no gpus"),
        ({"name": "r", "when": {"weekdays": ["mon"]}}, "sets nothing"),
        ({"name": "r", "when": {"weekdays": ["mon"]}, "policy": "lifo"}, "'lifo' is not a policy; there are fifo"),
        ({"name": "r", "when": {"weekdays": ["mon"]}, "placement": "tetris"}, "'tetris' is not a placement"),
        ({"name": "r", "when": {"weekdays": ["mon"]}, "score_weights": {"device_fit": 0}}, "from 1 to 1000000"),
        ({"name": "r", "when": {"weekdays": ["mon"]}, "score_weights": {"device_fit": 10**9}}, "from 1 to 1000000"),
        ({"name": "r", "when": {"weekdays": ["mon"]}, "factors": {"age": 1}}, 'under the policy "priority"'),
        ({"name": "r", "when": {"weekdays": ["mon"]}, "policy": "sjf", "backfill": "none"}, "'backfill' is not known"),
        ({"name": "Night", "when": {"weekdays": ["mon"]}, "policy": "sjf"}, "another rule has this name"),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_act_is_refused_with_the_reason_and_the_others_are_kept(
    rule: Any, words: str
) -> None:
    policy, problems = with_rules(Policy(), rules=[NIGHT, rule], profile="p")
    ((_, problem),) = problems.items()
    assert words in problem
    assert policy.adaptive is not None
    assert [one.name for one in policy.adaptive.rules] == ["night"]


def test_an_unknown_time_zone_sets_only_rules_of_times_aside() -> None:
    crowded = {"name": "crowd", "when": {"pending_jobs": {"at_least": 5}}, "policy": "sjf"}
    policy, problems = with_rules(Policy(), rules=[NIGHT, crowded], profile="p", time_zone="Mars/Olympus")
    assert "Europe/Berlin" in problems["night"]
    assert policy.adaptive is not None
    assert [one.name for one in policy.adaptive.rules] == ["crowd"]
