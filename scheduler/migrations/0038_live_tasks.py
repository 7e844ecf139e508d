"""The index of live tasks names `is_live` instead of `state`, so that moves of tasks leave it alone.

The table is rewritten with the new column under an exclusive lock.
"""

from django.db import migrations, models

LIVE = ["assigned", "running", "starting", "stopping"]
#: Room for versions that the moves of some rows of a page write at once. Set last: the rows that are there have mostly
#: ended, and need no room beside them.
ROOM = "ALTER TABLE scheduler_task SET (fillfactor = 70)"


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0037_live_attempts"),
    ]

    operations = [
        migrations.RemoveIndex(model_name="task", name="task_live_on_node"),
        migrations.AddField(
            model_name="task",
            name="is_live",
            field=models.GeneratedField(
                db_persist=True,
                expression=models.Case(
                    models.When(state__in=LIVE, then=models.Value(True)), default=models.Value(False)
                ),
                output_field=models.BooleanField(),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=models.Index(condition=models.Q(("is_live", True)), fields=["node"], name="task_live_on_node"),
        ),
        migrations.RunSQL(ROOM, "ALTER TABLE scheduler_task RESET (fillfactor)"),
    ]
