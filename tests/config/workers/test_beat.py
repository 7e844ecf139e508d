"""Only one beat ticks at a time."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from django_celery_beat.models import PeriodicTasks
from pytest_django import DjangoAssertNumQueries

from config.celery import app
from config.workers.beat import BEAT_LOCK, LOOK_SECONDS, OnlyBeatScheduler
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


@pytest.mark.django_db
def test_an_edited_timetable_is_looked_for_every_few_seconds_only(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    now = [1000.0]
    monkeypatch.setattr("config.workers.beat.time.monotonic", lambda: now[0])
    monkeypatch.setattr("django_celery_beat.schedulers.close_old_connections", lambda: None)
    beat = OnlyBeatScheduler(app=app, lazy=True)
    PeriodicTasks.update_changed()
    beat.schedule_changed()
    PeriodicTasks.objects.update(last_update=timezone.now() + timedelta(seconds=1))

    now[0] += LOOK_SECONDS - 0.1
    with django_assert_num_queries(0):
        soon = beat.schedule_changed()
    now[0] += 0.1

    assert (soon, beat.schedule_changed()) == (False, True)
