"""The last charge of an attempt for which nothing was set aside says what it did not use; roll-ups keep these sums.

Each step locks the ledger for one statement, which reads no row, and can be run again where it was interrupted; the check of
rows that are there is the next migration.
"""

import pgtrigger.compiler
import pgtrigger.migrations
from django.conf import settings
from django.db import migrations, models

COLUMN = """
ALTER TABLE quotas_ledgerentry ADD COLUMN IF NOT EXISTS unused_seconds bigint,
    DROP CONSTRAINT IF EXISTS ledger_unused_of_charges,
    ADD CONSTRAINT ledger_unused_of_charges
        CHECK (unused_seconds IS NULL OR (kind = 'charge' AND unused_seconds >= 0)) NOT VALID
"""


class ReplacedByTheNext(pgtrigger.migrations.RemoveTrigger):
    """The next operation puts the new trigger in the place of this one, in one statement."""

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        pass


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ('accounts', '0009_secrets'),
        ('quotas', '0014_longer_gpu_models'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RunSQL(
            COLUMN,
            'ALTER TABLE quotas_ledgerentry DROP COLUMN unused_seconds',
            state_operations=[
                migrations.AddField('ledgerentry', 'unused_seconds', models.BigIntegerField(null=True)),
                migrations.AddConstraint(
                    'ledgerentry',
                    models.CheckConstraint(
                        condition=models.Q(
                            ('unused_seconds', None),
                            models.Q(('kind', 'charge'), ('unused_seconds__gte', 0)),
                            _connector='OR',
                        ),
                        name='ledger_unused_of_charges',
                    ),
                ),
            ],
        ),
        ReplacedByTheNext(
            model_name='ledgerentry',
            name='ledger_only_rolled_up',
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='ledgerentry',
            trigger=pgtrigger.compiler.Trigger(name='ledger_only_rolled_up', sql=pgtrigger.compiler.UpsertTriggerSql(declare='DECLARE made bigint;', func="\n                made := nullif(current_setting('muster.ledger_roll_up', true), '')::bigint;\n                IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;\n                IF made IS NULL OR NOT EXISTS (\n                    SELECT FROM quotas_ledgerrollup roll_up WHERE roll_up.id = made\n                    AND roll_up.lines = (SELECT count(*) FROM gone)\n                    AND roll_up.digest = (SELECT encode(sha256(convert_to(string_agg(line::text, E'\\n' ORDER BY line.id), 'UTF8')), 'hex') FROM gone AS line)\n                ) THEN\n                    RAISE EXCEPTION 'lines of the ledger go only by a roll-up of exactly these lines';\n                END IF;\n                IF EXISTS (WITH gone_sums AS (SELECT date_trunc('day', starts_at, 'UTC') AS day, kind, project_id, user_id, gpu_model,\n    sum(cpu_millis * held_seconds) AS cpu_held, sum(cpu_millis * charged_seconds) AS cpu_charged,\n    sum(memory_mib * held_seconds) AS memory_held, sum(memory_mib * charged_seconds) AS memory_charged,\n    sum(gpu_millis * held_seconds) AS gpu_held, sum(gpu_millis * charged_seconds) AS gpu_charged,\n    sum(storage_mib * held_seconds) AS storage_held, sum(storage_mib * charged_seconds) AS storage_charged,\n    sum(held_micros) AS held_micros, sum(charged_micros) AS charged_micros,\n    coalesce(sum(cpu_millis * unused_seconds), 0) AS cpu_unused,\n    coalesce(sum(memory_mib * unused_seconds), 0) AS memory_unused,\n    coalesce(sum(gpu_millis * unused_seconds), 0) AS gpu_unused,\n    coalesce(sum(storage_mib * unused_seconds), 0) AS storage_unused FROM gone GROUP BY 1, 2, 3, 4, 5), kept_sums AS (\n    SELECT date_trunc('day', starts_at, 'UTC') AS day, kind, project_id, user_id, gpu_model,\n    sum(cpu_millis * held_seconds) AS cpu_held, sum(cpu_millis * charged_seconds) AS cpu_charged,\n    sum(memory_mib * held_seconds) AS memory_held, sum(memory_mib * charged_seconds) AS memory_charged,\n    sum(gpu_millis * held_seconds) AS gpu_held, sum(gpu_millis * charged_seconds) AS gpu_charged,\n    sum(storage_mib * held_seconds) AS storage_held, sum(storage_mib * charged_seconds) AS storage_charged,\n    sum(held_micros) AS held_micros, sum(charged_micros) AS charged_micros,\n    coalesce(sum(cpu_millis * unused_seconds), 0) AS cpu_unused,\n    coalesce(sum(memory_mib * unused_seconds), 0) AS memory_unused,\n    coalesce(sum(gpu_millis * unused_seconds), 0) AS gpu_unused,\n    coalesce(sum(storage_mib * unused_seconds), 0) AS storage_unused FROM quotas_ledgerentry WHERE roll_up_id = made GROUP BY 1, 2, 3, 4, 5)\n                    (SELECT * FROM gone_sums WHERE cpu_held <> 0 OR cpu_charged <> 0 OR memory_held <> 0 OR memory_charged <> 0\n    OR gpu_held <> 0 OR gpu_charged <> 0 OR storage_held <> 0 OR storage_charged <> 0\n    OR held_micros <> 0 OR charged_micros <> 0\n    OR cpu_unused <> 0 OR memory_unused <> 0 OR gpu_unused <> 0 OR storage_unused <> 0 EXCEPT SELECT * FROM kept_sums WHERE cpu_held <> 0 OR cpu_charged <> 0 OR memory_held <> 0 OR memory_charged <> 0\n    OR gpu_held <> 0 OR gpu_charged <> 0 OR storage_held <> 0 OR storage_charged <> 0\n    OR held_micros <> 0 OR charged_micros <> 0\n    OR cpu_unused <> 0 OR memory_unused <> 0 OR gpu_unused <> 0 OR storage_unused <> 0) UNION ALL\n                    (SELECT * FROM kept_sums WHERE cpu_held <> 0 OR cpu_charged <> 0 OR memory_held <> 0 OR memory_charged <> 0\n    OR gpu_held <> 0 OR gpu_charged <> 0 OR storage_held <> 0 OR storage_charged <> 0\n    OR held_micros <> 0 OR charged_micros <> 0\n    OR cpu_unused <> 0 OR memory_unused <> 0 OR gpu_unused <> 0 OR storage_unused <> 0 EXCEPT SELECT * FROM gone_sums WHERE cpu_held <> 0 OR cpu_charged <> 0 OR memory_held <> 0 OR memory_charged <> 0\n    OR gpu_held <> 0 OR gpu_charged <> 0 OR storage_held <> 0 OR storage_charged <> 0\n    OR held_micros <> 0 OR charged_micros <> 0\n    OR cpu_unused <> 0 OR memory_unused <> 0 OR gpu_unused <> 0 OR storage_unused <> 0)\n                ) THEN\n                    RAISE EXCEPTION 'a roll-up leaves every sum of the ledger as it was';\n                END IF;\n                RETURN NULL;\n                ", hash='4ad3164054e6397fcb880b34de82f1960369436b', level='STATEMENT', operation='DELETE', pgid='pgtrigger_ledger_only_rolled_up_f4b5c', referencing='REFERENCING OLD TABLE AS gone ', table='quotas_ledgerentry', when='AFTER')),
        ),
    ]
