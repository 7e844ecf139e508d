"""The feed of changed pending jobs: its table, and the triggers that fill it.

Locks: creating the three triggers takes SHARE ROW EXCLUSIVE on the table of jobs, for milliseconds whatever its
size: no row is read or written.
"""

from django.db import migrations, models

#: Not in the write-ahead log. Its rows live for seconds, so it is vacuumed by their number, not by a share.
TABLE = """
ALTER TABLE scheduler_changedjob SET UNLOGGED;
ALTER TABLE scheduler_changedjob SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000);
"""
TABLE_BACK = "ALTER TABLE scheduler_changedjob SET LOGGED"

#: States in which a job is in the planner's picture of what waits.
WAITS = "('queued', 'reserved')"
#: All that this picture has of the row that moves but the reason that it shows and the start that it is promised:
#: these the planner itself writes, for many jobs at once, and notes what it has written. What was asked for
#: (scheduler_jobrequest) is never changed.
WATCHED = (
    "state", "epoch", "generation", "queue_id", "project_id", "user_id", "boost", "boost_until_at", "eligible_at",
    "assembly_until_at", "assemblies_failed",
)  # fmt: skip

FEED = f"""
CREATE FUNCTION muster_jobs_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO scheduler_changedjob (job_number, queue_id, xid)
    SELECT number, queue_id, pg_current_xact_id()::text::bigint FROM added WHERE state IN {WAITS};
    RETURN NULL;
END $$;
CREATE FUNCTION muster_job_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO scheduler_changedjob (job_number, queue_id, xid)
    VALUES (OLD.number, OLD.queue_id, pg_current_xact_id()::text::bigint);
    IF TG_OP = 'UPDATE' AND NEW.queue_id <> OLD.queue_id THEN  -- it may be another cluster's
        INSERT INTO scheduler_changedjob (job_number, queue_id, xid)
        VALUES (NEW.number, NEW.queue_id, pg_current_xact_id()::text::bigint);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_added AFTER INSERT ON scheduler_job REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION muster_jobs_added();
CREATE TRIGGER job_changed AFTER UPDATE OF {", ".join(WATCHED)} ON scheduler_job
    FOR EACH ROW WHEN (OLD.state IN {WAITS} OR NEW.state IN {WAITS}) EXECUTE FUNCTION muster_job_changed();
CREATE TRIGGER job_gone AFTER DELETE ON scheduler_job
    FOR EACH ROW WHEN (OLD.state IN {WAITS}) EXECUTE FUNCTION muster_job_changed();
"""
FEED_BACK = """
DROP TRIGGER job_gone ON scheduler_job;
DROP TRIGGER job_changed ON scheduler_job;
DROP TRIGGER jobs_added ON scheduler_job;
DROP FUNCTION muster_job_changed();
DROP FUNCTION muster_jobs_added();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0027_fewer_indexes"),
    ]

    operations = [
        migrations.CreateModel(
            name="ChangedJob",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("job_number", models.BigIntegerField()),
                ("queue_id", models.BigIntegerField()),
                ("xid", models.BigIntegerField()),
            ],
        ),
        migrations.RunSQL(TABLE, TABLE_BACK),
        migrations.RunSQL(FEED, FEED_BACK),
    ]
