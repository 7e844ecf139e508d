"""Checkpoints of real jobs: asked for, stored, verified, and gone on from on another node."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from scheduler.models import Checkpoint, Job, JobEvent
from scheduler.services.jobs.verbs import requeue_job
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import World, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

TRAINING = Path(__file__).resolve().parents[3] / "docs/tutorials/train_with_checkpoints.py"


@pytest.fixture
def isolation() -> str:
    """The training program of these tests is read from this repository."""
    return "off"


@pytest.fixture(autouse=True)
def storage(settings: Settings, tmp_path: Path) -> Path:
    settings.MUSTER_STORAGE = (tmp_path / "storage").as_uri()
    return tmp_path / "storage"


def train(world: World, steps: int, seconds_a_step: float = 0.05, **checkpoint: Any) -> Job:
    return world.submit(f"{sys.executable} {TRAINING} {steps} {seconds_a_step}", checkpoint=checkpoint)


def complete(job: Job) -> list[Checkpoint]:
    return list(Checkpoint.objects.filter(job=job, state="complete").order_by("taken_at"))


def events(job: Job) -> list[str]:
    return list(JobEvent.objects.filter(job=job).order_by("id").values_list("kind", flat=True))


def wait_for_output(world: World, job: Job, text: bytes) -> None:
    wait_for(lambda: text in b"".join(map(bytes, world.task(job).log_chunks.values_list("data", flat=True))))


def cordon(name: str) -> None:
    from scheduler.models import Node

    Node.objects.filter(name=name).update(cordoned=True)


def test_a_job_that_is_preempted_twice_goes_on_at_its_step_on_other_nodes(
    world: World, start_agent: StartAgent, storage: Path
) -> None:
    for name in ("n1", "n2", "n3"):
        start_agent(name)
    straight = train(world, 60, 0.0)
    world.run_until(straight, "completed")
    job = train(world, 60, grace=10)

    nodes, saved = [], []
    for attempt in (1, 2):
        world.run_until(job, "running")
        wait_for_output(world, job, b"begin at step")
        nodes.append(world.task(job).node.name)
        cordon(nodes[-1])
        requeue_job(job=job, by=world.user)
        wait_for(lambda: len(complete(job)) == attempt)  # noqa: B023
        saved.append(complete(job)[-1])
        wait_for(lambda: Job.objects.get(pk=job.pk).state == "queued")
    world.run_until(job, "completed")
    nodes.append(world.task(job).node.name)

    assert sorted(nodes) == ["n1", "n2", "n3"]
    assert [row.reason for row in saved] == ["stop", "stop"]
    outputs = [world.output(job, epoch=attempt).decode() for attempt in (1, 2, 3)]
    begins = [int(re.search(r"begin at step (\d+)", text)[1]) for text in outputs]  # type: ignore[index]
    assert begins == [0, *(int(row.name.removeprefix("step-")) for row in saved)]
    assert 0 < begins[1] < begins[2] <= 60
    assert outputs[2].splitlines()[-1] == world.output(straight).decode().splitlines()[-1]
    assert events(job).count("job.restored") == 2
    world.assert_nothing_is_held()
