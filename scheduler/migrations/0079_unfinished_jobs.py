"""Which jobs are not over has a table of its own, and no index of jobs names what the end of a completed job changes.

In steps, each of which can be run again where it was interrupted:

1. The column `unsuccessful` and the table are added, with the triggers that keep both: a lock on the table of jobs for
   milliseconds, no row is read.
2. What waits and runs is written into the table, and what failed or was cancelled into the column, in batches.
3. Indexes are built without locks that keep rows from moving; the old ones go when the new ones are there.

Programs of the version before go on beside it: the triggers write for them. What they ask by the old indexes takes long
where there are many jobs, until they are replaced.
"""

from django.db import connection, migrations, models, transaction

from infra.db.again import AddIndexAnew, RemoveIndexIfThere

UNFINISHED_AT_ONCE, UNSUCCESSFUL_AT_ONCE = 2_000, 5_000
KEYS = ("user", "project", "queue")

ADDED = """
CREATE OR REPLACE FUNCTION muster_jobs_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO scheduler_changedjob (job_number, queue_id, xid)
    SELECT number, queue_id, pg_current_xact_id()::text::bigint FROM added WHERE state IN ('queued', 'reserved');{more}
    RETURN NULL;
END $$;
"""
ADDED_UNFINISHED = """
    INSERT INTO scheduler_unfinishedjob (queue_id, number) SELECT queue_id, number FROM added WHERE outcome IS NULL;"""
TABLE = """
CREATE TABLE IF NOT EXISTS scheduler_unfinishedjob (
    queue_id bigint NOT NULL, number bigint NOT NULL, PRIMARY KEY (queue_id, number)
)
"""
#: Programs of the version before write jobs from the moment the triggers are there, long before the command that
#: migrates gives rights: roles that may write jobs may write at once what the triggers write for them.
RIGHTS = """
DO $$
DECLARE writer regrole;
BEGIN
    FOR writer IN SELECT DISTINCT granted.grantee FROM pg_class, aclexplode(relacl) granted
        WHERE pg_class.oid = 'scheduler_job'::regclass AND granted.grantee NOT IN (0, relowner)
        AND granted.privilege_type IN ('INSERT', 'UPDATE', 'DELETE')
    LOOP EXECUTE format('GRANT SELECT, INSERT, DELETE ON scheduler_unfinishedjob TO %s', writer); END LOOP;
END $$;
"""
STATE = "CASE WHEN NEW.state IN ('cancelled', 'failed') THEN NEW.state END"
TRIGGERS = (
    ADDED.format(more=ADDED_UNFINISHED)
    + f"""
-- Without sequential scans: a session that has planned the DELETE for a few rows keeps that plan when they are many.
CREATE OR REPLACE FUNCTION muster_job_unfinished() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    IF OLD.outcome IS NULL THEN
        DELETE FROM scheduler_unfinishedjob WHERE queue_id = OLD.queue_id AND number = OLD.number;
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.outcome IS NULL THEN
        INSERT INTO scheduler_unfinishedjob (queue_id, number) VALUES (NEW.queue_id, NEW.number) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER job_unfinished AFTER UPDATE OF state, queue_id ON scheduler_job
    FOR EACH ROW WHEN ((OLD.outcome IS NULL) <> (NEW.outcome IS NULL) OR OLD.queue_id <> NEW.queue_id)
    EXECUTE FUNCTION muster_job_unfinished();
CREATE OR REPLACE TRIGGER job_unfinished_gone AFTER DELETE ON scheduler_job
    FOR EACH ROW WHEN (OLD.outcome IS NULL) EXECUTE FUNCTION muster_job_unfinished();
CREATE OR REPLACE FUNCTION muster_job_unsuccessful() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.unsuccessful := {STATE};
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER job_unsuccessful BEFORE INSERT OR UPDATE OF state, unsuccessful ON scheduler_job
    FOR EACH ROW WHEN (NEW.unsuccessful IS DISTINCT FROM {STATE}) EXECUTE FUNCTION muster_job_unsuccessful();
"""
)
TRIGGERS_BACK = (
    ADDED.format(more="")
    + """
DROP TRIGGER job_unsuccessful ON scheduler_job;
DROP TRIGGER job_unfinished_gone ON scheduler_job;
DROP TRIGGER job_unfinished ON scheduler_job;
DROP FUNCTION muster_job_unsuccessful();
DROP FUNCTION muster_job_unfinished();
"""
)
#: Locked, so that none of them ends between its being read and its row's being written.
NEXT_UNFINISHED = """
SELECT number FROM scheduler_job WHERE outcome IS NULL AND number > %s ORDER BY number LIMIT %s FOR NO KEY UPDATE
"""
WRITE_UNFINISHED = """
INSERT INTO scheduler_unfinishedjob (queue_id, number) SELECT queue_id, number FROM scheduler_job
WHERE number = ANY(%s::bigint[]) ON CONFLICT DO NOTHING
"""
WRITE_UNSUCCESSFUL = """
WITH next AS (
    SELECT number FROM scheduler_job WHERE outcome = %s AND number > %s ORDER BY number LIMIT %s
), written AS (
    UPDATE scheduler_job job SET unsuccessful = job.state FROM next
    WHERE job.number = next.number AND job.outcome = %s AND job.unsuccessful IS NULL
)
SELECT max(number) FROM next
"""


