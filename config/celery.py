"""The Celery app: two queues, `scheduling` for planning and `default` for everything else.

The timetable is CELERY_BEAT_SCHEDULE in the settings; beat copies it to tables that the admin can edit.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import beat_init, setup_logging, task_postrun, worker_ready

from config import broker

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.development")

broker.register()
app = Celery("muster")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
# Celery would close each thread's connection before and after every task; ours is looked at before each use.
app.conf.update(CELERY_DB_REUSE_MAX=2**31)


@setup_logging.connect
def keep_our_logging(**_: Any) -> None:
    """Celery would replace the handlers; a receiver here keeps it from doing so."""
    from django.conf import settings

    from config.logging import configure

    configure(settings.LOGGING)


@task_postrun.connect
def leave_nothing_to_the_next(**_: Any) -> None:
    """A connection that failed, or was left in the middle, is not the next task's."""
    from django.db import close_old_connections

    close_old_connections()


@worker_ready.connect
@beat_init.connect
def tell_the_supervisor(**_: Any) -> None:
    """Leave a file where the supervisor looks for it: readiness is said, not guessed."""
    if ready_file := os.environ.get("MUSTER_READY_FILE"):
        Path(ready_file).touch()
