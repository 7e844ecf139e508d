"""Attempts, tasks and allocations refer to each other, to jobs and to nodes by references that are checked once a
statement, in place of foreign keys.

Locks these tables for a moment, reads no row. Back again, foreign keys read all attempts, tasks and allocations.
"""

import django.db.models.deletion
from django.db import migrations, models

from infra.db.references import Reference, add_references, drop_references

_OF_ATTEMPT = (Reference("attempt_id", "scheduler_attempt"), Reference("node_id", "scheduler_node"))
TABLES = {
    "scheduler_attempt": (Reference("job_id", "scheduler_job", "number"),),
    "scheduler_task": _OF_ATTEMPT,
    "scheduler_allocation": _OF_ATTEMPT,
}


def _key(to, on_delete, related_name):
    return models.ForeignKey(
        db_constraint=False, db_index=False, on_delete=on_delete, related_name=related_name, to=to
    )


CASCADE, PROTECT = django.db.models.deletion.CASCADE, django.db.models.deletion.PROTECT


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0042_references_of_events"),
    ]

    operations = [
        migrations.AlterField("attempt", "job", _key("scheduler.job", CASCADE, "attempts")),
        migrations.AlterField("task", "attempt", _key("scheduler.attempt", CASCADE, "tasks")),
        migrations.AlterField("task", "node", _key("scheduler.node", PROTECT, "tasks")),
        migrations.AlterField("allocation", "attempt", _key("scheduler.attempt", CASCADE, "allocations")),
        migrations.AlterField("allocation", "node", _key("scheduler.node", PROTECT, "allocations")),
        *(
            migrations.RunSQL(add_references(table, references), drop_references(table, references))
            for table, references in TABLES.items()
        ),
    ]
