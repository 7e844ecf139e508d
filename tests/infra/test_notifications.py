"""Hints that go their way beside the request: all arrive, and what comes up together goes together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from infra import notifications
from tests.support.patience import patience


@pytest.fixture
def heard() -> Iterator[Any]:
    """Takes the next message of the channel; None when nothing comes."""
    with notifications.client().pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(notifications.CHANNEL)
        subscription.get_message(timeout=patience(10))

        def take(seconds: float = 0.0) -> Any:
            message = subscription.get_message(timeout=seconds)
            return None if message is None else json.loads(message["data"])["topics"]

        yield take


class Resting(notifications.Sender):
    """Has no thread: it sends when it is told to."""

    def _wake(self) -> None:
        return None


def test_what_came_up_while_it_rested_goes_together(heard: Any) -> None:
    sender, calls = Resting(), []

    for topics in (["a", "b"], ["b"], ["c"]):
        sender.tell(topics)
    for _ in range(3):
        sender.call("planner", lambda: calls.append("planner"))
    sender.call("bad", lambda: calls.append(1 // 0))
    sender.call("other", lambda: calls.append("other"))
    sender.send()
    sender.send()

    assert heard(patience(10)) == ["a", "b", "c"]
    assert heard() is None
    assert calls == ["planner", "other"]


def test_a_hint_of_a_door_arrives_without_being_waited_for(heard: Any) -> None:
    with notifications.deferred():
        notifications.publish(["one"])
    assert heard(patience(10)) == ["one"]

    notifications.publish(["two"])

    assert heard(patience(10)) == ["two"]
