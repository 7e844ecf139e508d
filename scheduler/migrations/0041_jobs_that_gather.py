"""An index of gangs whose nodes are being gathered.

It has hardly any entry. While it is made, jobs can be read and not be written: for as long as the table is read once,
about half a second for a million jobs.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0040_fewer_entries_of_ends"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("assembly_until_at__isnull", False), ("outcome", None)),
                fields=["queue", "request"],
                name="job_gathers",
            ),
        ),
    ]
