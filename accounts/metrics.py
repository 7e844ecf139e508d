"""What Prometheus may know of accounts."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily

from accounts.models import AuditCheck


def collect() -> Iterator[GaugeMetricFamily]:
    """Whether the audit chains were intact when last verified, and when; nothing before the first time."""
    check = AuditCheck.objects.first()
    if check is None:
        return
    yield GaugeMetricFamily(
        "muster_audit_chain_ok",
        "1 when every audit chain verified, 0 when one is broken.",
        value=float(check.ok),
    )
    yield GaugeMetricFamily(
        "muster_audit_check_timestamp_seconds",
        "When the audit chains were last verified.",
        value=check.checked_at.timestamp(),
    )
