"""The index of live attempts names `is_live` instead of `state`, so that moves of attempts leave it alone.

The table is rewritten with the new column under an exclusive lock.
"""

from django.db import migrations, models

LIVE = ["assigned", "running", "starting", "stopping"]
#: Room for versions that the moves of some rows of a page write at once. Set last: the rows that are there have mostly
#: ended, and need no room beside them.
ROOM = "ALTER TABLE scheduler_attempt SET (fillfactor = 70)"


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0036_cycles_of_attempts_are_numbers"),
    ]

    operations = [
        migrations.RemoveConstraint(model_name="attempt", name="attempt_one_live"),
        migrations.AddField(
            model_name="attempt",
            name="is_live",
            field=models.GeneratedField(
                db_persist=True,
                expression=models.Case(
                    models.When(state__in=LIVE, then=models.Value(True)), default=models.Value(False)
                ),
                output_field=models.BooleanField(),
            ),
        ),
        migrations.AddConstraint(
            model_name="attempt",
            constraint=models.UniqueConstraint(
                condition=models.Q(("is_live", True)), fields=("job",), name="attempt_one_live"
            ),
        ),
        migrations.RunSQL(ROOM, "ALTER TABLE scheduler_attempt RESET (fillfactor)"),
    ]
