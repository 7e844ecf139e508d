"""Requests by their whole name, by its hash, in place of an index of all parts of each request's name.

The names of requests that are there are added without a lock; the indexes are built and dropped without locks that keep
rows from moving.
"""

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models

import scheduler.models.job_request

_NAMES = """
INSERT INTO scheduler_jobname (name) SELECT DISTINCT name FROM scheduler_jobrequest ORDER BY name
ON CONFLICT (name) DO NOTHING
"""


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0058_names_of_jobs"),
    ]

    operations = [
        migrations.RunSQL(_NAMES, migrations.RunSQL.noop),
        AddIndexConcurrently(
            "jobrequest",
            models.Index(scheduler.models.job_request.HashOfText("name"), name="request_by_whole_name"),
        ),
        RemoveIndexConcurrently("jobrequest", "request_by_name"),
    ]
