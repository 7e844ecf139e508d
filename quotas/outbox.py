"""Tells pages and planners, after commit, that limits have changed; and asks for recounts by name of task."""

from __future__ import annotations

import structlog
from celery import current_app
from django.db import transaction

from infra import notifications
from infra.notifications import QUOTAS_TOPIC, announce

log = structlog.get_logger(__name__)


def wake_planners() -> None:
    """Ask for a cycle of every cluster; a hint, for planners look every few seconds anyway."""
    announce(QUOTAS_TOPIC)
    notifications.wake_planners(None, trigger="quotas")


def recount_soon(project_id: int) -> None:
    """Ask for a recount of a project's lines once those who were starting jobs meanwhile are through."""
    transaction.on_commit(lambda: _send_recount("quotas.tasks.sync_project", project_id), robust=True)


def recount_lines_soon(line_ids: list[int]) -> None:
    """The same for lines that are not of a whole project."""
    transaction.on_commit(lambda: _send_recount("quotas.tasks.sync_lines_of", line_ids), robust=True)


def exchange_soon(project_id: int) -> None:
    """Ask for an exchange with the provider that keeps the project's quota; the clock finds it anyway."""
    transaction.on_commit(lambda: _send_exchange(project_id), robust=True)


def _send_recount(name: str, what: int | list[int]) -> None:
    try:
        current_app.send_task(name, args=[what], countdown=5, retry=False)
    except Exception as error:  # the periodic recount comes anyway
        log.warning("hints_unavailable", what="recount", error=str(error))


def _send_exchange(project_id: int) -> None:
    try:
        current_app.send_task("quotas.tasks.exchange_project", args=[project_id], retry=False)
    except Exception as error:  # so does the clock's round
        log.warning("hints_unavailable", what="exchange", error=str(error))
