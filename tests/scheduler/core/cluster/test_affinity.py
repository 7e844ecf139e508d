"""Jobs near to or apart from other jobs, and tasks over so many racks, zones or regions (N6, C22)."""

from __future__ import annotations

from collections import Counter

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.constraints import OWN_ARRAY, JobSelector, JobTerm, TaskTerm
from scheduler.core.whatif.explain import Hypothetical, node_table, preview
from tests.scheduler.core.preemption.test_preemption import RULES
from tests.support.builders import a_job, a_node, a_policy, a_world, running

DB = JobSelector(labels=(("app", "db"),))
FOUR = [a_node(f"n{number}", cpus=4, rack=f"r{number // 2}", zone="z") for number in range(4)]


def starts(world, **policy):
    plan = plan_cycle(world.snapshot, a_policy(**policy))
    return world.starts(plan), plan


def test_replicas_that_keep_apart_get_a_rack_each_in_one_cycle() -> None:
    term = JobTerm("rack", DB, apart=True)
    world = a_world(
        nodes=FOUR, pending=[a_job(f"db{n}", labels={"app": "db"}, terms=[term]) for n in range(3)]
    )

    where, plan = starts(world)

    assert where == {"db0": ["n0"], "db1": ["n2"]}
    decision = plan.decision_of(world.job("db2"))
    assert sentence(decision.reason, decision.facts) == (
        "Must not run in the same rack as a job labelled app=db; this leaves 0 of 4 nodes with enough free resources."
    )


def test_the_first_of_its_kind_may_go_anywhere_and_the_others_follow_it() -> None:
    """With the emptiest node first they would part, were it not for the term."""
    term = JobTerm("rack", DB)
    world = a_world(
        nodes=FOUR, pending=[a_job(f"db{n}", labels={"app": "db"}, terms=[term]) for n in range(3)]
    )

    assert starts(world, placement="spread")[0] == {"db0": ["n0"], "db1": ["n1"], "db2": ["n0"]}


def test_a_job_goes_where_one_started_a_moment_before_it() -> None:
    world = a_world(
        nodes=FOUR,
        pending=[
            a_job("early", terms=[JobTerm("node", DB)]),
            a_job("db", cpus=3, labels={"app": "db"}),
            a_job("late", terms=[JobTerm("node", DB)]),
        ],
    )

    where, plan = starts(world, placement="spread")

    assert where == {"db": ["n0"], "late": ["n0"]}
    assert world.reasons(plan) == {"early": "JobAffinity"}


def test_a_strict_queue_is_not_stopped_by_one_that_waits_for_company() -> None:
    world = a_world(
        nodes=FOUR, pending=[a_job("early", terms=[JobTerm("node", DB)]), a_job("db", labels={"app": "db"})]
    )

    assert starts(world, strict_order=True)[0] == {"db": ["n0"]}


def test_nobody_has_a_say_beyond_the_own_project() -> None:
    term = JobTerm("backend", DB, apart=True)
    world = a_world(
        nodes=FOUR,
        running=[running(a_job("theirs", project="speech", labels={"app": "db"}, terms=[term]), "n0")],
        pending=[a_job("ours", labels={"app": "db"}, terms=[term])],
    )

    assert starts(world)[0] == {"ours": ["n0"]}


def test_the_members_of_an_array_keep_to_nodes_of_their_own() -> None:
    own = JobTerm("node", JobSelector(array_id=OWN_ARRAY), apart=True)
    members = [a_job(f"a{n}", array=7, terms=[own]) for n in range(2)]
    others = [a_job(f"b{n}", array=8, terms=[own]) for n in range(2)]

    where, _ = starts(a_world(nodes=FOUR[:2], pending=members + others))

    assert where == {"a0": ["n0"], "a1": ["n1"], "b0": ["n0"], "b1": ["n1"]}


def test_a_wish_for_company_follows_it_and_keeps_nobody_waiting() -> None:
    wish = JobTerm("node", DB, weight=100)
    world = a_world(
        nodes=FOUR,
        running=[running(a_job("db", labels={"app": "db"}), "n3")],
        pending=[a_job("fits", cpus=3, terms=[wish]), a_job("no-room-there", cpus=2, terms=[wish])],
    )

    assert starts(world)[0] == {"fits": ["n3"], "no-room-there": ["n0"]}


def test_a_name_and_a_node_that_is_in_no_rack() -> None:
    world = a_world(
        nodes=[a_node("loose"), a_node("racked", rack="r")],
        running=[running(a_job("cache"), "loose")],
        pending=[a_job("near", terms=[JobTerm("rack", JobSelector(name="cache"))])],
    )

    where, plan = starts(world)

    assert where == {}
    told = node_table(world.snapshot, a_policy(), world.job("near"), plan)
    assert [verdict.sentence for verdict in told] == ["the rack has no job named cache"] * 2


def test_whoever_is_stopped_takes_its_rule_along() -> None:
    """A victim that kept others away does so no more once it is thought away."""
    term = JobTerm("backend", DB, apart=True)
    old = a_job("old", cpus=1, labels={"app": "db"}, terms=[term], priority=0)
    world = a_world(
        nodes=[a_node("n", cpus=8)],
        running=[running(old, "n", started=-90)],
        pending=[a_job("new", cpus=1, labels={"app": "db"}, priority=100)],
    )

    plan = plan_cycle(world.snapshot, a_policy(name="priority", preemption=RULES))

    assert [preempt.job_id for preempt in plan.preempts] == [world.job("old")]


def test_a_preview_asks_the_same() -> None:
    world = a_world(nodes=FOUR, running=[running(a_job("db", labels={"app": "db"}), "n2")])
    near = a_job("x", terms=[JobTerm("rack", DB)]).request

    found = preview(world.snapshot, a_policy(), Hypothetical(near, queue_id=1, project_id=1))

    assert found.start is not None
    assert found.start.node_ids == (world.nodes["n2"],)


@pytest.mark.parametrize(
    ("term", "tasks", "expected"),
    [
        (TaskTerm("rack", most=1), 4, {"r0": 4}),  # the fullest rack that holds them all
        (TaskTerm("rack", most=1), 6, {"r1": 6}),
        (TaskTerm("rack", least=2, most=2), 4, {"r0": 2, "r1": 2}),
        (TaskTerm("rack", per_domain=1), 2, {"r0": 1, "r1": 1}),
        (TaskTerm("rack", per_domain=1), 3, None),
        (TaskTerm("rack", least=3), 3, None),
        (TaskTerm("rack", least=3, soft=True), 3, {"r1": 3}),
        (TaskTerm("node", per_domain=2), 7, {"r0": 3, "r1": 4}),
        (TaskTerm("region", most=1), 2, None),  # nobody says where these nodes are
    ],
)
def test_tasks_are_spread_as_the_rule_says(
    term: TaskTerm, tasks: int, expected: dict[str, int] | None
) -> None:
    nodes = [a_node(f"n{n}", cpus=cpus, rack=f"r{n // 2}") for n, cpus in enumerate([1, 4, 3, 3])]
    world = a_world(nodes=nodes, pending=[a_job("job", tasks=tasks, spread=term)])

    where, plan = starts(world)

    if expected is None:
        assert world.reasons(plan) == {"job": "InvalidSpec"}
    else:
        assert Counter(f"r{int(node[1]) // 2}" for node in where["job"]) == expected
