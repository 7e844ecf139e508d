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


def recount_shares_soon() -> None:
    """Ask for a recount of the stored use of fair share by rules that have changed; the clock does it each hour."""
    transaction.on_commit(lambda: _send("quotas.tasks.recount", None, countdown=2), robust=True)


def exchange_soon(project_id: int) -> None:
    """Ask for an exchange with the provider that keeps the project's quota; the clock finds it anyway."""
    transaction.on_commit(lambda: _send_exchange(project_id), robust=True)


def tell_providers_soon() -> None:
    """Have a worker tell quota providers of starts and ends; the clock does it anyway."""
    transaction.on_commit(lambda: _send("scheduler.tasks.tell_quota_providers", None), robust=True)


def _send_recount(name: str, what: int | list[int]) -> None:
    """The periodic recount comes anyway."""
    _send(name, what, countdown=5)


def _send_exchange(project_id: int) -> None:
    """So does the clock's round."""
    _send("quotas.tasks.exchange_project", project_id)


def _send(name: str, what: int | list[int] | None, countdown: int = 0) -> None:
    """A broker that hangs would keep the person who waits for the request for ten seconds: it is asked first."""
    if not notifications.redis_answers():
        return
    try:
        current_app.send_task(name, args=[] if what is None else [what], countdown=countdown, retry=False)
    except Exception as error:
        log.warning("hints_unavailable", what=name, error=str(error))
