"""Jobs refer to their requests, people, projects and queues by references that are checked once a statement, in place
of foreign keys.

Locks these tables for a moment, reads no row. Back again, foreign keys read all jobs.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from infra.db.references import Reference, add_references, drop_references

TABLE = "scheduler_job"
REFERENCES = (
    Reference("number", "scheduler_jobrequest", "number"),
    Reference("user_id", "accounts_user"),
    Reference("project_id", "accounts_project"),
    Reference("queue_id", "scheduler_queue"),
)


def _key(to):
    return models.ForeignKey(
        db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="jobs", to=to
    )


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0043_references_of_runs"),
        ("accounts", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterField(
            "job",
            "request",
            models.OneToOneField(
                db_column="number", db_constraint=False, on_delete=django.db.models.deletion.CASCADE,
                parent_link=True, primary_key=True, serialize=False, to="scheduler.jobrequest",
            ),
        ),
        migrations.AlterField("job", "user", _key(settings.AUTH_USER_MODEL)),
        migrations.AlterField("job", "project", _key("accounts.project")),
        migrations.AlterField("job", "queue", _key("scheduler.queue")),
        migrations.RunSQL(add_references(TABLE, REFERENCES), drop_references(TABLE, REFERENCES)),
    ]  # fmt: skip
