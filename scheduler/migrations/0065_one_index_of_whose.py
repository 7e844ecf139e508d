"""One index of (project, number, outcome) in place of two, and the same of people and queues.

Built without locks that keep rows from moving; the old ones go when the new ones are there.
"""

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models

KEYS = ("user", "project", "queue")


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0064_requests_by_upload"),
    ]

    operations = [
        *(
            AddIndexConcurrently("job", models.Index(fields=[of, "-request", "outcome"], name=f"job_of_{of}"))
            for of in KEYS
        ),
        *(RemoveIndexConcurrently("job", f"job_{kind}_{of}") for kind in ("by", "over_by") for of in KEYS),
    ]
