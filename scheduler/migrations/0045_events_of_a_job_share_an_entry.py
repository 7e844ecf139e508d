"""The index of the events of a job does without their ids, so that the events of one job share an entry.

The indexes are built without locks that keep rows from moving.
"""

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0044_references_of_jobs"),
    ]

    operations = [
        AddIndexConcurrently("jobevent", models.Index(fields=["job"], name="event_of_job")),
        RemoveIndexConcurrently("jobevent", "event_by_job"),
    ]
