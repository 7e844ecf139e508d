"""The ends of ranges before calibration, and how good the predictions of a cluster were.

Columns that may be null and a new table: no row that exists is read or changed.
"""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0084_placement_by_quality"),
    ]

    operations = [
        migrations.AddField(
            model_name="startforecast", name="first_raw_p10_at", field=models.DateTimeField(null=True)
        ),
        migrations.AddField(
            model_name="startforecast", name="first_raw_p90_at", field=models.DateTimeField(null=True)
        ),
        migrations.AddField(model_name="forecastoutcome", name="raw_p10_at", field=models.DateTimeField(null=True)),
        migrations.AddField(model_name="forecastoutcome", name="raw_p90_at", field=models.DateTimeField(null=True)),
        migrations.CreateModel(
            name="PredictionAccuracy",
            fields=[
                (
                    "cluster",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="scheduler.cluster",
                    ),
                ),
                ("updated_at", models.DateTimeField()),
                ("starts", models.PositiveIntegerField()),
                ("inside", models.PositiveIntegerField()),
                ("width_seconds", models.PositiveBigIntegerField(null=True)),
                ("waited_seconds", models.PositiveBigIntegerField(null=True)),
                ("runs", models.PositiveIntegerField()),
                ("longer", models.PositiveIntegerField()),
                ("ratio_millis", models.PositiveBigIntegerField(null=True)),
            ],
        ),
    ]
