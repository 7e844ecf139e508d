"""Scores of nodes: from what ended there, and what the planner makes of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.node_scores import NodeScores, Outages, PersonOnNode, Run, score_nodes
from scheduler.core.policy import PLACEMENTS, Policy
from scheduler.core.snapshot.codec import decode_snapshot, encode_plan, encode_snapshot
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.core.whatif.why_here import why_here
from tests.support.builders import a_job, a_node, a_world

MULTI = Policy(placement="multi-criteria")


def seen(node: int, attempts: int, failed: int = 0, *, user: int = 1) -> PersonOnNode:
    return PersonOnNode(node, user, float(attempts), float(failed), attempts=attempts, lost=failed)


def test_failures_lower_a_node_below_the_others_and_few_say_little() -> None:
    people = [seen(1, 40), seen(1, 40, user=2), seen(2, 40, 10), seen(2, 40, 10, user=2), seen(3, 1, 1)]

    found = score_nodes(people, [], [])

    good, bad, little = (found[node].reliability for node in (1, 2, 3))
    assert None not in (good, bad, little)
    assert (bad or 0) < (little or 0) < (good or 0)
    assert found[2].lost == 20
    assert found[2].attempts == 80
    assert found[1].performance is None


def test_a_node_of_which_nothing_ended_has_no_scores() -> None:
    assert score_nodes([], [], []) == {}


def test_nodes_without_failures_are_all_alike() -> None:
    assert {one.reliability for one in score_nodes([seen(1, 1), seen(2, 500)], [], []).values()} == {100}


def test_an_outage_counts_as_an_attempt_that_failed() -> None:
    found = score_nodes([seen(1, 10), seen(2, 10)], [Outages(2, 1, 1.0)], [])

    assert found[2].outages == 1
    assert (found[2].reliability or 0) < (found[1].reliability or 0)


def test_one_person_alone_does_not_make_a_node_bad() -> None:
    """A person whose 1,000 attempts fail weighs as 50 of them beside 10 people for whom all goes well."""
    others = [seen(1, 50, user=user) for user in range(2, 12)]

    found = score_nodes([*others, seen(1, 1000, 1000)], [], [])

    assert found[1].attempts == 1500
    assert found[1].reliability == round(100 * 2 ** (-(50 / 570) / 0.05))


def test_speed_is_that_of_comparable_runs_on_other_nodes() -> None:
    runs = [Run(1, 7, "train", 100.0, 1.0)] * 20 + [Run(2, 7, "train", 200.0, 1.0)] * 20
    runs += [Run(3, 7, "alone", 5000.0, 1.0)] * 20  # no other node has run it
    runs += [Run(2, 8, "train", 1.0, 1.0)] * 20  # another person's, of the same name

    found = score_nodes([], [], runs)

    assert set(found) == {1, 2}
    assert found[1] == NodeScores(
        performance=min(round(50 * 2 ** (10 / 13)), 100),
        speed_percent=round(100 * 2 ** (10 / 13)),
        compared_runs=20,
    )
    assert (found[2].performance or 0) < 50
    assert found[2].reliability is None


# ------------------------------------------------------------------ in plans


def world(reliability: list[int], performance: list[int] | None = None, **labels: dict[str, str]) -> Snapshot:
    names = [f"n{number}" for number in range(1, len(reliability) + 1)]
    snapshot = a_world(
        nodes=[a_node(name, cpus=8, labels=labels.get(name, {})) for name in names],
        pending=[a_job("one", cpus=1)],
    ).snapshot
    nodes = replace(
        snapshot.nodes,
        reliability=np.array(reliability),
        performance=np.array(performance or [-1] * len(reliability)),
    )
    return replace(snapshot, nodes=nodes)


def chosen(snapshot: Snapshot, policy: Policy = MULTI) -> str:
    (start,) = plan_cycle(snapshot, policy).starts
    return snapshot.nodes.name[start.node_ids[0] - int(snapshot.nodes.id[0])]


@pytest.mark.parametrize(
    ("reliability", "performance", "node"),
    [
        ([20, 90, 60], None, "n2"),
        ([50, -1, 90], None, "n3"),  # n2 is taken to be as the mean of the others
        ([90, -1, 50], None, "n1"),
        ([-1, -1, -1], None, "n1"),
        ([90, 90, 90], [50, 40, 80], "n3"),
    ],
)
def test_the_preset_prefers_nodes_where_attempts_do_not_fail_and_jobs_are_fast(
    reliability: list[int], performance: list[int] | None, node: str
) -> None:
    assert chosen(world(reliability, performance)) == node


def test_a_label_of_an_operator_goes_before_what_was_seen() -> None:
    said = {"n1": {"muster.io/reliability": "99"}, "n2": {"muster.io/reliability": "1"}}

    assert chosen(world([10, 100, 60], **said)) == "n1"


@pytest.mark.parametrize("placement", sorted(set(PLACEMENTS) - {"multi-criteria"}))
def test_other_placements_plan_as_if_nothing_was_seen(placement: str) -> None:
    policy = Policy(placement=placement)
    plans = [encode_plan(plan_cycle(world(scores, scores), policy)) for scores in ([5, 50, 95], [-1, -1, -1])]

    assert plans[0] == plans[1]


def test_a_recorded_cycle_replays_with_its_scores_and_shows_them() -> None:
    snapshot = world([20, 90, 60])
    again = decode_snapshot(encode_snapshot(snapshot))
    plan = plan_cycle(again, MULTI)

    found = why_here(again, MULTI, plan, int(again.pending.id[0]))

    assert again == snapshot
    assert found is not None
    assert found.exact
    assert [(one.name, dict(one.parts)["reliability"]) for one in found.scores] == [
        ("n2", 90),
        ("n3", 60),
        ("n1", 20),
    ]


def test_a_profile_may_weigh_it_by_name() -> None:
    assert chosen(world([20, 90, 60]), Policy(weights=(("reliability", 1),))) == "n2"
