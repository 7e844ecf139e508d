"""Recorded cycles whose snapshot is a delta. A column without a default: no row is written, no lock lasts."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0028_changed_jobs"),
    ]

    operations = [
        migrations.AddField(
            model_name="cycle",
            name="base_id",
            field=models.BigIntegerField(blank=True, editable=False, null=True),
        ),
    ]
