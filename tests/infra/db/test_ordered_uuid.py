"""UUIDs that begin with the time."""

from __future__ import annotations

import time
import uuid

import pytest

from infra.db.ordered_uuid import ordered_uuid


def test_they_are_of_version_7_and_each_is_another() -> None:
    found = [ordered_uuid() for _ in range(1000)]

    assert {(one.version, one.variant) for one in found} == {(7, uuid.RFC_4122)}
    assert len(set(found)) == 1000


def test_they_begin_with_the_time_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_123_456_789)

    assert ordered_uuid().int >> 80 == 1_700_000_000_123


def test_later_ones_are_larger() -> None:
    first = ordered_uuid()
    time.sleep(0.002)

    assert ordered_uuid() > first


def test_what_is_not_the_time_is_random() -> None:
    """Each of the 74 random bits is 0 in some and 1 in others."""
    fixed = 0xF << 76 | 3 << 62
    ones = zeros = 0
    for _ in range(200):
        rest = ordered_uuid().int & ((1 << 80) - 1)
        ones |= rest
        zeros |= ~rest & ((1 << 80) - 1)
    assert ones | fixed == zeros | fixed == (1 << 80) - 1
