"""The tree of limits against its definition, worked out anew for the whole tree each time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quotas.core.limits import NONE, UNBOUNDED, LimitTree

MOST = 24


@dataclass
class Node:
    """One line as a person would write it down."""

    parent: int = NONE
    hard: int = NONE
    nominal: int = NONE
    borrowing: int = NONE
    lending: int = NONE
    enforce: bool = True
    pool: bool = False
    used: int = 0
    children: list[int] = field(default_factory=list)


def tree_of(nodes: list[Node]) -> LimitTree:
    return LimitTree(
        parent=[n.parent for n in nodes],
        used=[n.used for n in nodes],
        hard=[n.hard for n in nodes],
        nominal=[n.nominal for n in nodes],
        borrowing_limit=[n.borrowing for n in nodes],
        lending_limit=[n.lending for n in nodes],
        enforce=[n.enforce for n in nodes],
        is_pool=[n.pool for n in nodes],
    )


# ---------------------------------------------------------------- the definition


def bound(nodes: list[Node], line: int) -> int:
    node = nodes[line]
    if not node.enforce:
        return UNBOUNDED
    found = [UNBOUNDED]
    if node.hard >= 0:
        found.append(node.hard)
    if node.nominal >= 0 and node.borrowing >= 0:
        found.append(node.nominal + node.borrowing)
    if node.nominal >= 0 and node.borrowing < 0 and node.pool and node.parent < 0:
        found.append(node.nominal)
    return min(found)


def kept_back(node: Node) -> int:
    return (
        max(node.nominal - node.lending, 0) if node.nominal >= 0 and node.lending >= 0 and node.enforce else 0
    )


def reserved(nodes: list[Node], line: int, used: list[int]) -> int:
    """What is in use on a line, and what lines below keep of it while they do not use it."""
    below = [child for child, node in enumerate(nodes) if node.parent == line]
    own = used[line] - sum(used[child] for child in below)
    return own + sum(max(reserved(nodes, child, used), kept_back(nodes[child])) for child in below)


def fits(nodes: list[Node], line: int, amount: int) -> bool:
    before = [node.used for node in nodes]
    path, one = [], line
    while one >= 0:
        path.append(one)
        one = nodes[one].parent
    after = [used + (amount if number in path else 0) for number, used in enumerate(before)]
    return all(
        after[one] <= bound(nodes, one)
        and (
            reserved(nodes, one, after) == reserved(nodes, one, before)
            or reserved(nodes, one, after) <= bound(nodes, one)
        )
        for one in path
    )


# ---------------------------------------------------------------- worlds


amounts = st.integers(0, 12)
maybe = st.one_of(st.just(NONE), amounts)


@st.composite
def trees(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 7))):
        nominal = draw(maybe)
        nodes.append(
            Node(
                parent=draw(st.integers(-1, number - 1)),
                hard=draw(maybe),
                nominal=nominal,
                borrowing=draw(maybe) if nominal >= 0 else NONE,
                lending=draw(maybe) if nominal >= 0 else NONE,
                enforce=draw(st.integers(0, 5)) > 0,
                pool=draw(st.booleans()),
            )
        )
    for node in reversed(nodes):  # what runs counts on every line above it
        node.used += draw(st.integers(0, 6))
        if node.parent >= 0:
            nodes[node.parent].used += node.used
    return nodes


@settings(max_examples=250, deadline=None)
@given(trees())
def test_what_is_free_is_what_the_definition_lets_in(nodes: list[Node]) -> None:
    tree = tree_of(nodes)

    for line in range(len(nodes)):
        path = tree.path(line)
        let_in = [amount for amount in range(1, MOST) if fits(nodes, line, amount)]
        free = tree.free(line)

        assert let_in == list(range(1, min(free, MOST - 1) + 1))
        assert let_in == [
            amount for amount in range(1, MOST) if tree.short([(one, amount) for one in path]) is None
        ]


@settings(max_examples=250, deadline=None)
@given(trees(), st.data())
def test_starts_and_ends_leave_the_tree_as_if_it_were_made_anew(
    nodes: list[Node], data: st.DataObject
) -> None:
    tree = tree_of(nodes)
    started: list[tuple[int, int]] = []

    for _ in range(data.draw(st.integers(1, 6))):
        if started and data.draw(st.booleans()):
            line, amount = started.pop(data.draw(st.integers(0, len(started) - 1)))
            sign = -1
        else:
            line, amount = data.draw(st.integers(0, len(nodes) - 1)), data.draw(st.integers(1, 6))
            sign = 1
            if tree.short([(one, amount) for one in tree.path(line)]) is not None:
                continue
            started.append((line, amount))
        tree.take([(one, amount) for one in tree.path(line)], sign=sign)
        for one in tree.path(line):
            nodes[one].used += sign * amount
        anew = tree_of(nodes)
        assert (tree.used, tree.kept) == (anew.used, anew.kept)


# ---------------------------------------------------------------- as an operator would say it


def lab(**words: int) -> list[Node]:
    """An organization with 16, a project with 8 of them, and another one with the other 8."""
    return [Node(nominal=16, pool=True), Node(parent=0, nominal=8, **words), Node(parent=0, nominal=8)]


def test_a_project_borrows_what_the_other_leaves_idle() -> None:
    assert tree_of(lab()).free(2) == 16


def test_a_borrowing_limit_ends_it_earlier() -> None:
    nodes = lab()
    nodes[2].borrowing = 2

    assert tree_of(nodes).free(2) == 10


def test_what_a_lending_limit_keeps_back_is_there_for_its_owner_only() -> None:
    tree = tree_of(lab(lending=3))

    assert tree.free(2) == 11
    tree.take([(2, 11), (0, 11)])
    assert tree.free(2) == 0
    assert tree.free(1) == 5


def test_a_limit_cut_below_use_lets_nothing_in_and_keeps_the_guarantee() -> None:
    nodes = lab(lending=3)
    nodes[2].used = nodes[0].used = 11
    nodes[0].nominal = 10

    tree = tree_of(nodes)

    assert tree.free(2) == 0
    assert tree.free(1) == 0  # the guarantee may not pass what the organization has
    assert tree.borrowed(2) == 3


def test_a_line_without_any_bound_says_so() -> None:
    assert tree_of([Node(nominal=4)]).free(0) == UNBOUNDED


def test_lines_in_a_circle_are_refused() -> None:
    nodes = [Node(parent=1, nominal=4, lending=1), Node(parent=0)]

    with pytest.raises(ValueError, match="circle"):
        tree_of(nodes)
