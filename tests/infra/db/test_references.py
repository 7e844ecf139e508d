"""Rows whose parents are not there, and parents that go before their rows, are refused without foreign keys."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Model, ProtectedError

from quotas.models import LedgerEntry, LedgerRollUp
from scheduler.models import Allocation, Attempt, Job, JobEvent, JobRequest, Task
from tests.support.factories import AllocationFactory, AttemptFactory, JobFactory, TaskFactory
from tests.support.locks import Apart
from tests.support.roles import all_rights

pytestmark = pytest.mark.django_db

NOBODY = 10**9


#: Who refers to whom: table, column, table of the parent.
PAIRS = (
    ("scheduler_jobevent", "job_id", "scheduler_job"),
    ("scheduler_jobevent", "actor_id", "accounts_user"),
    ("scheduler_attempt", "job_id", "scheduler_job"),
    ("scheduler_task", "attempt_id", "scheduler_attempt"),
    ("scheduler_task", "node_id", "scheduler_node"),
    ("scheduler_job", "number", "scheduler_jobrequest"),
    ("scheduler_job", "user_id", "accounts_user"),
    ("scheduler_job", "project_id", "accounts_project"),
    ("scheduler_job", "queue_id", "scheduler_queue"),
    ("quotas_ledgerentry", "project_id", "accounts_project"),
    ("quotas_ledgerentry", "user_id", "accounts_user"),
    ("quotas_ledgerentry", "roll_up_id", "quotas_ledgerrollup"),
)


@pytest.fixture
def rows() -> dict[type[Model], Model]:
    """A job with a row of each kind that refers to it."""
    task = TaskFactory()
    AllocationFactory(attempt=task.attempt, rank=task.rank, node=task.node)
    job = task.attempt.job
    event = JobEvent.objects.create(job=job, at=job.created_at, kind="job.noted", actor=job.user)
    line = LedgerEntry.objects.create(
        kind="adjust", project=job.project, user=job.user, starts_at=job.created_at, ends_at=job.created_at,
        at=job.created_at, roll_up=LedgerRollUp.objects.create(at=job.created_at, lines=1, digest="x"),
    )  # fmt: skip
    return {type(row): row for row in (task, task.attempt, job, event, line)}


@pytest.mark.parametrize(("table", "column"), [pair[:2] for pair in PAIRS if pair[1] != "number"])
def test_a_row_without_its_parent_is_refused(rows: dict[type[Model], Model], table: str, column: str) -> None:
    model = next(model for model in rows if model._meta.db_table == table)
    copied = [field.column for field in model._meta.local_concrete_fields if not field.generated]
    columns = {name: f'"{name}"' for name in copied if name != "id"}
    columns[column] = str(NOBODY)
    if model is Job:
        columns["number"] = "(SELECT max(number) FROM scheduler_jobrequest)"
        JobRequest.objects.create(name="without a job", command="true", created_at=rows[Job].created_at)  # type: ignore[attr-defined]
    if "epoch" in columns:
        columns["epoch"] = "77"
    if "rank" in columns:
        columns["rank"] = "77"
    names = ", ".join(f'"{name}"' for name in columns)

    with pytest.raises(IntegrityError, match=f"no row of .* for {column}: {NOBODY}"), transaction.atomic():
        _run(
            f"INSERT INTO {table} ({names}) SELECT {', '.join(columns.values())} FROM {table}"
            f" WHERE {model._meta.pk.column} = {rows[model].pk}"  # type: ignore[union-attr]
        )


def test_a_job_without_its_request_is_refused() -> None:
    job = JobFactory()
    columns = [f.column for f in Job._meta.local_concrete_fields if not f.generated and f.column != "number"]
    names = ", ".join(columns)

    with pytest.raises(IntegrityError, match="scheduler_jobrequest for number"), transaction.atomic():
        _run(
            f"INSERT INTO scheduler_job (number, {names}) SELECT {NOBODY}, {names} FROM scheduler_job"
            f" WHERE number = {job.pk}"
        )


@pytest.mark.parametrize(("child", "column", "parent"), [pair for pair in PAIRS if pair[1] != "roll_up_id"])
def test_a_parent_does_not_go_before_its_rows(
    rows: dict[type[Model], Model], child: str, column: str, parent: str
) -> None:
    """By every role: the application may not delete most of them at all, and nobody deletes roll-ups."""
    others = sorted({table for table, _, of in PAIRS if of == parent and table != child})
    with all_rights(), transaction.atomic():
        _run("SET LOCAL session_replication_role = replica")
        for other in others:
            _run(f"DELETE FROM {other}")
        _run("SET LOCAL session_replication_role = origin")

        with pytest.raises(IntegrityError, match=f"rows of {child} refer to {parent}"), transaction.atomic():
            _run(f"DELETE FROM {parent}")


def test_a_row_moves_to_a_parent_that_is_there_and_to_no_other(rows: dict[type[Model], Model]) -> None:
    other = AttemptFactory()
    task: Any = rows[Task]

    Task.objects.filter(pk=task.pk).update(attempt=other)
    with pytest.raises(IntegrityError, match="attempt_id"), transaction.atomic():
        Task.objects.filter(pk=task.pk).update(attempt_id=NOBODY)

    assert Task.objects.get(pk=task.pk).attempt_id == other.pk


def test_a_parent_keeps_its_key(rows: dict[type[Model], Model]) -> None:
    with all_rights(), pytest.raises(IntegrityError, match="keeps its id"), transaction.atomic():
        _run(f"UPDATE scheduler_attempt SET id = {NOBODY}")


def test_no_move_of_an_attempt_or_a_task_locks_its_row_first() -> None:
    """As PostgreSQL does, with a record in its log, where any trigger for each row runs before an update."""
    before = _run(
        "SELECT tgname FROM pg_trigger WHERE tgrelid IN ('scheduler_attempt'::regclass, 'scheduler_task'::regclass)"
        " AND tgtype::int & 19 = 19"  # for each row, before, an update
    )
    assert before == []


def test_what_django_deletes_goes_with_its_rows(rows: dict[type[Model], Model]) -> None:
    job: Any = rows[Job]
    with pytest.raises(ProtectedError):
        job.queue.delete()

    job.delete()

    assert not any(model._default_manager.exists() for model in (Task, Allocation, Attempt, JobEvent, Job))


def test_a_deletion_that_finds_nothing_takes_no_lock() -> None:
    _run("DELETE FROM scheduler_attempt")

    assert _run("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()") == [
        (0,)
    ]


def _an_event_of(number: int) -> None:
    _run(
        "INSERT INTO scheduler_jobevent (job_id, at, kind, because, details)"
        f" VALUES ({number}, now(), 'job.noted', '', '{{}}')"
    )


@pytest.mark.django_db(transaction=True)
def test_who_deletes_a_parent_waits_for_who_adds_rows_and_is_refused() -> None:
    number = JobFactory().pk
    with transaction.atomic():
        _an_event_of(number)
        deletes = Apart(lambda: _run(f"DELETE FROM scheduler_job WHERE number = {number}"))
        deletes.until_it_waits()
    with pytest.raises(IntegrityError, match="rows of scheduler_jobevent refer to scheduler_job"):
        deletes.end()

    assert Job.objects.filter(pk=number).exists()


@pytest.mark.django_db(transaction=True)
def test_who_adds_rows_waits_for_who_deletes_the_parent_and_is_refused() -> None:
    number = JobFactory().pk
    with transaction.atomic():
        _run(f"DELETE FROM scheduler_job WHERE number = {number}")
        adds = Apart(lambda: _an_event_of(number))
        adds.until_it_waits()
    with pytest.raises(IntegrityError, match=f"no row of scheduler_job for job_id: {number}"):
        adds.end()

    assert not JobEvent.objects.exists()


def _run(sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []
