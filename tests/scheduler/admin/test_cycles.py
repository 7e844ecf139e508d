"""A cycle opened in the admin: what it saw, who started where, who waits, and the same plan again."""

from __future__ import annotations

import pytest
from django.urls import reverse

from scheduler.models import Cycle, Job
from scheduler.services.planning.cycles import run_cycle
from tests.scheduler.admin.test_pages import page, signed_in
from tests.support.factories import CycleFactory, JobFactory, NodeFactory, OperatorFactory, QueueFactory

pytestmark = pytest.mark.django_db(transaction=True)


def a_cycle() -> tuple[Cycle, Job, Job]:
    """A recorded cycle in which one job starts and one can never fit."""
    queue = QueueFactory()
    NodeFactory(name="gpu-01", cluster=queue.cluster, gpus=2, partition=queue.partitions.get())
    starts = JobFactory(queue=queue, name="train", gpus=2)
    waits = JobFactory(queue=queue, name="huge", gpus=9, cpu_millis=500)
    run_cycle(cluster_id=queue.cluster_id, trigger="test", holder="a test")
    return Cycle.objects.get(), starts, waits


def test_one_can_look_inside_a_cycle() -> None:
    cycle, starts, waits = a_cycle()
    client = signed_in(OperatorFactory())

    listed = client.get(page(Cycle, "changelist")).content.decode()
    html = client.get(page(Cycle, "change", cycle.pk)).content.decode()

    assert "test" in listed
    assert "1 nodes, 2 devices, 0 running and 2 pending jobs" in html
    assert "rank 0 on gpu-01, devices" in html
    assert reverse("admin:scheduler_job_change", args=[starts.pk]) in html
    assert reverse("admin:scheduler_job_change", args=[waits.pk]) in html
    assert "InvalidSpec (fix)" in html
    assert "the largest node has 2" in html
    assert f"manage.py replay_cycle {cycle.pk}" in html


def test_a_cycle_is_planned_again_from_its_page() -> None:
    cycle, _, _ = a_cycle()
    client = signed_in(OperatorFactory())

    answer = client.post(reverse("admin:scheduler_cycle_replay", args=[cycle.pk]), follow=True)

    assert "identical plan, byte for byte" in answer.content.decode()
    assert Cycle.objects.count() == 1


def test_a_cycle_whose_bytes_are_gone_still_shows_its_counts() -> None:
    cycle = CycleFactory(
        pending_count=7, started_count=3, refused_count=1,
        refused=[{"job": 12, "code": "QueueStopped", "message": "the queue was paused <meanwhile>"}],
    )  # fmt: skip
    client = signed_in(OperatorFactory())

    html = client.get(page(Cycle, "change", cycle.pk)).content.decode()
    replayed = client.post(reverse("admin:scheduler_cycle_replay", args=[cycle.pk]), follow=True)

    assert "pruned by age" in html
    assert "the queue was paused &lt;meanwhile&gt;" in html
    assert "cannot be replayed" in replayed.content.decode()


def test_bytes_that_are_no_recording_are_said_to_be_so() -> None:
    cycle = CycleFactory(snapshot=b"junk", policy=b"junk", plan=b"junk")

    html = signed_in(OperatorFactory()).get(page(Cycle, "change", cycle.pk)).content.decode()

    assert "The recording cannot be read" in html


def test_looking_at_the_replay_address_changes_nothing() -> None:
    cycle = CycleFactory()

    answer = signed_in(OperatorFactory()).get(reverse("admin:scheduler_cycle_replay", args=[cycle.pk]))

    assert answer["Location"] == page(Cycle, "change", cycle.pk)
