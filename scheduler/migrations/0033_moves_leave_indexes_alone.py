"""Attempts and tasks move without writing their indexes, which name `is_live` instead of `state`.

The two tables are rewritten with the new column, each under an exclusive lock. `cycle_id` becomes a number
that may outlive its cycle, without a foreign key and its index. Elements of arrays alone have an entry in the index that
keeps each of them once.
"""

import django.db.models.deletion
from django.db import migrations, models

LIVE = ["assigned", "running", "starting", "stopping"]


def is_live() -> models.GeneratedField:
    return models.GeneratedField(
        db_persist=True,
        expression=models.Case(
            models.When(state__in=LIVE, then=models.Value(True)), default=models.Value(False)
        ),
        output_field=models.BooleanField(),
    )


#: Room on each page for the versions that the moves of all rows on it write.
_ROOM = "ALTER TABLE scheduler_{0} SET (fillfactor = {1})"


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0032_policy_faults"),
    ]

    operations = [
        migrations.RemoveConstraint(model_name="attempt", name="attempt_one_live"),
        migrations.RemoveIndex(model_name="task", name="task_live_on_node"),
        migrations.AlterField(
            model_name="attempt",
            name="cycle",
            field=models.ForeignKey(
                null=True, blank=True, db_constraint=False, db_index=False, related_name="attempts",
                on_delete=django.db.models.deletion.DO_NOTHING, to="scheduler.cycle",
            ),
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveField(model_name="attempt", name="cycle"),
                migrations.AddField(
                    model_name="attempt",
                    name="cycle_id",
                    field=models.PositiveBigIntegerField(blank=True, null=True),
                ),
            ],
            database_operations=[
                migrations.RunSQL(
                    "ALTER TABLE scheduler_attempt"
                    ' ADD CONSTRAINT scheduler_attempt_cycle_id_check CHECK ("cycle_id" >= 0) NOT VALID',
                    "ALTER TABLE scheduler_attempt DROP CONSTRAINT scheduler_attempt_cycle_id_check",
                )
            ],
        ),
        migrations.AddField(model_name="attempt", name="is_live", field=is_live()),
        migrations.AddField(model_name="task", name="is_live", field=is_live()),
        migrations.AddIndex(
            model_name="task",
            index=models.Index(condition=models.Q(("is_live", True)), fields=["node"], name="task_live_on_node"),
        ),
        migrations.AddConstraint(
            model_name="attempt",
            constraint=models.UniqueConstraint(
                condition=models.Q(("is_live", True)), fields=("job",), name="attempt_one_live"
            ),
        ),
        # Only now: the rows that are there have mostly ended, and need no room beside them.
        migrations.RunSQL(
            [_ROOM.format("attempt", 50), _ROOM.format("task", 50)],
            ["ALTER TABLE scheduler_attempt RESET (fillfactor)", "ALTER TABLE scheduler_task RESET (fillfactor)"],
        ),
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
