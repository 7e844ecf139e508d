"""Triggers see to at most one live attempt of a job, and the end of an attempt writes no index.

The triggers are there before the index goes, which is dropped without a lock that keeps rows from moving. Programs of
the version before go on beside it; what they look for by the index takes long where there are many attempts.

New pages of attempts and tasks are filled by half, so that the next version of each row finds space on its page; those of
jobs a little less, for a reason to wait makes a version longer. Pages that are there stay as they are.
"""

from django.db import migrations

TRIGGERS = """
-- Without sequential scans: a session that has planned it for a few attempts keeps that plan when they are many.
CREATE OR REPLACE FUNCTION scheduler_attempt_one_live() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM added WHERE is_live) THEN RETURN NULL; END IF;
    -- Two transactions that add attempts of one job do not see each other's. The later of two epochs that follow each
    -- other is added only once the other is seen, and no two are the same; where the epochs have a gap, or come in
    -- another order, everybody else who adds attempts is waited for.
    IF EXISTS (
        SELECT FROM added WHERE is_live AND epoch <> 1 + coalesce((
            SELECT max(other.epoch) FROM scheduler_attempt other WHERE other.job_id = added.job_id AND other.id <> added.id
        ), 0)
    ) THEN LOCK TABLE scheduler_attempt IN SHARE ROW EXCLUSIVE MODE; END IF;
    IF (SELECT count(*) FROM scheduler_attempt WHERE job_id = ANY(ARRAY(SELECT job_id FROM added WHERE is_live)) AND is_live)
        > (SELECT count(DISTINCT job_id) FROM added WHERE is_live)
    THEN
        RAISE unique_violation USING CONSTRAINT = 'attempt_one_live', TABLE = 'scheduler_attempt',
            MESSAGE = 'a job has two live attempts (attempt_one_live): ' || (
                SELECT string_agg(job_id::text, ', ') FROM (
                    SELECT job_id FROM scheduler_attempt WHERE job_id = ANY(ARRAY(SELECT job_id FROM added)) AND is_live
                    GROUP BY job_id HAVING count(*) > 1) twice);
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION scheduler_attempt_stays_over() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE unique_violation USING CONSTRAINT = 'attempt_one_live', TABLE = 'scheduler_attempt',
        MESSAGE = format('attempt %s has ended and cannot live again, nor become another job''s (attempt_one_live)', OLD.id);
END $$;
CREATE OR REPLACE TRIGGER attempt_one_live AFTER INSERT ON scheduler_attempt REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION scheduler_attempt_one_live();
CREATE OR REPLACE TRIGGER attempt_stays_over AFTER UPDATE OF state, job_id ON scheduler_attempt
    FOR EACH ROW WHEN (NEW.is_live AND (NOT OLD.is_live OR NEW.job_id <> OLD.job_id))
    EXECUTE FUNCTION scheduler_attempt_stays_over();
"""
TRIGGERS_BACK = """
DROP TRIGGER attempt_stays_over ON scheduler_attempt;
DROP TRIGGER attempt_one_live ON scheduler_attempt;
DROP FUNCTION scheduler_attempt_stays_over();
DROP FUNCTION scheduler_attempt_one_live();
"""


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0079_unfinished_jobs"),
    ]

    operations = [
        migrations.RunSQL(TRIGGERS, TRIGGERS_BACK),
        *(
            migrations.RunSQL(
                f"ALTER TABLE {table} SET (fillfactor = {now})", f"ALTER TABLE {table} SET (fillfactor = {before})"
            )
            for table, now, before in (
                ("scheduler_attempt", 50, 70), ("scheduler_task", 50, 70), ("scheduler_job", 45, 50),
            )
        ),
        migrations.RunSQL(
            "DROP INDEX CONCURRENTLY IF EXISTS attempt_one_live",
            "CREATE UNIQUE INDEX CONCURRENTLY attempt_one_live ON scheduler_attempt (job_id) WHERE is_live",
            state_operations=[migrations.RemoveConstraint("attempt", "attempt_one_live")],
        ),
    ]
