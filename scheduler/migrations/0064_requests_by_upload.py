"""The jobs that name an upload, looked for when it is to be removed: jobs without one cost no entry."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0063_uploads"),
    ]

    operations = [
        AddIndexConcurrently(
            "jobrequest",
            models.Index(
                fields=["upload"], name="request_by_upload", condition=models.Q(upload__isnull=False)
            ),
        ),
    ]
