"""EASY is the backfill of new profiles; run times are predicted for jobs without a time limit.

Columns that may be null and a new table: no row that exists is read or changed.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

BACKFILLS = [
    ("none", "none: any job that fits starts"),
    ("easy", "easy: never delay the first pending job"),
    ("conservative", "conservative: never delay the first n pending jobs"),
    ("aggressive", "aggressive: may delay the first pending job by a bounded time"),
    ("deadline", "deadline: never delay the first pending job or a job with a deadline"),
]


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("scheduler", "0066_events_by_job"),
    ]

    operations = [
        migrations.AlterField(
            model_name="schedulerprofile",
            name="backfill",
            field=models.CharField(choices=BACKFILLS, default="easy", max_length=16),
        ),
        migrations.AlterField(
            model_name="schedulerprofileevent",
            name="backfill",
            field=models.CharField(choices=BACKFILLS, default="easy", max_length=16),
        ),
        migrations.AddField(
            model_name="attempt",
            name="predicted_seconds",
            field=models.PositiveBigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="attempt",
            name="predicted_from_runs",
            field=models.PositiveSmallIntegerField(blank=True, null=True),
        ),
        migrations.CreateModel(
            name="RuntimePrediction",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=200)),
                ("runs", models.PositiveSmallIntegerField()),
                ("usual_seconds", models.PositiveBigIntegerField()),
                ("planned_seconds", models.PositiveBigIntegerField()),
                ("version", models.PositiveIntegerField(default=1)),
                ("updated_at", models.DateTimeField()),
                (
                    "cluster",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="scheduler.cluster",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("user", "name", "cluster"), name="prediction_once"),
                    models.CheckConstraint(
                        condition=models.Q(("planned_seconds__gt", 0), ("usual_seconds__gt", 0)),
                        name="prediction_positive",
                    ),
                ],
            },
        ),
    ]
