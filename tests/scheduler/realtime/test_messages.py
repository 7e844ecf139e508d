"""The wire format and its merge rule, against a channel that loses, repeats and overtakes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.realtime import messages
from scheduler.realtime.messages import View
from tests.support.live_mirror import Mirror, Outcome


def test_a_version_is_the_content_whatever_the_order_of_rows_and_keys() -> None:
    one = View.of({"a": {"x": 1, "y": 2}, "b": {"z": 3}})
    other = View.of({"b": {"z": 3}, "a": {"y": 2, "x": 1}})

    assert one.version == other.version
    assert one.version != View.of({"a": {"x": 1, "y": 2}, "b": {"z": 4}}).version


def test_a_patch_names_only_rows_that_differ() -> None:
    before = View.of({"same": {"x": 1}, "old": {"x": 1}, "moved": {"x": 1}})
    after = View.of({"same": {"x": 1}, "new": {"x": 5}, "moved": {"x": 2}})

    patch = json.loads(messages.difference(before, after))

    assert patch == {"changed": {"new": {"x": 5}, "moved": {"x": 2}}, "removed": ["old"]}


def test_a_snapshot_that_is_already_known_carries_no_data() -> None:
    view = View.of({"a": {"x": 1}})
    mirror = Mirror("jobs", version=view.version, rows={"a": {"x": 1}})
    mirror.ask()

    outcome = mirror.take(json.loads(messages.snapshot("jobs", mirror.sub, view.version, None)))

    assert (outcome, mirror.rows) == (Outcome.MERGED, {"a": {"x": 1}})


class Server:
    """One subscription as the server keeps it: what was sent last, and the content now."""

    def __init__(self) -> None:
        self.content = View.of({})
        self.sub, self.seq, self.base = 0, -1, self.content

    def change(self, rows: dict[str, Any]) -> None:
        self.content = View.of({key: {"value": value} for key, value in rows.items()})

    def answer(self, request: dict[str, Any]) -> str:
        self.sub, self.seq, self.base = request["sub"], 0, self.content
        known = request["since"] == self.content.version
        return messages.snapshot(
            "jobs", self.sub, self.content.version, None if known else self.content.data()
        )

    def news(self, *, dirty: bool) -> str | None:
        if self.seq < 0 or self.base.version == self.content.version:
            return None
        base, self.base, self.seq = self.base, self.content, self.seq + 1
        if dirty:
            return messages.dirty("jobs", self.sub, self.seq, self.content.version)
        body = messages.difference(base, self.content)
        return messages.patch("jobs", self.sub, self.seq, base.version, self.content.version, body)

    def pong(self) -> str:
        return messages.say("pong", topics={"jobs": [self.sub, self.seq]})


contents = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), max_size=6)
steps = st.lists(
    st.tuples(
        contents,
        st.booleans(),  # the server says only that something changed
        st.integers(0, 2),  # how often this message arrives: 0 is lost
        st.integers(0, 3),  # how many later messages overtake it
        st.booleans(),  # a ping is answered meanwhile
    ),
    max_size=25,
)


@given(steps)
def test_t08_after_a_quiet_period_the_page_shows_what_the_server_has(steps: list[Any]) -> None:
    server, mirror = Server(), Mirror("jobs")
    under_way: list[tuple[int, str]] = [(0, server.answer(mirror.ask()))]
    clock = 0

    def arrive(text: str) -> None:
        if mirror.take(json.loads(text)) is Outcome.RESYNC:
            under_way.append((clock, server.answer(mirror.ask())))

    for rows, dirty, copies, delay, ping in steps:
        clock += 1
        server.change(rows)
        text = server.news(dirty=dirty)
        if text is not None:
            under_way += [(clock + delay, text)] * copies
        if ping:
            under_way.append((clock + delay, server.pong()))
        due = [item for item in under_way if item[0] <= clock]
        under_way[:] = [item for item in under_way if item[0] > clock]
        for _, message in due:
            arrive(message)

    # Quiet: what is under way arrives, then pings are answered until nothing is asked any more.
    for _ in range(4):
        while under_way:
            arrive(under_way.pop(0)[1])
        arrive(server.pong())
    assert mirror.rows == json.loads(server.content.data())["rows"]


def test_a_mirror_never_merges_across_a_gap() -> None:
    server, mirror = Server(), Mirror("jobs")
    mirror.take(json.loads(server.answer(mirror.ask())))
    server.change({"a": 1})
    server.news(dirty=False)  # lost
    server.change({"a": 1, "b": 2})

    outcome = mirror.take(json.loads(server.news(dirty=False) or ""))

    assert (outcome, mirror.rows) == (Outcome.RESYNC, {})
