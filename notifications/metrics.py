"""What a scrape says of notifications: what was delivered, what failed, and how far behind each channel is."""

from __future__ import annotations

from collections.abc import Iterator

import structlog
from django.db import DatabaseError, connection
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from notifications.services.outbox import backlogs

log = structlog.get_logger(__name__)

_DELIVERIES = """
SELECT 'mail', state, count(*) FROM notifications_mail GROUP BY state
UNION ALL SELECT 'webhook', state, count(*) FROM notifications_message GROUP BY state
"""


def collect() -> Iterator[Metric]:
    """Nothing where the tables cannot be read; `muster_database_readable` says so."""
    try:
        yield from _read()
    except DatabaseError as error:
        log.warning("notification_metrics_unreadable", error=str(error))


def _read() -> Iterator[Metric]:
    kept = GaugeMetricFamily(
        "muster_notification_deliveries",
        "Mails and webhook messages that are kept, by state.",
        labels=["channel", "state"],
    )
    with connection.cursor() as cursor:
        cursor.execute(_DELIVERIES)
        for channel, state, count in cursor.fetchall():
            kept.add_metric([channel, state], float(count))
        cursor.execute("SELECT count(*) FROM notifications_endpoint WHERE disabled_at IS NOT NULL")
        disabled = float(cursor.fetchone()[0])
    yield kept
    yield GaugeMetricFamily("muster_webhooks_disabled", "Webhooks that are disabled.", value=disabled)
    overdue = GaugeMetricFamily(
        "muster_notification_backlog",
        "Deliveries that are due, and events that were not read.",
        labels=["channel"],
    )
    age = GaugeMetricFamily(
        "muster_notification_backlog_seconds", "Age of the oldest of them.", labels=["channel"]
    )
    for one in backlogs():
        overdue.add_metric([one.channel], float(one.overdue))
        age.add_metric([one.channel], one.seconds)
    yield overdue
    yield age
