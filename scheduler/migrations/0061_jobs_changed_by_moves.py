"""The feed of changed jobs watches the terms of moves too: the planner reads them.

Locks: replacing the trigger takes SHARE ROW EXCLUSIVE on the table of jobs, for milliseconds: no row is read.
"""

from django.db import migrations

WAITS = "('queued', 'reserved')"
WATCHED = (
    "state", "epoch", "generation", "queue_id", "project_id", "user_id", "boost", "boost_until_at", "eligible_at",
    "assembly_until_at", "assemblies_failed",
)  # fmt: skip


def watch(*columns):
    return f"""
CREATE OR REPLACE TRIGGER job_changed AFTER UPDATE OF {", ".join(columns)} ON scheduler_job
    FOR EACH ROW WHEN (OLD.state IN {WAITS} OR NEW.state IN {WAITS}) EXECUTE FUNCTION muster_job_changed();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0060_tasks_have_what_they_hold"),
    ]

    operations = [migrations.RunSQL(watch(*WATCHED, "move_terms"), watch(*WATCHED))]
