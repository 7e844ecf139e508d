"""What finds jobs with deadlines and wait limits: jobs without either cost no entry.

Indexes are built, and rows are checked, without locks that keep rows from being added.
"""

from django.contrib.postgres.operations import AddConstraintNotValid, AddIndexConcurrently, ValidateConstraint
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0077_deadlines_and_waits"),
    ]

    operations = [
        AddIndexConcurrently(
            "job",
            models.Index(fields=["check_at"], name="job_to_check", condition=Q(check_at__isnull=False)),
        ),
        AddIndexConcurrently(
            "jobrequest",
            models.Index(fields=["deadline_at"], name="request_by_deadline", condition=Q(deadline_at__isnull=False)),
        ),
        AddConstraintNotValid(
            "jobrequest",
            models.CheckConstraint(
                name="job_deadline_action_known",
                condition=Q(deadline_action="none") | Q(deadline_action="end", deadline_at__isnull=False),
            ),
        ),
        ValidateConstraint("jobrequest", "job_deadline_action_known"),
    ]
