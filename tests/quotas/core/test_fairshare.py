"""Fairness, as properties of the factor."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.core.fairshare import (
    HARD,
    NOTHING,
    SOFT,
    STEPS,
    Metering,
    fair_tree,
    flat_share,
    over_share,
    product_factors,
)

Nodes = list[tuple[int, int, int]]  # parent, weight, own use (of leaves)


@st.composite
def trees(draw: st.DrawFn) -> Nodes:
    nodes: Nodes = []
    for row in range(draw(st.integers(1, 24))):
        parent = draw(st.integers(-1, row - 1))
        nodes.append((parent, draw(st.integers(0, 3)), draw(st.sampled_from([0, 0, 1, 2, 3, 7, 100]))))
    groups = {parent for parent, _, _ in nodes}
    return [
        (parent, weight, 0 if row in groups else used) for row, (parent, weight, used) in enumerate(nodes)
    ]


def standings(nodes: Nodes):
    parent, weight, used = (np.array(column, dtype=np.int64) for column in zip(*nodes, strict=True))
    return fair_tree(parent, weight, used.astype(np.float64))


def by_hand(nodes: Nodes) -> dict[int, int]:
    """How many leaves are before each leaf, from the words of the definition: recursive, in exact fractions."""
    children: dict[int, list[int]] = {}
    for row, (parent, _, _) in enumerate(nodes):
        children.setdefault(parent, []).append(row)

    def total(row: int) -> int:
        return nodes[row][2] + sum(total(child) for child in children.get(row, []))

    def level(row: int) -> Fraction | float:
        group = children[nodes[row][0]]
        weights, used = sum(nodes[one][1] for one in group), sum(total(one) for one in group)
        if nodes[row][1] == 0:
            return Fraction(0)
        if total(row) == 0:
            return float("inf")
        return Fraction(nodes[row][1], weights) / Fraction(total(row), used)

    places: list[list[int]] = []

    def walk(rows: list[int]) -> None:
        for _, tied in itertools.groupby(sorted(rows, key=level, reverse=True), key=level):
            members = list(tied)
            alone = [row for row in members if row not in children]
            if alone:
                places.append(alone)
            below = [child for row in members for child in children.get(row, [])]
            if below:
                walk(below)

    walk(children[-1])
    before, ahead = 0, {}
    for place in places:
        ahead |= dict.fromkeys(place, before)
        before += len(place)
    return ahead


def test_the_flat_case_is_the_formula_of_the_document() -> None:
    weight, hours = np.array([2.0, 1.0, 1.0]), np.array([3.0, 0.0, 0.5])

    assert flat_share(weight, hours).tolist() == [2 / (3 + 1.0), 1 / (0 + 1.0), 1 / (0.5 + 1.0)]


@given(trees())
def test_the_tree_is_walked_as_the_definition_says(nodes: Nodes) -> None:
    found = standings(nodes)

    for row, ahead in by_hand(nodes).items():
        assert found.ahead[row] == ahead
        assert found.factor[row] == (found.leaves - ahead) * STEPS // found.leaves


@given(trees(), st.sampled_from([2, 1024]), st.sampled_from([2, 8]))
def test_only_proportions_matter(nodes: Nodes, more: int, heavier: int) -> None:
    scaled = [(parent, weight * heavier, used * more) for parent, weight, used in nodes]

    assert standings(scaled).factor.tolist() == standings(nodes).factor.tolist()


@given(trees(), st.data())
def test_using_more_never_helps_and_using_less_never_harms(nodes: Nodes, data: st.DataObject) -> None:
    groups = {parent for parent, _, _ in nodes}
    row = data.draw(st.sampled_from([row for row in range(len(nodes)) if row not in groups]))
    parent, weight, used = nodes[row]
    more = [*nodes[:row], (parent, weight, used + data.draw(st.integers(1, 50))), *nodes[row + 1 :]]

    before, after = standings(nodes), standings(more)

    # Among its siblings it can only fall.
    siblings = [one for one in range(len(nodes)) if nodes[one][0] == parent and one != row]
    for one in siblings:
        if before.level[one] > before.level[row]:
            assert after.level[one] > after.level[row]


@given(trees())
def test_a_group_with_the_higher_level_share_has_all_its_people_first(nodes: Nodes) -> None:
    found = standings(nodes)
    paths: list[list[int]] = []
    for row, (parent, _, _) in enumerate(nodes):
        paths.append([*(paths[parent] if parent >= 0 else []), row])
    groups = {parent for parent, _, _ in nodes}
    leaves = [row for row in range(len(nodes)) if row not in groups]

    for one, other in itertools.permutations(leaves, 2):
        split = next((a, b) for a, b in zip(paths[one], paths[other], strict=False) if a != b)
        if found.level[split[0]] > found.level[split[1]] and nodes[split[0]][0] == nodes[split[1]][0]:
            assert found.factor[one] >= found.factor[other]
            if all(found.level[up] != found.level[down] for up, down in [split]):
                assert found.ahead[one] < found.ahead[other]


@given(trees())
def test_shares_and_use_are_conserved_at_every_level(nodes: Nodes) -> None:
    found = standings(nodes)
    own = sum(used for _, _, used in nodes)

    assert sum(found.used[row] for row in range(len(nodes)) if nodes[row][0] < 0) == own
    for parent in {parent for parent, _, _ in nodes}:
        group = [row for row in range(len(nodes)) if nodes[row][0] == parent]
        shares = sum(found.share[row] for row in group)
        assert shares == pytest.approx(1 if any(nodes[row][1] for row in group) else 0)
        if parent >= 0:
            assert sum(found.entitled[row] for row in group) <= found.entitled[parent] + 1e-9


@given(trees(), st.randoms())
def test_the_order_of_rows_changes_nothing(nodes: Nodes, dice) -> None:
    depth: list[int] = []
    for parent, _, _ in nodes:
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    order = list(range(len(nodes)))
    dice.shuffle(order)
    order.sort(key=lambda row: depth[row])
    place = {row: number for number, row in enumerate(order)}
    moved = [(place.get(nodes[row][0], -1), *nodes[row][1:]) for row in order]

    one, other = standings(nodes), standings(moved)

    assert [other.ahead[place[row]] for row in range(len(nodes))] == one.ahead.tolist()


def test_who_used_exactly_the_share_stands_at_one_and_who_used_none_goes_first() -> None:
    found = standings([(-1, 2, 200), (-1, 1, 100), (-1, 1, 0)])

    assert found.share.tolist() == [0.5, 0.25, 0.25]
    assert found.level.tolist() == pytest.approx([0.75, 0.75, np.inf])
    assert found.factor.tolist() == [666_666, 666_666, 1_000_000]


def test_a_group_does_not_suffer_for_the_one_who_uses_it_all() -> None:
    # Two groups of equal weight and use; in the second one person did everything.
    found = standings([(-1, 1, 0), (-1, 1, 0), (0, 1, 40), (0, 1, 60), (1, 1, 100), (1, 1, 0)])

    assert found.level[:2].tolist() == [1.0, 1.0]
    assert np.argsort(found.ahead[2:], kind="stable").tolist() == [3, 0, 1, 2]


def test_shares_multiply_down_the_tree() -> None:
    found = standings([(-1, 3, 0), (-1, 1, 0), (0, 1, 1), (0, 1, 1), (1, 5, 1)])

    assert found.entitled.tolist() == pytest.approx([0.75, 0.25, 0.375, 0.375, 0.25])


def test_a_tree_with_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match="before its children"):
        fair_tree(np.array([1, 0]), np.array([1, 1]), np.zeros(2))


def test_resources_count_by_weight_or_the_dominant_one_alone() -> None:
    used = {"gpu": np.array([7200.0, 0.0]), "cpu": np.array([0.0, 36_000.0]), "memory": np.array([0.0, 0.0])}
    capacity = {"gpu": 4.0, "cpu": 10.0, "memory": 0.0}

    assert Metering().usage(used, capacity).tolist() == [7200, 0]
    assert Metering(gpu=1, cpu=0.1).usage(used, capacity).tolist() == [7200, 3600]
    # 2 h of one of 4 GPUs is 1,800 s of all of them; 10 h of one of 10 cores is 3,600 s of all.
    dominant = Metering(gpu=1, cpu=1, memory=1, dominant=True).usage(used, capacity)
    assert dominant.tolist() == [7200, 14_400]
    with pytest.raises(ValueError):
        Metering(gpu=0)


def test_limits_of_a_share_are_parts_of_the_whole_site() -> None:
    full = 1000.0
    used = np.array([100.0, 250.0, 500.0, 900.0])

    over = over_share(used, full, np.array([20, 20, 20, 0]), np.array([50, 50, 50, 0]))

    assert over.tolist() == [NOTHING, SOFT, HARD, NOTHING]


@given(trees())
def test_the_product_is_the_flat_formula_with_shares_multiplied_down(nodes: Nodes) -> None:
    parent, weight, used = (np.array(column) for column in zip(*nodes, strict=True))
    found = fair_tree(parent, weight, used * 3600.0)

    product: list[Fraction] = []
    for row, (above, own, _) in enumerate(nodes):
        siblings = sum(other for at, other, _ in nodes if at == above)
        share = Fraction(own, siblings) if siblings else Fraction(0)
        product.append(share * (product[above] if above >= 0 else 1))
        assert abs(float(product[row]) - found.entitled[row]) < 1e-9
    values = [float(one) / (found.used[row] / 3600 + 1.0) for row, one in enumerate(product)]
    best = max(values)

    factors = product_factors(found)

    assert all(
        abs(factor - (value / best * STEPS if best else 0))
        < 1.001  # rounded down, from another order of floats
        for factor, value in zip(factors.tolist(), values, strict=True)
    )
