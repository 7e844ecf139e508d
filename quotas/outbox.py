"""Tells pages and the planner, after commit, that limits have changed; the planner by the name of its task only."""

from __future__ import annotations

import structlog
from celery import current_app
from django.conf import settings
from django.db import transaction

from infra.notifications import QUOTAS_TOPIC, announce

log = structlog.get_logger(__name__)


def wake_planners() -> None:
    """Ask for a cycle of every cluster; a hint, for beat plans every few seconds anyway."""
    announce(QUOTAS_TOPIC)
    transaction.on_commit(_send, robust=True)


def recount_soon(project_id: int) -> None:
    """Ask for a recount of a project's lines once those who were starting jobs meanwhile are through."""
    transaction.on_commit(lambda: _send_recount("quotas.tasks.sync_project", project_id), robust=True)


def recount_lines_soon(line_ids: list[int]) -> None:
    """The same for lines that are not of a whole project."""
    transaction.on_commit(lambda: _send_recount("quotas.tasks.sync_lines_of", line_ids), robust=True)


def exchange_soon(project_id: int) -> None:
    """Ask for an exchange with the provider that keeps the project's quota; the clock finds it anyway."""
    transaction.on_commit(lambda: _send_exchange(project_id), robust=True)


def _send() -> None:
    try:
        current_app.send_task(
            settings.PLAN_ALL_TASK, queue="scheduling", retry=False, ignore_result=True, expires=30
        )
    except Exception as error:  # kombu raises many kinds; beat plans anyway
        log.warning("hints_unavailable", what="wake planners", error=str(error))


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
