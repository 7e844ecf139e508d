"""Checkpoints of real jobs: asked for, stored, verified, and gone on from on another node."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from scheduler.models import Checkpoint, Job, JobEvent, Node
from scheduler.services.checkpoints import resume
from scheduler.services.checkpoints.verbs import ask_checkpoint
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


def test_a_job_is_asked_on_demand_and_periodically_and_before_its_time_limit(
    world: World, start_agent: StartAgent
) -> None:
    start_agent()
    # Every signal writes a checkpoint; the program itself ends long after its time limit.
    script = (
        "#!/bin/bash\nn=0\ncd $MUSTER_CHECKPOINT_DIR\nsave() { n=$((n+1)); echo $n > $n; touch $n.done; }\n"
        "trap save USR2\ntrap exit TERM\necho ready\nwhile :; do sleep 0.05; done\n"
    )
    job = world.submit(script=script, time_limit=9, checkpoint={"signal": "USR2", "grace": 5, "keep": 9})
    world.run_until(job, "running")
    wait_for_output(world, job, b"ready")
    ask_checkpoint(job=job, by=world.user)
    wait_for(lambda: complete(job))
    world.run_until(job, "running", "failed")
    wait_for(lambda: Job.objects.get(pk=job.pk).state == "failed")

    assert [row.reason for row in complete(job)] == ["asked", "time_limit"]
    assert "job.checkpointing" in events(job)
    assert Job.objects.get(pk=job.pk).failure_class == "time-limit"


def test_what_is_written_while_the_agent_is_away_is_stored_when_it_is_back(
    world: World, start_agent: StartAgent
) -> None:
    agent = start_agent()
    job = world.submit(
        "echo ready; sleep 1; cd $MUSTER_CHECKPOINT_DIR; echo 1 > a; touch a.done; sleep 60", checkpoint={}
    )
    world.run_until(job, "running")
    wait_for_output(world, job, b"ready")
    agent.kill()
    (task_folder,) = (agent.state / "tasks").iterdir()
    wait_for((task_folder / "checkpoints/a.done").exists)
    agent.start()
    (row,) = wait_for(lambda: complete(job))
    assert (row.name, row.reason, row.size_bytes) == ("a", "own", 2)
    wait_for(lambda: not (task_folder / "checkpoints/a").exists())


def test_a_program_that_handles_no_signal_is_neither_killed_nor_waited_for(
    world: World, start_agent: StartAgent
) -> None:
    start_agent()
    job = world.submit("echo started; sleep 60; true", checkpoint={"grace": 1})
    world.run_until(job, "running")
    wait_for_output(world, job, b"started")
    ask_checkpoint(job=job, by=world.user)
    wait_for(lambda: "job.checkpoint_missed" in events(job))
    event = JobEvent.objects.get(job=job, kind="job.checkpoint_missed")
    assert event.because == "no checkpoint on n1: No process of the job handles SIGUSR1."
    assert Job.objects.get(pk=job.pk).state == "running"
    requeue_job(job=job, by=world.user)
    wait_for(lambda: Job.objects.get(pk=job.pk).state == "queued")


def test_a_checkpoint_that_cannot_be_fetched_is_a_fault_of_the_site_and_tried_again(
    world: World, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_agent()
    job = train(world, 400, grace=10)
    world.run_until(job, "running")
    wait_for_output(world, job, b"begin at step 0")
    damaged = b'{"step": 1, "slope": 0, "offset": 0}'
    monkeypatch.setattr(resume, "piece", lambda row, number: damaged.ljust(row.size_bytes))
    requeue_job(job=job, by=world.user)
    wait_for(lambda: complete(job))
    wait_for(lambda: Job.objects.get(pk=job.pk).state == "queued")
    world.plan()
    wait_for(lambda: job.attempts.filter(epoch=2, state="lost").exists())
    attempt = job.attempts.get(epoch=2)
    assert attempt.failure_class == "infrastructure"
    assert re.fullmatch(
        r"The checkpoint could not be fetched to the node: the checksum of step-\d+/state.json is wrong",
        attempt.end_text,
    )
    monkeypatch.undo()
    Job.objects.filter(pk=job.pk).update(eligible_at=timezone.now())
    world.run_until(job, "running")
    wait_for_output(world, job, b"begin at step")
    assert b"begin at step 0" not in b"".join(bytes(chunk.data) for chunk in world.task(job).log_chunks.all())


class TestIsolated:
    """The same with all the isolation that this machine offers."""

    @pytest.fixture
    def isolation(self) -> str:
        return "auto"

    def test_an_isolated_job_writes_and_reads_its_checkpoints(
        self, world: World, start_agent: StartAgent
    ) -> None:
        start_agent()
        command = (
            'if [ -n "$MUSTER_RESTORE_FROM" ]; then cat "$MUSTER_RESTORE_FROM/note"; exit 0; fi;'
            ' trap \'mkdir "$MUSTER_CHECKPOINT_DIR/a"; echo saved > "$MUSTER_CHECKPOINT_DIR/a/note";'
            ' touch "$MUSTER_CHECKPOINT_DIR/a.done"\' USR1; echo ready; while :; do sleep 0.05; done'
        )
        job = world.submit(command, checkpoint={})
        world.run_until(job, "running")
        wait_for_output(world, job, b"ready")
        requeue_job(job=job, by=world.user)
        wait_for(lambda: Job.objects.get(pk=job.pk).state == "queued")
        world.run_until(job, "completed")
        assert world.output(job) == b"saved\n"
