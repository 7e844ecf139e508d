"""The cycle of an attempt becomes a number that may outlive the cycle, without a foreign key and its index.

Locks attempts and cycles for a moment. This and the next three each change one table, so that they wait for what runs
and never for each other's locks.
"""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0035_kept_results"),
    ]

    operations = [
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
                # Numbers that are there came from a sequence: no look at them is needed.
                migrations.RunSQL(
                    "ALTER TABLE scheduler_attempt"
                    ' ADD CONSTRAINT scheduler_attempt_cycle_id_check CHECK ("cycle_id" >= 0) NOT VALID',
                    "ALTER TABLE scheduler_attempt DROP CONSTRAINT scheduler_attempt_cycle_id_check",
                )
            ],
        ),
    ]  # fmt: skip
