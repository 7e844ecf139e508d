"""Lines of the ledger refer to projects, people and roll-ups by references that are checked once a statement, in place
of foreign keys.

Locks these tables for a moment, reads no row. Back again, foreign keys read the whole ledger.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from infra.db.references import Reference, add_references, drop_references

TABLE = "quotas_ledgerentry"
REFERENCES = (
    Reference("project_id", "accounts_project"),
    Reference("user_id", "accounts_user"),
    Reference("roll_up_id", "quotas_ledgerrollup"),
)


def _key(to, related_name, **more):
    return models.ForeignKey(
        db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name=related_name,
        to=to, **more,
    )  # fmt: skip


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0011_remove_notice_mailed_at"),
        ("accounts", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterField("ledgerentry", "project", _key("accounts.project", "ledger")),
        migrations.AlterField("ledgerentry", "user", _key(settings.AUTH_USER_MODEL, "+", null=True)),
        migrations.AlterField("ledgerentry", "roll_up", _key("quotas.ledgerrollup", "entries", null=True)),
        migrations.RunSQL(add_references(TABLE, REFERENCES), drop_references(TABLE, REFERENCES)),
    ]
