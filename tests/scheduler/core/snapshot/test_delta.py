"""Deltas of snapshots: base and delta give the very bytes of the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.snapshot.codec import (
    CodecError,
    decode_delta,
    decode_snapshot,
    encode_delta,
    encode_snapshot,
)
from scheduler.core.snapshot.snapshot import PendingColumns, Snapshot
from tests.support.builders import World
from tests.support.strategies import worlds


@given(worlds(), worlds())
def test_a_delta_of_any_two_snapshots_gives_the_bytes_of_the_second(first: World, second: World) -> None:
    base = decode_snapshot(encode_snapshot(first.snapshot))

    again = decode_delta(base, encode_delta(first.snapshot, second.snapshot))

    assert encode_snapshot(again) == encode_snapshot(second.snapshot)


@given(worlds(), st.integers(0, 2**32 - 1))
def test_a_delta_of_a_few_changes_has_those_and_gives_the_same_bytes(world: World, seed: int) -> None:
    before, dice = world.snapshot, np.random.default_rng(seed)
    pending = before.pending.take(dice.random(len(before.pending)) < 0.8)
    pending = replace(pending, priority=np.where(dice.random(len(pending)) < 0.2, 99, pending.priority))
    after = Snapshot.build(
        now_ms=before.now_ms + 1000, classes=before.classes, pending=pending,
        **{name: getattr(before, name) for name in (
            "nodes", "devices", "running", "allocations", "reservations", "queues", "projects", "quotas",
            "pools", "shares", "budgets",
        )},
    )  # fmt: skip

    delta = encode_delta(before, after)

    assert encode_snapshot(decode_delta(before, delta)) == encode_snapshot(after)


def test_a_delta_of_one_job_in_many_is_small() -> None:
    count = 5000
    columns = {"queue_id": [1] * count, "project_id": [1] * count, "class_index": [0] * count}
    before = Snapshot(now_ms=1, pending=PendingColumns(id=np.arange(count), **columns))
    other = before.pending.take(np.arange(count) != 7)
    after = replace(before, now_ms=2, pending=replace(other, priority=np.where(other.id == 9, 80, 50)))

    delta = encode_delta(before, after)

    assert len(delta) < 2000
    with pytest.raises(CodecError, match="not of a snapshot"):
        decode_snapshot(delta)
    with pytest.raises(CodecError, match="not of a delta"):
        decode_delta(before, encode_snapshot(before))