def write_unfinished(apps, schema_editor):
    last = 0
    while last is not None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(NEXT_UNFINISHED, [last, UNFINISHED_AT_ONCE])
            numbers = [number for (number,) in cursor.fetchall()]
            cursor.execute(WRITE_UNFINISHED, [numbers])
            last = numbers[-1] if numbers else None


def write_unsuccessful(apps, schema_editor):
    with connection.cursor() as cursor:
        for state in ("cancelled", "failed"):
            last = 0
            while last is not None:
                cursor.execute(WRITE_UNSUCCESSFUL, [state, last, UNSUCCESSFUL_AT_ONCE, state])
                last = cursor.fetchone()[0]


NEW = [
    *(models.Index(fields=[of, "request", "unsuccessful"], name=f"jobs_of_{of}") for of in KEYS),
    models.Index(
        condition=models.Q(("unsuccessful__isnull", False)), fields=["unsuccessful", "request"], name="job_unsuccessful"
    ),
    models.Index(
        condition=models.Q(("assembly_until_at__isnull", False)), fields=["queue", "request"], name="job_gathering"
    ),
]
OLD = ("job_of_user", "job_of_project", "job_of_queue", "job_over", "job_in_line", "job_gathers")
AGE = models.Index(fields=["created_at", "number"], name="requests_by_age")


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0078_look_at_deadlines"),
    ]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE scheduler_job ADD COLUMN IF NOT EXISTS unsuccessful varchar(16)",
            "ALTER TABLE scheduler_job DROP COLUMN unsuccessful",
            state_operations=[
                migrations.AddField(
                    "job", "unsuccessful", models.CharField(blank=True, editable=False, max_length=16, null=True)
                )
            ],
        ),
        migrations.RunSQL(
            TABLE,
            "DROP TABLE scheduler_unfinishedjob",
            state_operations=[
                migrations.CreateModel(
                    name="UnfinishedJob",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "queue_id", "number", blank=True, editable=False, primary_key=True, serialize=False
                            ),
                        ),
                        ("queue_id", models.BigIntegerField()),
                        ("number", models.BigIntegerField()),
                    ],
                )
            ],
        ),
        migrations.RunSQL(RIGHTS, migrations.RunSQL.noop),
        migrations.RunSQL(TRIGGERS, TRIGGERS_BACK),
        migrations.RunPython(write_unfinished, migrations.RunPython.noop),
        migrations.RunPython(write_unsuccessful, migrations.RunPython.noop),
        *(AddIndexAnew("job", index) for index in NEW),
        *(RemoveIndexIfThere("job", name) for name in OLD),
        AddIndexAnew("jobrequest", AGE),
        RemoveIndexIfThere("jobrequest", "request_by_age"),
    ]
