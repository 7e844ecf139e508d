"""Celery's functions: each calls one service and is safe to run twice."""

from __future__ import annotations

from celery import shared_task

from scheduler.services import retention, traces
from scheduler.services.accounting import charging, metric_counts, usage_audit
from scheduler.services.artifacts import removal as artifact_removal
from scheduler.services.artifacts import uploads
from scheduler.services.checkpoints import removal as checkpoint_removal
from scheduler.services.cluster import inventory_service, node_scores, quarantine
from scheduler.services.execution import driving, quota_starts
from scheduler.services.execution.reconcile import reconcile_all
from scheduler.services.moves import drive
from scheduler.services.planning import forecasts, planner
from scheduler.services.results import old_uploads
from scheduler.services.shadows import compare


@shared_task(acks_late=False)
def plan_all() -> None:
    """Plan every cluster, and stay to plan again as soon as something changes; beat starts it anew when it ends."""
    planner.stay()


@shared_task
def reconcile() -> None:
    reconcile_all()


@shared_task(acks_late=False)
def drive_backends() -> None:
    """Drive the clusters whose backend has no agents, and stay; beat starts it anew when it ends."""
    driving.stay(stop=planner.worker_stops)


@shared_task
def tell_quota_providers() -> None:
    """Tell quota providers that decide about starts of attempts that began and ended."""
    quota_starts.tell_providers()


@shared_task
def watch_nodes() -> None:
    """Take nodes out of service where jobs of several people failed lately."""
    quarantine.quarantine_failing_nodes()


@shared_task
def follow_inventory() -> None:
    """Give nodes the zones and racks that the inventory service of the site names, if there is one."""
    inventory_service.follow_inventory()


@shared_task
def score_nodes() -> None:
    """Say of each node how reliable and how fast it was lately."""
    node_scores.score_all()


@shared_task
def move_jobs() -> None:
    """Go on with moves of jobs and with drains that have a deadline."""
    drive.drive()


@shared_task
def forecast() -> None:
    forecasts.forecast_all()


@shared_task
def prune() -> None:
    retention.prune_all()
    checkpoint_removal.tidy()
    old_uploads.tidy()


@shared_task
def store_artifacts() -> None:
    """Store what ended tasks have left, and remove what has had its time."""
    uploads.store_due()
    artifact_removal.remove_due()


@shared_task
def sweep_storage() -> None:
    artifact_removal.sweep()


@shared_task
def compare_shadows() -> None:
    """Plan recorded cycles by the drafts of shadow runs."""
    compare.compare_all()


@shared_task
def count_for_metrics() -> None:
    """Count what has happened since the last time, for /metrics."""
    metric_counts.count()


@shared_task
def send_traces() -> None:
    """Send spans of jobs to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names."""
    traces.send()


@shared_task
def keep_ledger() -> None:
    charging.heal_ledger()
    charging.extend_holds()
    charging.charge_running()


@shared_task
def check_usage(thorough: bool = False) -> None:
    """Check that ended attempts were charged what they held; thorough: also those that ended weeks ago."""
    usage_audit.check_usage(back=usage_audit.THOROUGH if thorough else usage_audit.LOOK_BACK)
