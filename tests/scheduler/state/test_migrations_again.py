"""Migrations beside the release before, and migrations that were interrupted."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.db import connection, migrations
from django.db.migrations.loader import MigrationLoader
from django.utils import timezone

from scheduler.models import Job, JobRequest, UnfinishedJob
from tests.support.factories import JobFactory
from tests.support.roles import as_owner

unfinished_jobs = import_module("scheduler.migrations.0079_unfinished_jobs")
#: Those that are not one transaction, since the release before.
IN_STEPS = ("0079_unfinished_jobs", "0080_ends_of_attempts", "0088_arrays_by_number")


@pytest.mark.django_db
def test_jobs_can_be_written_from_the_moment_that_triggers_write_more_for_them() -> None:
    """The command that migrates gives rights when all is done, which is long after where there are many jobs."""
    said = [one.sql for one in unfinished_jobs.Migration.operations if isinstance(one, migrations.RunSQL)]
    with as_owner(), connection.cursor() as cursor:
        cursor.execute("DROP TABLE scheduler_unfinishedjob")
        for sql in said[: said.index(unfinished_jobs.TRIGGERS) + 1]:
            cursor.execute(sql)

    job = JobFactory(state="queued")
    rows = [list(UnfinishedJob.objects.values_list("number", flat=True))]
    Job.objects.filter(pk=job.pk).update(state="cancelled", completed_at=timezone.now())
    rows.append(list(UnfinishedJob.objects.values_list("number", flat=True)))

    assert rows == [[job.pk], []]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", IN_STEPS)
def test_a_migration_in_steps_can_be_run_again_where_it_was_interrupted(name: str) -> None:
    loader = MigrationLoader(connection)
    before = loader.project_state(("scheduler", name), at_end=False)
    job = JobFactory(state="queued")

    with as_owner(), connection.schema_editor(atomic=False) as editor:
        loader.get_migration("scheduler", name).apply(before, editor)
        with connection.cursor() as cursor:
            cursor.execute("SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid")
            assert cursor.fetchall() == []

    assert UnfinishedJob.objects.get().number == job.pk
    assert JobRequest.objects.get(pk=job.pk).array_number is None
