"""Only one beat ticks at a time."""

from __future__ import annotations

import psycopg
import pytest

from config.beat import BEAT_LOCK, OnlyBeatScheduler, _parameters
from config.celery import app


@pytest.mark.django_db
def test_a_second_beat_waits_and_then_takes_over() -> None:
    holder = psycopg.connect(**_parameters(), autocommit=True)
    holder.execute("SELECT pg_advisory_lock(%s)", [BEAT_LOCK])
    beat = OnlyBeatScheduler(app=app, lazy=True)

    while_held = beat._holds_lock()
    holder.execute("SELECT pg_advisory_unlock(%s)", [BEAT_LOCK])
    after = beat._holds_lock()

    assert (while_held, after) == (False, True)
    assert beat._lock_holder is not None
    beat._lock_holder.close()
    holder.close()
