"""Chunks come twice, late and overlapping; readers see every byte once, and always at the same offset."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from infra.errors import InvalidInput
from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.models import Attempt, Job, LogChunk, Task
from scheduler.services.jobs import logs
from scheduler.services.jobs.logs import IncomingChunk, append_chunks, read_log, sizes
from tests.support.factories import AttemptFactory, JobFactory, NodeFactory, TaskFactory

pytestmark = pytest.mark.django_db


def a_task(tasks: int = 1) -> list[Task]:
    attempt = AttemptFactory(job=JobFactory(state=JobState.RUNNING, epoch=1), epoch=1)
    node = NodeFactory()
    return [TaskFactory(attempt=attempt, rank=rank, node=node) for rank in range(tasks)]


def send(task: Task, offset: int, data: bytes, stream: str = "stdout", epoch: int = 1) -> int:
    """Where the server says that the stream goes on."""
    done = append_chunks(node=task.node, chunks=[IncomingChunk(task.pk, epoch, stream, offset, data)])
    return done.next_offsets.get((task.pk, stream), -1)


def text(job: Job, stream: str = "stdout", **where: int) -> bytes:
    return read_log(job=job, stream=stream, **where).data


def test_chunks_follow_each_other() -> None:
    (task,) = a_task()

    assert send(task, 0, b"hello ") == 6
    assert send(task, 6, b"world\n") == 12

    assert text(task.attempt.job) == b"hello world\n"
    assert sizes(task.attempt.job) == {"stdout": 12}


def test_what_is_known_already_is_not_stored_again() -> None:
    (task,) = a_task()
    send(task, 0, b"hello ")

    assert send(task, 0, b"hello ") == 6
    assert send(task, 3, b"lo world\n") == 12
    assert send(task, 2, b"llo") == 12

    assert text(task.attempt.job) == b"hello world\n"


def test_a_gap_is_refused_by_saying_where_to_go_on() -> None:
    (task,) = a_task()
    send(task, 0, b"hello ")

    assert send(task, 10, b"later") == 6
    assert text(task.attempt.job) == b"hello "


def test_a_stale_epoch_prints_nothing() -> None:
    (task,) = a_task()

    done = append_chunks(node=task.node, chunks=[IncomingChunk(task.pk, 2, "stdout", 0, b"ghost")])

    assert (done.next_offsets, done.gone) == ({}, [task.pk])
    assert not LogChunk.objects.exists()


def test_several_chunks_of_one_message_follow_each_other() -> None:
    (task,) = a_task()
    chunks = [IncomingChunk(task.pk, 1, "stdout", n * 2, b"%02d" % n) for n in range(20)]

    done = append_chunks(node=task.node, chunks=chunks, ask=[(task.pk, 1)])

    assert done.next_offsets == {(task.pk, "stdout"): 40, (task.pk, "stderr"): 0}
    assert text(task.attempt.job, offset=10, limit=6) == b"050607"


def test_the_merged_stream_keeps_the_order_of_arrival() -> None:
    first, second = a_task(2)
    job = first.attempt.job
    send(first, 0, b"a1 ")
    send(second, 0, b"b1 ", "stderr")
    send(first, 3, b"a2 ")
    before = read_log(job=job)
    send(second, 0, b"b0 ", "stdout")

    after = read_log(job=job)

    assert before.data == b"a1 b1 a2 "
    assert after.data == before.data + b"b0 "
    assert read_log(job=job, offset=before.next_offset).data == b"b0 "
    assert text(job, "stdout", rank=0) == b"a1 a2 "
    assert text(job, "stdout") == b"a1 a2 b0 "
    assert text(job, "stderr") == b"b1 "


def test_the_end_is_known_when_every_byte_is_there() -> None:
    (task,) = a_task()
    job = task.attempt.job
    send(task, 0, b"hello")
    assert read_log(job=job, stream="stdout").eof is False

    Attempt.objects.update(state=AttemptState.SUCCEEDED, ended_at=timezone.now())
    Task.objects.update(state="succeeded", stdout_bytes=7, stderr_bytes=0)
    assert read_log(job=job, stream="stdout").eof is False
    assert read_log(job=job, stream="stderr").eof is True
    send(task, 5, b"!\n")

    part = read_log(job=job, stream="stdout", limit=7)
    assert (part.data, part.eof) == (b"hello!\n", False)
    assert read_log(job=job, stream="stdout", offset=part.next_offset).eof is True
    assert read_log(job=job, stream="merged").eof is True


def test_what_arrives_while_we_read_is_not_taken_for_read(monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = a_task()
    Task.objects.filter(pk=task.pk).update(stdout_bytes=5)
    send(task, 0, b"hell")
    Attempt.objects.filter(pk=task.attempt_id).update(state=AttemptState.SUCCEEDED, ended_at=timezone.now())
    read = logs.read_stream

    def read_and_then_the_rest_comes(*where: Any) -> bytes:
        data = read(*where)
        send(task, 4, b"o")
        return data

    monkeypatch.setattr(logs, "read_stream", read_and_then_the_rest_comes)
    first = read_log(job=task.attempt.job, stream="stdout")
    monkeypatch.undo()
    second = read_log(job=task.attempt.job, stream="stdout", offset=first.next_offset)

    assert (first.data, first.eof) == (b"hell", False)
    assert (second.data, second.eof) == (b"o", True)


def test_bytes_that_will_never_come_are_not_waited_for() -> None:
    (task,) = a_task()
    Attempt.objects.update(state=AttemptState.SUCCEEDED, ended_at=timezone.now() - timedelta(hours=1))
    Task.objects.update(state="succeeded", stdout_bytes=100, stderr_bytes=0)

    assert read_log(job=task.attempt.job).eof is True


def test_each_attempt_has_its_own_log() -> None:
    (task,) = a_task()
    job = task.attempt.job
    send(task, 0, b"first try")
    Attempt.objects.update(state=AttemptState.FAILED)
    Job.objects.update(epoch=2)
    job.refresh_from_db()
    second = TaskFactory(attempt=AttemptFactory(job=job, epoch=2), node=task.node)
    send(second, 0, b"second try", epoch=2)

    assert text(job) == b"second try"
    assert text(job, epoch=1) == b"first try"


def test_a_job_that_never_ran_has_printed_nothing() -> None:
    queued, cancelled = JobFactory(), JobFactory(state=JobState.CANCELLED, completed_at=timezone.now())

    assert read_log(job=queued) == read_log(job=queued, offset=0)
    assert (read_log(job=queued).data, read_log(job=queued).eof) == (b"", False)
    assert read_log(job=cancelled).eof is True


@pytest.mark.parametrize(
    ("stream", "offset", "limit"), [("stdin", 0, 1), ("stdout", -1, 1), ("stdout", 0, 0)]
)
def test_nonsense_is_refused(stream: str, offset: int, limit: int) -> None:
    (task,) = a_task()

    with pytest.raises(InvalidInput):
        read_log(job=task.attempt.job, stream=stream, offset=offset, limit=limit)


class AnyOrderOfSending(TestCase):
    @settings(max_examples=25)
    @given(
        data=st.binary(min_size=1, max_size=60),
        cuts=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=12),
    )
    def test_however_it_is_sent_it_arrives_whole(self, data: bytes, cuts: list[tuple[int, int]]) -> None:
        """Any pieces in any order, then from wherever the server says: the stream is the file."""
        (task,) = a_task()
        end = 0
        for offset, length in cuts:
            if piece := data[offset : offset + length]:
                end = send(task, offset, piece)
        while end < len(data):
            end = send(task, end, data[end : end + 7])

        assert text(task.attempt.job) == data
        for offset in range(0, len(data), 9):
            assert text(task.attempt.job, offset=offset, limit=5) == data[offset : offset + 5]


def test_what_was_printed_and_has_not_arrived_is_said() -> None:
    (task,) = a_task()
    job = task.attempt.job
    assert read_log(job=job).awaited_bytes is None

    Task.objects.filter(pk=task.pk).update(stdout_bytes=500, stderr_bytes=7)
    Attempt.objects.filter(pk=task.attempt_id).update(state=AttemptState.SUCCEEDED, ended_at=timezone.now())
    assert read_log(job=job).awaited_bytes == 507
    send(task, 0, b"x" * 100)
    assert read_log(job=job, stream="stdout").awaited_bytes == 400
    send(task, 100, b"x" * 400)
    send(task, 0, b"errors\n", stream="stderr")
    assert (read_log(job=job).awaited_bytes, read_log(job=job, offset=507).eof) == (0, True)


def test_what_will_never_arrive_is_said_too() -> None:
    (task,) = a_task()
    Task.objects.filter(pk=task.pk).update(stdout_bytes=500)
    long_ago = timezone.now() - timedelta(seconds=logs.GIVE_UP_SECONDS + 1)
    Attempt.objects.filter(pk=task.attempt_id).update(state=AttemptState.SUCCEEDED, ended_at=long_ago)

    found = read_log(job=task.attempt.job)

    assert (found.eof, found.awaited_bytes, found.lost_bytes) == (True, 0, 500)
