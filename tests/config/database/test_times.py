"""Times come from the driver's own reader, as Django's would give them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection

from infra.db.prepared import ask

pytestmark = pytest.mark.django_db

WRITTEN = """
SELECT '2026-01-31 12:00:00.000001+02'::timestamptz, ARRAY['2026-06-01 00:00+00'::timestamptz], NULL::timestamptz
"""
READ = (datetime(2026, 1, 31, 10, 0, 0, 1, tzinfo=UTC), [datetime(2026, 6, 1, tzinfo=UTC)], None)


def test_times_are_read_in_utc_by_the_driver_itself() -> None:
    with connection.cursor() as cursor:
        cursor.execute(WRITTEN)
        row = cursor.fetchone()
        reader = cursor.cursor.adapters.get_loader(1184, 0)

    assert row == READ == ask(WRITTEN)[0]
    assert row[0].tzinfo is UTC
    assert type(reader(1184)).__module__.startswith("psycopg")


def test_a_connection_with_a_zone_of_its_own_keeps_it() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TIME ZONE 'Europe/Berlin'")
        cursor.execute("SELECT '2026-01-31 12:00:00+00'::timestamptz")
        (at,) = cursor.fetchone()

    assert (at, at.utcoffset().total_seconds()) == (datetime(2026, 1, 31, 12, tzinfo=UTC), 3600)
