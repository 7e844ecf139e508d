"""Events have the key (job, id), and ranges of pages (BRIN) in place of an index of their ids.

Both are built without locks that keep rows from being added; then the key changes, which reads no row.
"""

import django.contrib.postgres.indexes
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

KEY = (
    "ALTER TABLE scheduler_jobevent DROP CONSTRAINT scheduler_jobevent_pkey,"
    " ADD CONSTRAINT scheduler_jobevent_pkey PRIMARY KEY USING INDEX event_key"
)
BACK = (
    "ALTER TABLE scheduler_jobevent DROP CONSTRAINT scheduler_jobevent_pkey,"
    " ADD CONSTRAINT scheduler_jobevent_pkey PRIMARY KEY USING INDEX event_id"
)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0065_one_index_of_whose"),
    ]

    operations = [
        AddIndexConcurrently(
            "jobevent",
            django.contrib.postgres.indexes.BrinIndex(
                autosummarize=True, fields=["id"], name="event_by_id", pages_per_range=16
            ),
        ),
        # Forwards it is built anew where a run before was interrupted.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS event_key", migrations.RunSQL.noop),
        migrations.RunSQL(
            "CREATE UNIQUE INDEX CONCURRENTLY event_key ON scheduler_jobevent (job_id, id)", migrations.RunSQL.noop
        ),
        migrations.RunSQL(KEY, BACK),
        migrations.RunSQL(
            migrations.RunSQL.noop, "CREATE UNIQUE INDEX CONCURRENTLY event_id ON scheduler_jobevent (id)"
        ),
        migrations.RunSQL(
            "DROP INDEX CONCURRENTLY IF EXISTS event_of_job",
            "CREATE INDEX CONCURRENTLY event_of_job ON scheduler_jobevent (job_id)",
            state_operations=[migrations.RemoveIndex("jobevent", "event_of_job")],
        ),
    ]
