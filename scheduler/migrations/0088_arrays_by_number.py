"""The numbers of arrays that exist, the indexes that find elements and waits by them, and what a wait may be for.

Each batch of elements is written in a transaction of its own, indexes are built concurrently, and the constraint is
checked without a lock that keeps rows from being written. It can be run again where it was interrupted.
"""

from uuid import UUID

from django.contrib.postgres.operations import AddConstraintNotValid, ValidateConstraint
from django.db import migrations, models
from django.db.models import Q

from infra.db.again import AddIndexAnew, RemoveConstraintIfThere

#: Arrays in each transaction.
BATCH = 20

#: The next arrays in the order of the index of elements, which is walked once.
_ARRAYS = """
SELECT DISTINCT array_id FROM scheduler_jobrequest
WHERE array_id > %s AND array_number IS NULL ORDER BY array_id LIMIT %s
"""
_FILL = """
UPDATE scheduler_jobrequest element SET array_number = first.number
FROM (SELECT array_id, min(number) AS number FROM scheduler_jobrequest WHERE array_id = ANY(%s::uuid[])
    GROUP BY array_id) first
WHERE element.array_id = first.array_id AND element.array_number IS NULL
"""


def fill(apps, schema_editor):
    last = UUID(int=0)
    with schema_editor.connection.cursor() as cursor:
        while True:
            cursor.execute(_ARRAYS, [last, BATCH])
            arrays = [row[0] for row in cursor.fetchall()]
            if not arrays:
                return
            cursor.execute(_FILL, [arrays])
            last = arrays[-1]


def forget_waits(apps, schema_editor):
    """Backwards: the constraint of before has no waits for arrays. Those that are over go; open ones are named."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("DELETE FROM scheduler_jobdependency WHERE on_array IS NOT NULL AND satisfied IS NOT NULL")
        cursor.execute("SELECT DISTINCT job_id FROM scheduler_jobdependency WHERE on_array IS NOT NULL ORDER BY 1 LIMIT 20")
        if waiting := ", ".join(str(row[0]) for row in cursor.fetchall()):
            message = (
                f"Jobs wait for arrays, which the release before cannot do: {waiting}. Cancel them or change their "
                "depends_on, then migrate again."
            )
            raise RuntimeError(message)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0087_requests_that_change"),
    ]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop),
        AddIndexAnew(
            "jobrequest",
            models.Index(
                condition=Q(array_number__isnull=False),
                fields=["array_number", "array_index"],
                name="request_in_array",
            ),
        ),
        AddIndexAnew(
            "jobdependency",
            models.Index(
                condition=Q(on_array__isnull=False, satisfied=None),
                fields=["on_array"],
                name="dependency_open_array",
            ),
        ),
        RemoveConstraintIfThere("jobdependency", "dependency_on_one_thing"),
        AddConstraintNotValid(
            "jobdependency",
            models.CheckConstraint(
                name="dependency_on_one_thing",
                condition=Q(on__isnull=False, on_array__isnull=True, data="")
                | Q(on__isnull=True, on_array__isnull=False, data="")
                | (Q(on__isnull=True, on_array__isnull=True, kind="data") & ~Q(data="")),
            ),
        ),
        ValidateConstraint("jobdependency", "dependency_on_one_thing"),
        migrations.RunPython(migrations.RunPython.noop, forget_waits),
    ]
