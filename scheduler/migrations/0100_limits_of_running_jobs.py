"""When the job of an attempt got another time limit while it ran; the signal that a job gets before its limit."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0098_jobs_of_reservations"),
    ]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="limit_changed_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="jobrequest",
            name="limit_signal",
            field=models.JSONField(blank=True, db_default={}, default=dict),
        ),
    ]
