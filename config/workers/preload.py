"""What the fork server of `manage.py up` loads for web, workers and beat, once for all of them."""

from __future__ import annotations

import importlib
from contextlib import suppress

import uvicorn
from django.apps import apps
from django.db import DatabaseError, connection, connections
from django.urls import get_resolver

from config.celery import app
from config.settings.database import database_of_this_process

#: What a worker loads only once it begins, and what the first cycle of a planner does.
FOR_WORKERS = (
    "celery.apps.worker", "celery.worker.worker", "celery.worker.consumer", "celery.concurrency.solo",
    "celery.bin.worker", "kombu.transport.redis", "redis", "psycopg", "django.core.cache.backends.redis",
    "scheduler.services.planning.planner", "scheduler.services.execution.reconcile", "config.cache", "numpy.ma",
)  # fmt: skip
#: The same of the worker of queue `default`, of beat and of a web process.
FOR_OTHERS = (
    "celery.bin.celery", "celery.bin.beat", "celery.apps.beat", "celery.app.amqp", "celery.app.control",
    "celery.app.events", "celery.app.log", "celery.app.routes", "celery.backends.base", "celery.concurrency.thread",
    "celery.events.dispatcher", "celery.events.receiver", "celery.worker.autoscale", "celery.worker.components",
    "celery.worker.strategy", "celery.worker.consumer.delayed_delivery", "billiard.pool", "kombu.mixins",
    "config.workers.beat", "config.asgi",
)  # fmt: skip


def load_before_forks() -> None:
    """Import all that these processes need, and build what each would build for itself; nothing stays connected."""
    load_planning()
    for name in FOR_OTHERS:
        importlib.import_module(name)
    app.finalize()
    uvicorn.Config("config.asgi:application", log_config=None).load()
    get_resolver().url_patterns  # noqa: B018  imports every view
    with suppress(DatabaseError):  # then each process prepares its own first connection
        connection.ensure_connection()
        for model in apps.get_models():  # what a first query of a model looks up of it is kept with the model
            model._base_manager.all().query.get_compiler("default").as_sql()
    connections.close_all()


def load_planning() -> None:
    """Import all that planning needs."""
    app.loader.import_default_modules()
    for name in FOR_WORKERS:
        importlib.import_module(name)


def begin_forked() -> None:
    """Read again, in a forked process, what the settings say of it by its name."""
    from django.conf import settings

    settings.DATABASES["default"].update(database_of_this_process(settings.DATABASE_URL))
