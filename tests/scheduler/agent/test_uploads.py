"""Uploaded folders in the working folders of real jobs: whole, with their modes, at each attempt and on each node."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from accounts.models import User
from scheduler.agent.protocol import NOT_UPLOADED, PIECE_BYTES
from scheduler.models import Job, Node
from scheduler.services.jobs.verbs import cancel_job, requeue_job
from scheduler.services.uploads import nodes, stored, verbs
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import World, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

RUN = b"#!/bin/sh\nset -e\nsha256sum data/big.bin 'data/two  words' empty/none | cut -c1-64\nls -d data/deep/er\n"
BIG = random.Random(7).randbytes(2 * PIECE_BYTES + 4321)


@pytest.fixture(autouse=True)
def storage(settings: Settings, tmp_path: Path) -> Path:
    settings.MUSTER_STORAGE = (tmp_path / "storage").as_uri()
    settings.MUSTER_STORAGE_KEYS = ["ab" * 32]
    return tmp_path / "storage"


def upload(by: User, files: dict[str, bytes], *, executable: set[str] = frozenset(), **more: Any) -> str:  # type: ignore[assignment]
    listed = [
        {"path": path, "size": len(data), "executable": path in executable} for path, data in files.items()
    ]
    row, manifest = verbs.begin(body={"name": "training", "files": listed, **more}, by=by)
    whole = b"".join(files[one["path"]] for one in manifest["files"])
    for number in range(stored.pieces_of(row)):
        verbs.take_piece(row=row, number=number, data=whole[number * PIECE_BYTES :][:PIECE_BYTES])
    assert verbs.finish(row=row).state == "ready"
    return str(row.pk)


FILES = {"run.sh": RUN, "data/big.bin": BIG, "data/two  words": b"two\n", "empty/none": b""}


def a_training(world: World) -> str:
    return upload(world.user, FILES, executable={"run.sh"}, folders=["data/deep/er"])


def test_a_folder_arrives_as_it_was_sent_and_its_script_runs(
    world: World, start_agent: StartAgent, storage: Path
) -> None:
    start_agent()
    job = world.submit("./run.sh; stat -c '%a %n' . run.sh data data/big.bin", upload=a_training(world))

    world.run_until(job, "completed")

    sums = [
        hashlib.sha256(FILES[name]).hexdigest() for name in ("data/big.bin", "data/two  words", "empty/none")
    ]
    modes = ["700 .", "700 run.sh", "700 data", "600 data/big.bin"]
    assert world.output(job).decode().splitlines() == [*sums, "data/deep/er", *modes]
    kept = b"".join(path.read_bytes() for path in storage.rglob("*") if path.is_file())
    assert RUN not in kept  # encrypted there
    world.assert_nothing_is_held()


def test_each_attempt_has_a_fresh_copy_on_any_node_also_after_the_agent_was_killed(
    world: World, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = start_agent("n1")
    asked: list[int] = []
    give = nodes.give_piece
    hold = True

    def slowly(**named: Any) -> bytes:
        asked.append(named["number"])
        wait_for(lambda: not hold or len(asked) > 1, seconds=15)
        return give(**named)

    monkeypatch.setattr("scheduler.api.agent.checkpoints.give_piece", slowly)
    script = (
        "test ! -e made; echo $?; sha256sum < data/big.bin | cut -c1-64; rm -r data; touch made; sleep 60"
    )
    job = world.submit(script, upload=a_training(world))
    world.plan()
    wait_for(lambda: asked)
    agent.kill()  # in the middle of the first piece: the next agent fetches all of it again
    hold = False
    agent.start()
    world.run_until(job, "running")
    wait_for(lambda: list((agent.state / "tasks").glob("*/work/made")))
    again(world, job)
    wait_for(lambda: list((agent.state / "tasks").glob(f"{job.pk}-2-*/work/made")))
    Node.objects.filter(name="n1").update(cordoned=True)
    second = start_agent("n2")
    again(world, job)
    wait_for(lambda: list((second.state / "tasks").glob("*/work/made")))
    cancel_job(job=job, by=world.user)
    wait_for(lambda: Job.objects.get(pk=job.pk).state == "cancelled")

    outputs = [world.output(job, epoch=attempt).decode().split() for attempt in (1, 2, 3)]
    assert outputs == [["0", hashlib.sha256(BIG).hexdigest()]] * 3
    assert not list((agent.state / "uploaded").iterdir())


def again(world: World, job: Job) -> None:
    requeue_job(job=job, by=world.user)
    wait_for(lambda: Job.objects.get(pk=job.pk).state == "queued")
    world.run_until(job, "running")


def test_an_upload_that_is_damaged_is_the_fault_of_the_site_and_starts_nothing(
    world: World, start_agent: StartAgent, storage: Path
) -> None:
    start_agent()
    job = world.submit("echo ran", upload=a_training(world), max_restarts=0)
    piece = max(storage.glob("uploads/*/00000001-*"))
    piece.write_bytes(piece.read_bytes()[:-1] + b"?")

    world.plan()
    wait_for(lambda: Job.objects.get(pk=job.pk).state == "failed")

    job.refresh_from_db()
    assert (job.failure_class, NOT_UPLOADED in job.end_text) == ("infrastructure", True)
    assert world.task(job).log_chunks.count() == 0
    world.assert_nothing_is_held()
