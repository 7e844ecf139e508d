"""Jobs that completed, most of all, have no entry in the indexes of jobs that are over; ends of attempts have ranges.

The new indexes are built beside the old ones, without locks that keep jobs from moving.
"""

import django.contrib.postgres.indexes
from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models

NOT_COMPLETED = models.Q(("outcome__in", ["cancelled", "failed"]))
OVER = {"job_over": [], "job_over_by_user": ["user"], "job_over_by_project": ["project"], "job_over_by_queue": ["queue"]}


def rebuilt(name: str, of: list[str]) -> list[migrations.operations.base.Operation]:
    index = models.Index(condition=NOT_COMPLETED, fields=[*of, "outcome", "-request"], name=name)
    return [RemoveIndexConcurrently("job", name), AddIndexConcurrently("job", index)]


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0036_elements_alone_are_indexed"),
    ]

    operations = [
        *(operation for name, of in OVER.items() for operation in rebuilt(name, of)),
        RemoveIndexConcurrently("attempt", "attempt_by_end"),
        AddIndexConcurrently(
            "attempt",
            django.contrib.postgres.indexes.BrinIndex(
                autosummarize=True, fields=["ended_at"], name="attempt_by_end", pages_per_range=16
            ),
        ),
    ]
