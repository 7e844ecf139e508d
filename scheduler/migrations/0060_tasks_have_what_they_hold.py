"""What a task holds is in its own row; `scheduler_allocation` becomes a view of it.

In steps, each of which can be run again where it was interrupted:

1. Columns are added to tasks with constant defaults: no row is read.
2. What ended tasks held is copied from allocations, `BATCH` tasks at a time. Such allocations never change again.
3. The index of what is held on a node is built without a lock that stops writers.
4. With both tables locked, the rest is copied (what is held at that moment, and what was released since), the table of
   allocations is dropped, and the view takes its place.
5. Checks are validated without a lock that stops writers.

Programs of the version before go on beside it: they read and release by the view, and what they insert into it goes
into the row of its task.
"""

import django.contrib.postgres.fields
from django.db import OperationalError, connection, migrations, models, transaction

from infra.db.references import Reference, drop_references

BATCH = 20_000
#: How often it asks for both tables, where another transaction has one of them and waits for the other.
TRIES = 5
NAMES = (
    "cpu_millis", "suspended_cpu_millis", "memory_mib", "storage_mib", "gpu_millis", "device_ids", "numa_domain",
    "extras", "held_at", "released_at",
)  # fmt: skip
REFERENCES = (Reference("attempt_id", "scheduler_attempt"), Reference("node_id", "scheduler_node"))
BIG = models.BigIntegerField(db_default=0, default=0)
FIELDS = {
    "cpu_millis": BIG,
    "suspended_cpu_millis": BIG,
    "memory_mib": BIG,
    "storage_mib": BIG,
    "gpu_millis": BIG,
    "device_ids": django.contrib.postgres.fields.ArrayField(
        base_field=models.BigIntegerField(), db_default=[], default=list, size=None
    ),
    "numa_domain": models.PositiveSmallIntegerField(blank=True, null=True),
    "extras": models.JSONField(db_default={}, default=dict),
    "held_at": models.DateTimeField(blank=True, null=True),
    "released_at": models.DateTimeField(blank=True, null=True),
}
_AMOUNTS = ",\n    ".join(f"ADD COLUMN IF NOT EXISTS {name} bigint NOT NULL DEFAULT 0" for name in NAMES[:5])
COLUMNS = f"""
ALTER TABLE scheduler_task
    {_AMOUNTS},
    ADD COLUMN IF NOT EXISTS device_ids bigint[] NOT NULL DEFAULT '{{}}',
    ADD COLUMN IF NOT EXISTS numa_domain smallint CONSTRAINT task_numa_domain_not_negative CHECK (numa_domain >= 0),
    ADD COLUMN IF NOT EXISTS extras jsonb NOT NULL DEFAULT '{{}}',
    ADD COLUMN IF NOT EXISTS held_at timestamptz,
    ADD COLUMN IF NOT EXISTS released_at timestamptz
"""
_COPY = f"""
UPDATE scheduler_task task SET {", ".join(f"{name} = held.{name}" for name in NAMES)}
FROM scheduler_allocation held WHERE held.attempt_id = task.attempt_id AND held.rank = task.rank
"""  # noqa: S608  names of columns of ours
COPY_ENDED = (
    _COPY + "AND held.released_at IS NOT NULL AND task.released_at IS NULL AND task.id > %s AND task.id <= %s"
)
COPY_REST = _COPY + "AND task.released_at IS NULL"
#: Allocations that no task has taken over; a task has one, so there is none.
LOST = """
SELECT count(*) FROM scheduler_allocation held WHERE {which} AND NOT EXISTS (SELECT FROM scheduler_task task
    WHERE task.attempt_id = held.attempt_id AND task.rank = held.rank AND task.held_at = held.held_at
        AND task.released_at IS NOT DISTINCT FROM held.released_at)
"""
RELEASED_BEFORE = LOST.format(which="held.released_at < %s")
THE_REST = LOST.format(which="(held.released_at IS NULL OR held.released_at >= %s)")
VIEW = f"""
DROP TABLE scheduler_allocation;
CREATE VIEW scheduler_allocation WITH (security_invoker = true) AS
    SELECT id, attempt_id, rank, node_id, {", ".join(NAMES)} FROM scheduler_task WHERE held_at IS NOT NULL;
CREATE FUNCTION scheduler_allocation_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE scheduler_task SET {", ".join(f"{name} = NEW.{name}" for name in NAMES)}
    WHERE attempt_id = NEW.attempt_id AND rank = NEW.rank AND node_id = NEW.node_id RETURNING id INTO NEW.id;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING TABLE = 'scheduler_allocation', MESSAGE = format(
            'there is no task of rank %s of attempt %s on node %s', NEW.rank, NEW.attempt_id, NEW.node_id);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER allocation_added INSTEAD OF INSERT ON scheduler_allocation
    FOR EACH ROW EXECUTE FUNCTION scheduler_allocation_added();
ALTER TABLE scheduler_task ADD CONSTRAINT allocation_not_negative CHECK (cpu_millis >= 0
    AND suspended_cpu_millis >= 0 AND memory_mib >= 0 AND storage_mib >= 0 AND gpu_millis >= 0) NOT VALID;
ALTER TABLE scheduler_task ADD CONSTRAINT allocation_ends_after_start
    CHECK (released_at IS NULL OR released_at >= held_at) NOT VALID;
"""  # noqa: S608
#: Who may do what with tasks may do it with the view, from the moment on that it is there.
RIGHTS = """
DO $$ DECLARE given record; BEGIN
    FOR given IN SELECT grantee::regrole AS role, privilege_type AS what FROM pg_class, aclexplode(relacl)
        WHERE oid = 'scheduler_task'::regclass AND grantee NOT IN (0, relowner)
            AND privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP EXECUTE format('GRANT %s ON scheduler_allocation TO %s', given.what, given.role); END LOOP;
END $$
"""


