"""Only one beat ticks at a time."""

from __future__ import annotations

import pytest

from config.celery import app
from config.workers.beat import BEAT_LOCK, OnlyBeatScheduler
from infra.db.advisory_lock import hold_lock


@pytest.mark.django_db
def test_a_second_beat_waits_and_then_takes_over() -> None:
    holder = hold_lock(BEAT_LOCK)
    assert holder is not None
    beat = OnlyBeatScheduler(app=app, lazy=True)

    while_held = beat._holds_lock()
    holder.close()
    after = beat._holds_lock()

    assert (while_held, after) == (False, True)
    assert beat._lock_holder is not None
    beat._lock_holder.close()
