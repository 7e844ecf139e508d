"""Celery beat that runs once: a second one waits for the first to end, then takes over."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import psycopg
from django_celery_beat.schedulers import DatabaseScheduler

from infra.db.advisory_lock import Holder, hold_lock

log = logging.getLogger(__name__)

# Any fixed number will do, as long as nothing else in this database takes the same one.
BEAT_LOCK = 0x6D757374

#: An edit of the timetable in the admin is acted on within this time.
LOOK_SECONDS: Final = 5.0


class OnlyBeatScheduler(DatabaseScheduler):
    """The database's timetable, under a PostgreSQL advisory lock that goes when this process goes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._lock_holder: Holder | None = None
        self._looked_at = float("-inf")
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        if not self._holds_lock():
            return 1.0
        return super().tick(*args, **kwargs)

    def schedule_changed(self) -> bool:
        """Whether somebody has edited the timetable: asked several times a turn, looked up every LOOK_SECONDS."""
        now = time.monotonic()
        if now < self._looked_at + LOOK_SECONDS:
            return False
        self._looked_at = now
        return bool(super().schedule_changed())

    def _holds_lock(self) -> bool:
        if self._lock_holder is not None:
            try:
                self._lock_holder.execute("SELECT 1")
                return True
            except psycopg.Error:
                log.warning("lost the connection that holds the beat lock; taking it again")
                self._lock_holder.close()
                self._lock_holder = None
        try:
            self._lock_holder = hold_lock(BEAT_LOCK)
        except psycopg.Error as error:
            log.warning("the database is away, beat waits: %s", error)
            time.sleep(0.5)
        return self._lock_holder is not None
