"""Checks the rows that are there, without a lock that stops who adds lines."""

from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("quotas", "0015_unused_time_of_runs")]

    operations = [ValidateConstraint("ledgerentry", "ledger_unused_of_charges")]
