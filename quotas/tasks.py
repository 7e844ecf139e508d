"""What quotas does by the clock."""

from __future__ import annotations

import structlog
from celery import shared_task

from accounts.models import Project
from quotas.services import grants, providers
from quotas.services.alerts import look_for_alerts
from quotas.services.budgets import open_all_periods
from quotas.services.exchange import exchange
from quotas.services.project_quota import drifting_projects, sync_quota
from quotas.services.quota_lines import drifting_lines, sync_lines
from quotas.services.reconcile import check_budgets
from quotas.services.shares import recount_shares

log = structlog.get_logger(__name__)


@shared_task
def sync_all() -> None:
    """Find counters that are not what is held, and repair them under lock."""
    for project_id in drifting_projects():
        sync_project(project_id)
    if wrong := drifting_lines():
        sync_lines_of(wrong)


@shared_task
def sync_project(project_id: int) -> None:
    project = Project.objects.filter(pk=project_id).first()
    if project is None:
        return
    for drift in sync_quota(project=project, by=None, reason="found by the periodic recount"):
        log.warning(
            "quota_drift", project=project.slug, resource=drift.resource, was=drift.was, found=drift.found
        )


@shared_task
def sync_lines_of(line_ids: list[int]) -> None:
    if wrong := sync_lines(line_ids, reason="found by the periodic recount"):
        log.warning("quota_drift", lines=wrong)


@shared_task
def recount() -> None:
    recount_shares()


@shared_task
def keep_budgets() -> None:
    """Open the periods that come, and compare the counters of those that are open with the ledger."""
    open_all_periods()
    check_budgets()


@shared_task
def exchange_project(project_id: int) -> None:
    exchange(project_id)


@shared_task
def exchange_due() -> None:
    providers.exchange_due()


@shared_task
def alert() -> None:
    """Tell people once of what is nearly full, full, running out or about to end."""
    look_for_alerts()


@shared_task
def keep_grants() -> None:
    """Begin the grants whose day has come, end those whose time is over, and tell of those that end soon."""
    grants.begin_and_end()
