"""Elements of arrays alone have an entry in the index that keeps each of them once."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0038_live_tasks"),
    ]

    operations = [
        migrations.RemoveConstraint(model_name="jobrequest", name="array_element_once"),
        migrations.AddConstraint(
            model_name="jobrequest",
            constraint=models.UniqueConstraint(
                condition=models.Q(("array_id__isnull", False)),
                fields=("array_id", "array_index"),
                name="array_element_once",
            ),
        ),
    ]
