"""A short series, so that the long one by hand (`python -m tests.chaos`) works when it is needed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from config.up.ports import free_port
from tests.chaos.series import Series, table
from tests.support.embedded import give_migrated_data
from tests.support.stack import Stack, make_open_folder, scratch_state

pytestmark = pytest.mark.stack

KINDS = ["planner", "agent", "postgres", "supervisor"]


@pytest.fixture
def stack() -> Iterator[Stack]:
    state = scratch_state("chaos")
    give_migrated_data(state)
    stack = Stack(
        state, ["--nodes", "1", "--port", str(free_port())], open_folder=make_open_folder("chaos-jobs")
    )
    try:
        yield stack.start()
    finally:
        stack.stop()
        stack.remove_folders()


def test_t01_a_short_series_of_kills_breaks_no_promise(stack: Stack) -> None:
    series = Series(stack, seed=9, kills=len(KINDS), jobs=24, kinds=KINDS, say=lambda text: print(text))

    outcome = series.run()

    assert outcome.holds, "\n".join(table(outcome))
    assert {kind: len(seconds) for kind, seconds in outcome.recovery.items()} == dict.fromkeys(KINDS, 1)
    assert sum(len(piece.names) for piece in series.accepted) == 24