def copy_ended(apps, schema_editor):
    with connection.cursor() as cursor:
        if not _is_table(cursor):
            return
        first = 0
        while True:
            # By the numbers that there are: those of later tasks are made of the time, and far apart.
            cursor.execute(
                "SELECT max(id) FROM (SELECT id FROM scheduler_task WHERE id > %s ORDER BY id LIMIT %s) batch",
                [first, BATCH],
            )
            last = cursor.fetchone()[0]
            if last is None:
                return
            cursor.execute(COPY_ENDED, [first, last])
            first = last


def swap(apps, schema_editor):
    with connection.cursor() as cursor:
        if not _is_table(cursor):
            return
        # What was released till now is compared before anybody has to wait. A minute for clocks and open transactions.
        cursor.execute("SELECT now() - interval '1 minute'")
        moment = cursor.fetchone()[0]
        cursor.execute(COPY_REST + " AND held.released_at IS NOT NULL")
        _none_is_lost(cursor, RELEASED_BEFORE, moment)
        for left in reversed(range(TRIES)):
            try:
                _swap_locked(cursor, moment)
                break
            except OperationalError:  # who runs had one of the tables and wanted the other
                if not left:
                    raise


def _swap_locked(cursor, moment):
    with transaction.atomic():
        cursor.execute("LOCK TABLE scheduler_task, scheduler_allocation IN ACCESS EXCLUSIVE MODE")
        cursor.execute(COPY_REST)
        _none_is_lost(cursor, THE_REST, moment)
        cursor.execute(drop_references("scheduler_allocation", REFERENCES))
        cursor.execute(VIEW)
        cursor.execute(RIGHTS)


def _none_is_lost(cursor, question, moment):
    cursor.execute(question, [moment])
    lost = cursor.fetchone()[0]
    if lost:
        raise RuntimeError(f"{lost} allocations have no task; nothing was dropped")


def _is_table(cursor):
    cursor.execute("SELECT relkind FROM pg_class WHERE oid = 'scheduler_allocation'::regclass")
    return cursor.fetchone()[0] == "r"


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0059_requests_by_whole_name"),
    ]

    operations = [
        migrations.RunSQL(
            COLUMNS,
            state_operations=[migrations.AddField("task", name, field) for name, field in FIELDS.items()],
        ),
        migrations.RunPython(copy_ended),
        migrations.RunSQL(
            "CREATE INDEX CONCURRENTLY IF NOT EXISTS task_held_on_node ON scheduler_task (node_id)"
            " WHERE released_at IS NULL",
            state_operations=[
                migrations.AddIndex(
                    "task",
                    models.Index(
                        condition=models.Q(("released_at__isnull", True)),
                        fields=["node"],
                        name="task_held_on_node",
                    ),
                )
            ],
        ),
        migrations.RunPython(swap),
        migrations.RunSQL(
            "ALTER TABLE scheduler_task VALIDATE CONSTRAINT allocation_not_negative",
            state_operations=[
                migrations.AlterModelOptions(
                    "allocation", options={"managed": False, "ordering": ["attempt_id", "rank"]}
                ),
                migrations.AddConstraint(
                    "task",
                    models.CheckConstraint(
                        condition=models.Q(
                            ("cpu_millis__gte", 0),
                            ("gpu_millis__gte", 0),
                            ("memory_mib__gte", 0),
                            ("storage_mib__gte", 0),
                            ("suspended_cpu_millis__gte", 0),
                        ),
                        name="allocation_not_negative",
                    ),
                ),
                migrations.AddConstraint(
                    "task",
                    models.CheckConstraint(
                        condition=models.Q(
                            ("released_at__isnull", True),
                            ("released_at__gte", models.F("held_at")),
                            _connector="OR",
                        ),
                        name="allocation_ends_after_start",
                    ),
                ),
            ],
        ),
        migrations.RunSQL("ALTER TABLE scheduler_task VALIDATE CONSTRAINT allocation_ends_after_start"),
        migrations.RunSQL(
            "DROP INDEX CONCURRENTLY IF EXISTS task_live_on_node",
            state_operations=[migrations.RemoveIndex("task", "task_live_on_node")],
        ),
    ]
