"""How far a table may be read: what comes after a position is found without a look at what came before."""

from __future__ import annotations

import pytest
from django.db import connection

from infra.db.commit_order import largest_of, settled_up_to
from notifications.services.job_events import TABLE
from scheduler.models import JobEvent
from tests.support.factories import JobEventFactory
from tests.support.roles import as_owner

pytestmark = pytest.mark.django_db

MANY = 30_000


def test_nothing_after_a_position_leaves_it() -> None:
    first = JobEventFactory().pk
    last = JobEventFactory().pk

    assert largest_of(TABLE, "id", after=0) == last > first
    assert largest_of(TABLE, "id", after=last) == last
    assert largest_of(TABLE, "id", after=last + 7) == last + 7
    assert settled_up_to(TABLE, after=first) == last


def test_events_after_a_position_are_found_by_ranges_of_pages_and_those_of_a_job_by_their_key() -> None:
    with as_owner(), connection.cursor() as cursor:
        # As many jobs as there are in life; here they have no rows.
        cursor.execute(f"ALTER TABLE {TABLE} DISABLE TRIGGER references_added")
        cursor.execute(
            f"INSERT INTO {TABLE} (job_id, kind, at, because, details)"
            " SELECT n, 'job.saved', now(), repeat('x', 100), '{}' FROM generate_series(1, %s) n",
            [MANY],
        )
        cursor.execute("SELECT brin_summarize_new_values('event_by_id')")
        cursor.execute(f"ANALYZE {TABLE}")
    last = JobEvent.objects.filter(job=MANY).values_list("pk", flat=True).get()

    def plan(where: str) -> str:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN SELECT max(id) FROM {TABLE} WHERE {where}")
            return "\n".join(row[0] for row in cursor.fetchall())

    assert "event_by_id" in plan(f"id > {last - 50}")
    assert "scheduler_jobevent_pkey" in plan("job_id = 77")
    assert largest_of(TABLE, "id", after=last - 50) == last
