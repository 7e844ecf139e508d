"""What has no event is found by looking, once: jobs that never start, limits, idle GPUs, nodes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from notifications.core.kinds import Kind
from notifications.models import Finding, Notification
from notifications.services.findings import look
from notifications.services.follow import follow
from notifications.services.preferences import change_preferences
from quotas.services.alerts import look_for_alerts
from scheduler.core.lifecycle import JobState
from scheduler.models import Job, NodeHeartbeat, PolicyFault, StartForecast
from tests.notifications.conftest import events
from tests.support.factories import (
    AllocationFactory,
    AttemptFactory,
    Cast,
    ClusterFactory,
    NodeFactory,
    QuotaFactory,
    ReservationFactory,
    TaskFactory,
)

Happen = Callable[..., list[Job]]


def found() -> list[tuple[str, int, str]]:
    return [(row.kind, row.count, row.user.username) for row in Notification.objects.order_by("id")]


@pytest.fixture
def running(cast: Cast, jobs_that: Happen) -> Job:
    (job,) = jobs_that("job.queued", state=JobState.RUNNING, epoch=1, time_limit_seconds=1000)
    return job


def test_a_job_that_can_never_start_is_found_once_with_its_reason(cast: Cast, jobs_that: Happen) -> None:
    waiting = timezone.now() - timedelta(minutes=5)
    never = {"reason_code": "NoMatchingNode", "reason_category": "fix", "reason_text": "No node has 64 GPUs."}
    jobs_that("job.queued", count=2, reason_at=waiting, **never)
    jobs_that("job.queued", reason_at=timezone.now(), **never)  # perhaps only while a node comes back
    jobs_that("job.queued", reason_at=waiting, reason_code="Priority", reason_category="wait")

    look()
    look()

    assert found() == [("job.never_starts", 2, "owner")]
    assert Notification.objects.get().text == "No node has 64 GPUs."


def test_a_time_limit_that_comes_near_is_announced_to_who_asked(cast: Cast, running: Job) -> None:
    AttemptFactory(job=running, started_at=timezone.now() - timedelta(seconds=850))
    look()
    assert found() == []

    change_preferences(user=cast.owner, by=cast.owner, changes={"job.time_limit_near": {"portal": True}})
    look()
    look()

    assert found() == [("job.time_limit_near", 1, "owner")]
    assert "80 %" in Notification.objects.get().text


def test_a_deadline_at_risk_is_found_once_and_a_missed_one_is_an_event(cast: Cast, jobs_that: Happen) -> None:
    """Finding 23: the owner hears of it before and after, by the same words as the page."""
    now = timezone.now()
    asked = {"created_at": now - timedelta(minutes=2), "time_limit_seconds": 600, "check_at": now}
    (late,) = jobs_that("job.queued", deadline_at=now + timedelta(minutes=5), **asked)
    (fine,) = jobs_that("job.queued", deadline_at=now + timedelta(minutes=15), **asked)
    look()
    look()
    assert found() == [("job.deadline_late", 1, "owner")]
    assert Notification.objects.get().text.startswith("Cannot be sure to meet its deadline")
    assert Notification.objects.get().jobs == [late.number]

    start = now + timedelta(minutes=10)
    StartForecast.objects.create(job=fine, p10_at=start, p50_at=start, p90_at=start, computed_at=now)
    look()
    events([fine], "job.deadline_missed", because="Missed its deadline by 3 min.")
    follow()

    assert {kind: count for kind, count, _ in found()} == {"job.deadline_late": 2, "job.deadline_missed": 1}


@pytest.mark.parametrize(("watched_s", "busy_s", "count"), [(3600, 60, 1), (3600, 1800, 0), (600, 0, 0)])
def test_gpus_that_do_nothing_are_found(
    cast: Cast, running: Job, watched_s: int, busy_s: int, count: int
) -> None:
    attempt = AttemptFactory(job=running)
    TaskFactory(attempt=attempt, gpu_watched_ms=1000 * watched_s, gpu_busy_ms=1000 * busy_s)

    look()
    look()

    assert found() == [("job.gpu_idle", 1, "owner")] * count


def test_a_node_that_is_down_is_announced_to_operators_each_time_anew(cast: Cast) -> None:
    node = NodeFactory(name="alpha", state="down")
    look()
    look()
    assert found() == [("node.down", 1, "operator"), ("node.down", 1, "admin")]

    NodeHeartbeat.objects.filter(node=node).update(last_seen_at=timezone.now() + timedelta(minutes=5))
    look()

    assert [row[1] for row in found()] == [2, 2]
    assert Notification.objects.first().name == "alpha"  # type: ignore[union-attr]


def test_a_plugin_that_is_out_of_use_is_announced_to_operators(cast: Cast) -> None:
    cluster = ClusterFactory()
    PolicyFault.objects.create(
        cluster=cluster, subject="plugin frag", reason="ZeroDivisionError", began_at=timezone.now()
    )

    look()
    look()

    assert found() == [("scheduler.fault", 1, "operator"), ("scheduler.fault", 1, "admin")]


def test_a_node_that_drains_is_announced_to_the_owners_of_its_jobs(cast: Cast, running: Job) -> None:
    node = NodeFactory(
        name="alpha",
        draining=True,
        drained_at=timezone.now(),
        drain_reason="new disks",
        drained_by="operator",
    )
    AllocationFactory(attempt=AttemptFactory(job=running), node=node)
    NodeFactory(draining=True, drained_at=timezone.now())

    look()
    look()

    assert found() == [("node.draining", 1, "owner")]
    assert "operator: new disks" in Notification.objects.get().text


def test_a_look_that_fails_in_the_middle_finds_the_same_again(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    NodeFactory(name="alpha", state="down")
    with monkeypatch.context() as patch:
        patch.setattr("notifications.services.findings.take_in", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            look()
    assert not Finding.objects.exists()

    look()

    assert len(found()) == 2


def test_alerts_about_limits_are_notified_as_their_notices_are(cast: Cast) -> None:
    QuotaFactory(project=cast.project, resource="gpu_millis", hard=1000, used=1000)
    look_for_alerts()

    follow()
    follow()

    assert found() == [(Kind.QUOTA, 1, "lead")]
    assert "GPUs" in Notification.objects.get().text


def test_reservations_are_announced_to_the_other_operators(cast: Cast) -> None:
    ReservationFactory(name="upgrade", created_by=cast.operator, reason="kernel")

    follow()

    assert found() == [("reservation.changed", 1, "admin")]
    assert "Made: from" in Notification.objects.get().text
