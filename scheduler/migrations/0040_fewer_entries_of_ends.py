"""Jobs that completed, most of all, have no entry in the index of everybody's ended jobs; ends of attempts have ranges.

The indexes are built without locks that keep rows from moving.
"""

import django.contrib.postgres.indexes
from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0039_elements_alone_are_indexed"),
    ]

    operations = [
        RemoveIndexConcurrently("job", "job_over"),
        AddIndexConcurrently(
            "job",
            models.Index(
                condition=models.Q(("outcome__in", ["cancelled", "failed"])),
                fields=["outcome", "-request"],
                name="job_over",
            ),
        ),
        RemoveIndexConcurrently("attempt", "attempt_by_end"),
        AddIndexConcurrently(
            "attempt",
            django.contrib.postgres.indexes.BrinIndex(
                autosummarize=True, fields=["ended_at"], name="attempt_by_end", pages_per_range=16
            ),
        ),
    ]
