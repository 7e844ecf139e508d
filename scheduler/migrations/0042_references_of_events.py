"""Events refer to jobs and people by references that are checked once a statement, in place of foreign keys.

Locks events, jobs and people for a moment, reads no row. Back again, foreign keys read all events.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from infra.db.references import Reference, add_references, drop_references

TABLE = "scheduler_jobevent"
REFERENCES = (Reference("job_id", "scheduler_job", "number"), Reference("actor_id", "accounts_user"))


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0041_jobs_that_gather"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterField(
            model_name="jobevent",
            name="job",
            field=models.ForeignKey(
                db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE,
                related_name="events", to="scheduler.job",
            ),
        ),
        migrations.AlterField(
            model_name="jobevent",
            name="actor",
            field=models.ForeignKey(
                blank=True, null=True, db_constraint=False, db_index=False,
                on_delete=django.db.models.deletion.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.RunSQL(add_references(TABLE, REFERENCES), drop_references(TABLE, REFERENCES)),
    ]  # fmt: skip
