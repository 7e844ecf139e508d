"""The log topic: text by byte offset, while the job prints, across attempts, in any script."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import outbox
from scheduler.core.lifecycle import AttemptState, JobState, TaskState
from scheduler.models import Attempt, Job, Task
from scheduler.realtime import feeds
from tests.scheduler.realtime.conftest import Connect, LiveClient, rows
from tests.support.factories import AttemptFactory, JobFactory, LogChunkFactory, TaskFactory, the_cast

pytestmark = pytest.mark.django_db(transaction=True)


def a_running_job(cast: Any) -> tuple[Job, Task]:
    job = JobFactory(project=cast.project, user=cast.owner, state=JobState.RUNNING, epoch=1)
    return job, TaskFactory(attempt=AttemptFactory(job=job))


def prints(job: Job, task: Task, offset: int, data: bytes) -> None:
    LogChunkFactory(task=task, offset=offset, data=data)
    outbox.announce(outbox.log_topic(job.number))


async def follow(client: LiveClient, job: Job, **more: Any) -> dict[str, Any]:
    await client.say(op="subscribe", topic=f"log:{job.number}", sub=1, **more)
    return (await client.hear("snapshot"))["data"]


async def test_what_was_printed_comes_first_and_what_is_printed_follows(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job, task = await rows(a_running_job)(cast)
    await rows(prints)(job, task, 0, b"hello\n")
    client = await connect(cast.owner)

    first = await follow(client, job)
    await rows(prints)(job, task, 6, b"bye\n")
    then = (await client.hear("patch"))["patch"]

    assert (first["text"], first["offset"], first["next_offset"], first["eof"]) == ("hello\n", 0, 6, False)
    assert (then["text"], then["offset"], then["next_offset"]) == ("bye\n", 6, 10)


async def test_a_reader_goes_on_where_it_was(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job, task = await rows(a_running_job)(cast)
    await rows(prints)(job, task, 0, b"hello\nbye\n")
    client = await connect(cast.owner)

    rest = await follow(client, job, offset=6, stream="stdout")

    assert (rest["text"], rest["offset"]) == ("bye\n", 6)


async def test_a_letter_is_never_cut_in_two(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job, task = await rows(a_running_job)(cast)
    data = "größe\n".encode()
    await rows(prints)(job, task, 0, data[:3])
    client = await connect(cast.owner)

    first = await follow(client, job)
    await rows(prints)(job, task, 3, data[3:])
    then = (await client.hear("patch"))["patch"]

    assert (first["text"], first["next_offset"]) == ("gr", 2)
    assert (then["text"], then["offset"]) == ("öße\n", 2)


async def test_a_long_log_comes_in_pieces_without_a_gap(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LOG_PIECE_BYTES", 1000)
    cast = await rows(the_cast)()
    job, task = await rows(a_running_job)(cast)
    whole = "".join(f"line {n}\n" for n in range(500))
    await rows(prints)(job, task, 0, whole.encode())
    client = await connect(cast.owner)

    piece = await follow(client, job)
    text, at = piece["text"], piece["next_offset"]
    while piece["more"]:
        piece = (await client.hear("patch"))["patch"]
        assert piece["offset"] == at
        text, at = text + piece["text"], piece["next_offset"]

    assert text == whole


async def test_a_second_attempt_starts_the_log_again(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job, task = await rows(a_running_job)(cast)
    await rows(prints)(job, task, 0, b"first try\n")
    client = await connect(cast.owner)
    first = await follow(client, job)

    def run_again() -> None:
        Attempt.objects.update(state=AttemptState.LOST)
        Task.objects.update(state=TaskState.LOST)
        Job.objects.update(epoch=2)
        again = TaskFactory(attempt=AttemptFactory(job=Job.objects.get(), epoch=2))
        prints(job, again, 0, b"2nd\n")

    await rows(run_again)()
    then = (await client.hear("patch"))["patch"]

    assert (first["attempt"], then["attempt"]) == (1, 2)
    assert (then["text"], then["offset"]) == ("2nd\n", 0)


async def test_the_end_of_a_log_is_said(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job, task = await rows(a_running_job)(cast)
    await rows(prints)(job, task, 0, b"all\n")
    client = await connect(cast.owner)
    await follow(client, job)

    def end() -> None:
        Task.objects.update(state=TaskState.SUCCEEDED, stdout_bytes=4, stderr_bytes=0)
        Attempt.objects.update(state=AttemptState.SUCCEEDED)
        outbox.announce(outbox.job_topic(job.number))

    await rows(end)()
    then = (await client.hear("patch"))["patch"]

    assert (then["text"], then["eof"]) == ("", True)
