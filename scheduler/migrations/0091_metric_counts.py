"""Counters of /metrics that outlive the rows that they count."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0088_arrays_by_number"),
    ]

    operations = [
        migrations.CreateModel(
            name="MetricCursor",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("source", models.CharField(max_length=20, unique=True)),
                ("position", models.BigIntegerField()),
                ("moved_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="MetricCount",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("name", models.CharField(max_length=40)),
                ("label", models.CharField(blank=True, max_length=120)),
                ("detail", models.CharField(blank=True, max_length=60)),
                ("value", models.BigIntegerField(default=0)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("name", "label", "detail"), name="metric_count_once"),
                    models.CheckConstraint(
                        condition=models.Q(("value__gte", 0)), name="metric_count_not_negative"
                    ),
                ],
            },
        ),
    ]
