"""Pieces that come while others are worked on are done together; none is lost, and only so many wait."""

from __future__ import annotations

import threading

from infra.grouped_work import GroupedWork
from tests.support.patience import patience


def test_what_came_meanwhile_goes_together() -> None:
    groups: list[list[int]] = []
    began, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def work(pieces: list[int]) -> None:
        groups.append(pieces)
        began.set()
        go_on.wait(patience(20))
        if sum(map(len, groups)) == 6:
            over.set()

    work_on = GroupedWork(work, name="test", most_together=3, most_waiting=5)
    work_on.put(0)
    assert began.wait(patience(20))
    assert [work_on.put(piece) for piece in range(1, 6)] == [True] * 5
    assert not work_on.put(6)
    go_on.set()

    assert over.wait(patience(20))
    assert groups == [[0], [1, 2, 3], [4, 5]]


def test_a_piece_that_comes_alone_waits_for_nobody() -> None:
    done = threading.Event()
    GroupedWork(lambda _: done.set(), name="test", most_together=8, most_waiting=8).put(1)

    assert done.wait(patience(20))
