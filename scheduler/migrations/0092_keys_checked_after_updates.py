"""Triggers that keep the keys of referenced rows run after an update, not before it.

Before an update with a trigger for each row PostgreSQL locks the row, and writes a record of that into its log, whether
or not the trigger has anything to do: 54 bytes for each move of an attempt. After it the trigger refuses just the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import migrations

from infra.db.references import Reference, keep_key

#: By table, its references, as they are since migrations 0042 to 0044 and 0012 of quotas.
REFERENCES = {
    "scheduler_jobevent": (
        Reference("job_id", "scheduler_job", "number"),
        Reference("actor_id", "accounts_user"),
    ),
    "scheduler_attempt": (Reference("job_id", "scheduler_job", "number"),),
    "scheduler_task": (Reference("attempt_id", "scheduler_attempt"), Reference("node_id", "scheduler_node")),
    "scheduler_job": (
        Reference("number", "scheduler_jobrequest", "number"),
        Reference("user_id", "accounts_user"),
        Reference("project_id", "accounts_project"),
        Reference("queue_id", "scheduler_queue"),
    ),
    "quotas_ledgerentry": (
        Reference("project_id", "accounts_project"),
        Reference("user_id", "accounts_user"),
        Reference("roll_up_id", "quotas_ledgerrollup"),
    ),
}


def statements(when: str) -> Sequence[str]:
    """One for each trigger: in one transaction they would hold locks of many tables together."""
    return [keep_key(table, reference, when) for table, its in REFERENCES.items() for reference in its]


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0091_metric_counts"),
        ("quotas", "0012_references_of_the_ledger"),
    ]

    operations = [migrations.RunSQL(list(statements("AFTER")), list(statements("BEFORE")))]
