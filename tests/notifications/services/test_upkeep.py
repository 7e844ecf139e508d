"""What is kept and for how long, what metrics say, and when the health page complains."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

import notifications.metrics
from infra.db.advisory_lock import try_lock
from notifications.models import Finding, Mail, Message, Notification
from notifications.services import endpoints
from notifications.services.follow import follow
from notifications.services.outbox import DELIVERY_LOCK, deliver_due
from notifications.tasks import deliver
from notifications.tasks import follow as follow_by_the_clock
from notifications.tasks import look as look_by_the_clock
from scheduler.models import Job
from scheduler.services.retention import preview, run_rules
from tests.support.factories import Cast, JobEventFactory

Happen = Callable[..., list[Job]]
HOOK = {"name": "hook", "url": "https://example.org/hook", "kinds": ["job.failed"]}


@pytest.fixture
def notified(cast: Cast, jobs_that: Happen, settings: Any) -> None:
    settings.MUSTER_ALERT_MAIL_FROM = "muster@example.org"
    endpoints.create_endpoint(by=cast.owner, **HOOK)
    jobs_that("job.failed")
    follow()
    Finding.objects.create(key="down:1:1", at=timezone.now())


def counts() -> list[int]:
    return [model.objects.count() for model in (Notification, Mail, Message, Finding)]


def test_old_rows_go_and_young_ones_stay(notified: None) -> None:
    run_rules()
    assert counts() == [1, 1, 1, 1]

    old = timezone.now() - timedelta(days=91)
    Notification.objects.update(first_at=old, last_at=old)
    Message.objects.update(created_at=old)
    Finding.objects.all().delete()  # the application may not change one
    Finding.objects.create(key="down:1:1", at=old)
    assert {name: count for name, count in preview().items() if count} == {
        "notifications": 1, "webhook_messages": 1, "findings": 1,
    }  # fmt: skip
    run_rules()

    assert counts() == [0, 0, 0, 0]


def test_metrics_count_deliveries_and_what_is_behind(notified: None) -> None:
    JobEventFactory(kind="job.failed", at=timezone.now() - timedelta(minutes=3))

    found = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in notifications.metrics.collect()
        for sample in metric.samples
    }

    assert found["muster_notification_deliveries", "webhook", "pending"] == 1
    assert found["muster_notification_deliveries", "mail", "pending"] == 1
    assert found["muster_webhooks_disabled",] == 0
    assert found["muster_notification_backlog", "events"] == 1
    assert 170 < found["muster_notification_backlog_seconds", "events"] < 200


def test_the_health_page_degrades_when_nothing_is_delivered(
    notified: None, cast: Cast, client: Client
) -> None:
    client.force_login(cast.operator)

    def said() -> str:
        return client.get("/readyz?verbose").content.decode()

    assert "[+] notifications" in said()
    Message.objects.update(due_at=timezone.now() - timedelta(minutes=11))
    assert "[-] notifications: overdue (webhook: 1 for 66" in said()


def test_the_clock_reads_looks_and_delivers(
    notified: None, jobs_that: Happen, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(deliver, "delay", lambda: asked.append("deliver"))
    monkeypatch.setattr("notifications.services.outbox.send_mails", lambda: asked.append("mails") or 1)
    monkeypatch.setattr("notifications.services.outbox.deliver_messages", lambda: asked.append("hooks") or 1)
    jobs_that("job.failed")

    follow_by_the_clock()
    look_by_the_clock()
    assert (Notification.objects.get().count, asked) == (2, [])  # nothing is due yet
    Message.objects.update(due_at=timezone.now())
    follow_by_the_clock()
    deliver()

    assert asked == ["deliver", "mails", "hooks"]
    with try_lock(DELIVERY_LOCK) as ours:
        assert (ours, deliver_due()) == (True, 0)  # another process is at it
    assert asked == ["deliver", "mails", "hooks"]
