"""Real jobs leave a node that drains: one goes on at its step elsewhere, one is requeued at the deadline."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from scheduler.models import Checkpoint, Job, JobEvent, JobMove, Node
from scheduler.services.cluster.nodes import drain_node
from scheduler.services.moves.drive import drive
from scheduler.services.moves.verbs import migrate_job
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import Server, World, wait_for
from tests.support.factories import OperatorFactory

pytestmark = pytest.mark.django_db(transaction=True)

TRAINING = Path(__file__).resolve().parents[3] / "docs/tutorials/train_with_checkpoints.py"


@pytest.fixture
def isolation() -> str:
    """The training program of these tests is read from this repository."""
    return "off"


@pytest.fixture(autouse=True)
def storage(settings: Settings, tmp_path: Path) -> None:
    settings.MUSTER_STORAGE = (tmp_path / "storage").as_uri()


def train(world: World, **checkpoint: Any) -> Job:
    """A job that would train for minutes; no test waits for its end."""
    job = world.submit(f"{sys.executable} {TRAINING} 9999 0.05", checkpoint=checkpoint)
    world.run_until(job, "running")
    assert begins(world, job) == 0
    return job


def printed(world: World, job: Job) -> bytes:
    return b"".join(map(bytes, world.task(job).log_chunks.values_list("data", flat=True)))


def begins(world: World, job: Job) -> int:
    """The step at which the running attempt has begun."""
    found = wait_for(lambda: re.search(rb"begin at step (\d+)", printed(world, job)))
    return int(found[1])


def drives_until(job: Job, *states: str) -> str:
    """Drive, as the periodic task does, until the job is in one of these states."""

    def there() -> str:
        drive()
        state = str(Job.objects.get(pk=job.pk).state)
        return state if state in states else ""

    return str(wait_for(there, every=0.1))


def test_a_drained_node_is_left_by_checkpoint_or_at_the_deadline_though_all_is_killed_between(
    world: World, server: Server, start_agent: StartAgent
) -> None:
    agent = start_agent("n1")
    moved = train(world, grace=10)
    plain = world.submit("echo ready; sleep 600; true")
    world.run_until(plain, "running")
    wait_for(lambda: b"ready" in printed(world, plain))
    start_agent("n2")
    deadline = timezone.now() + timedelta(hours=1)
    operator = OperatorFactory()

    drain_node(node=Node.objects.get(name="n1"), by=operator, reason="new fans", deadline=deadline)
    drive()
    # It is asked for its first checkpoint; the server and the agent are away for a while.
    server.stop()
    agent.kill()
    server.start()
    agent.start()
    drives_until(moved, "queued")
    world.run_until(moved, "running")
    assert world.task(moved).node.name == "n2"
    assert Job.objects.get(pk=plain.pk).state == "running"
    wait_for(lambda: drive() or JobMove.objects.get(job=moved).ended_at)
    assert JobMove.objects.get(job=moved).text == "moved from n1 to n2"
    last = Checkpoint.objects.filter(job=moved, epoch=1, state="complete").order_by("taken_at").last()
    assert last is not None
    assert begins(world, moved) == int(last.name.removeprefix("step-")) > 0

    Node.objects.filter(name="n1").update(drain_deadline_at=timezone.now())
    assert drives_until(plain, "queued") == "queued"
    attempt = plain.attempts.get(epoch=1)
    assert (attempt.stop_reason, attempt.failure_class) == ("drained", "preempted")
    world.run_until(plain, "running")
    assert world.task(plain).node.name == "n2"


def test_a_job_is_moved_to_the_node_that_was_named_and_back_where_that_is_lost(
    world: World, start_agent: StartAgent
) -> None:
    start_agent("n1")
    job = train(world, grace=10)
    second = start_agent("n2")
    start_agent("n3")

    migrate_job(job=job, by=world.user, target=Node.objects.get(name="n2"))

    assert JobMove.objects.get(job=job).state == "saving"
    drives_until(job, "queued")
    second.kill()
    Node.objects.filter(name="n2").update(state="down")
    drive()
    world.plan()
    assert Job.objects.get(pk=job.pk).state == "queued"
    job.attempts.filter(epoch=1).update(ended_at=timezone.now() - timedelta(minutes=5))
    drive()
    world.run_until(job, "running")
    assert world.task(job).node.name in ("n1", "n3")
    assert begins(world, job) > 0
    assert JobEvent.objects.filter(job=job, kind="job.restored").count() == 1
