"""Work done in groups: who shares one, who fails alone, and who is not let in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from infra.db.groups import Groups
from infra.errors import MusterError

Make = Callable[..., Groups[int, int]]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Groups[int, int]] = []

    def one(work: Callable[[Sequence[int]], list[Any]], **options: Any) -> Groups[int, int]:
        made.append(Groups("test", work, **({"most": 100, "waiting": 100} | options)))
        return made[-1]

    yield one
    for groups in made:
        groups.close()


class Held:
    """Work whose first group waits until `go` is set; remembers the groups."""

    def __init__(self, answer: Callable[[Sequence[int]], list[Any]] = list) -> None:
        self.answer = answer
        self.began, self.go = threading.Event(), threading.Event()
        self.groups: list[list[int]] = []

    def __call__(self, members: Sequence[int]) -> list[Any]:
        self.groups.append(list(members))
        self.began.set()
        self.go.wait(20)
        return self.answer(members)

    def fill(self, groups: Groups[int, int], *members: int) -> list[Future[int]]:
        """The first member is being worked on while the others arrive."""
        first = groups.submit(0)
        assert self.began.wait(20)
        return [first, *(groups.submit(member) for member in members)]


def test_what_arrives_while_a_group_is_done_makes_the_next(make: Make) -> None:
    held = Held(lambda members: [member * 10 for member in members])
    futures = held.fill(make(held), 1, 2, 3)

    held.go.set()

    assert [future.result(20) for future in futures] == [0, 10, 20, 30]
    assert held.groups == [[0], [1, 2, 3]]


def test_a_group_holds_no_more_than_its_weight_and_a_heavy_member_goes_alone(make: Make) -> None:
    held = Held()
    futures = held.fill(make(held, most=5, weight=lambda member: member), 2, 3, 9, 1)

    held.go.set()

    assert [future.result(20) for future in futures] == [0, 2, 3, 9, 1]
    assert held.groups == [[0], [2, 3], [9], [1]]


@pytest.fixture
def an_hour_each(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[int]], list[int]]:
    """Work that takes an hour of the clock of groups, and no time."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, sleep=time.sleep)
    monkeypatch.setattr("infra.db.groups.time", clock)

    def work(members: Sequence[int]) -> list[int]:
        clock.now += 3600.0
        return list(members)

    return work


def test_those_who_were_answered_together_go_together_again(make: Make, an_hour_each: Any) -> None:
    held = Held(an_hour_each)
    groups = make(held, gather_seconds=600.0)
    first, *others = held.fill(groups, 1, 2)
    held.go.set()
    assert first.result(20) == 0

    with pytest.raises(TimeoutError):
        others[0].result(0.05)
    others.append(groups.submit(3))

    assert [future.result(20) for future in others] == [1, 2, 3]
    assert held.groups == [[0], [1, 2, 3]]


def test_who_comes_alone_waits_for_nobody(make: Make, an_hour_each: Any) -> None:
    groups = make(an_hour_each, gather_seconds=600.0)

    assert [groups.submit(member).result(20) for member in (1, 2, 3)] == [1, 2, 3]


def test_a_group_does_not_wait_longer_for_others_than_it_may(make: Make) -> None:
    held = Held()
    futures = held.fill(make(held, gather_seconds=0.001), 1, 2)

    held.go.set()

    assert [future.result(20) for future in futures] == [0, 1, 2]


def test_a_member_that_fails_refuses_no_other(make: Make) -> None:
    def answer(members: Sequence[int]) -> list[int]:
        if 2 in members:
            raise ValueError("2 is bad")
        return list(members)

    held = Held(answer)
    _, one, two, three = held.fill(make(held), 1, 2, 3)

    held.go.set()

    assert (one.result(20), three.result(20)) == (1, 3)
    with pytest.raises(ValueError, match="2 is bad"):
        two.result(20)
    assert held.groups == [[0], [1, 2, 3], [1], [2], [3]]


def test_an_answer_that_is_an_error_is_of_its_member_alone(make: Make) -> None:
    held = Held(lambda members: [KeyError(m) if m == 2 else m for m in members])
    _, one, two = held.fill(make(held), 1, 2)

    held.go.set()

    assert one.result(20) == 1
    with pytest.raises(KeyError):
        two.result(20)
    assert held.groups == [[0], [1, 2]]


def test_an_error_that_would_meet_everybody_is_not_tried_again(make: Make) -> None:
    def answer(members: Sequence[int]) -> list[int]:
        if members[0]:
            raise ConnectionError("away")
        return list(members)

    held = Held(answer)
    _, one, two = held.fill(make(held, shared=(ConnectionError,)), 1, 2)

    held.go.set()

    for future in (one, two):
        with pytest.raises(ConnectionError):
            future.result(20)
    assert held.groups == [[0], [1, 2]]


def test_no_more_wait_than_there_may(make: Make) -> None:
    held = Held()
    groups = make(held, waiting=2)
    futures = held.fill(groups, 1, 2)

    with pytest.raises(MusterError) as refused:
        groups.submit(3)

    assert (refused.value.code, refused.value.status) == ("unavailable", 503)
    held.go.set()
    assert [future.result(20) for future in futures] == [0, 1, 2]
    assert groups.submit(3).result(20) == 3


def test_a_member_that_has_gone_delays_nobody(make: Make) -> None:
    held = Held()
    _, gone, other = held.fill(make(held), 1, 2)
    assert gone.cancel()

    held.go.set()

    assert other.result(20) == 2
    assert held.groups == [[0], [2]]


def test_closing_does_what_waits_and_lets_nobody_in(make: Make) -> None:
    held = Held()
    groups = make(held)
    futures = held.fill(groups, 1)
    held.go.set()

    groups.close()

    assert [future.result(0) for future in futures] == [0, 1]
    with pytest.raises(MusterError):
        groups.submit(2)


def test_a_thread_that_was_idle_is_replaced(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.db.groups.IDLE_SECONDS", 0.01)
    threads: list[threading.Thread] = []

    def work(members: Sequence[int]) -> list[int]:
        threads.append(threading.current_thread())
        return list(members)

    groups = make(work)
    assert groups.submit(1).result(20) == 1
    threads[0].join(20)

    assert groups.submit(2).result(20) == 2
    assert threads[0] is not threads[1]
