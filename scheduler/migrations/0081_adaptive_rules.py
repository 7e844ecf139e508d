"""Rules of profiles that choose order and placement, and which of them is in force.

Columns are added with a default of the catalogue: no row is written.
"""

import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduler', '0080_ends_of_attempts'),
    ]

    operations = [
        migrations.CreateModel(
            name='PolicyChoice',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('queue_id', models.BigIntegerField(default=0)),
                ('rule', models.CharField(blank=True, max_length=40)),
                ('since_ms', models.BigIntegerField()),
                ('policy', models.CharField(max_length=16)),
                ('placement', models.CharField(max_length=16)),
            ],
            options={
                'ordering': ['cluster_id', 'queue_id'],
            },
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='schedulerprofile',
            name='insert_insert',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='schedulerprofile',
            name='update_update',
        ),
        migrations.AddField(
            model_name='cycle',
            name='rules',
            field=models.JSONField(blank=True, db_default=[], default=list),
        ),
        migrations.AddField(
            model_name='schedulerprofile',
            name='rule_hold_seconds',
            field=models.PositiveIntegerField(db_default=300, default=300),
        ),
        migrations.AddField(
            model_name='schedulerprofile',
            name='rule_time_zone',
            field=models.CharField(db_default='UTC', default='UTC', max_length=64),
        ),
        migrations.AddField(
            model_name='schedulerprofile',
            name='rules',
            field=models.JSONField(blank=True, db_default=[], default=list),
        ),
        migrations.AddField(
            model_name='schedulerprofileevent',
            name='rule_hold_seconds',
            field=models.PositiveIntegerField(db_default=300, default=300),
        ),
        migrations.AddField(
            model_name='schedulerprofileevent',
            name='rule_time_zone',
            field=models.CharField(db_default='UTC', default='UTC', max_length=64),
        ),
        migrations.AddField(
            model_name='schedulerprofileevent',
            name='rules',
            field=models.JSONField(blank=True, db_default=[], default=list),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='schedulerprofile',
            trigger=pgtrigger.compiler.Trigger(name='insert_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func='INSERT INTO "scheduler_schedulerprofileevent" ("backfill", "id", "name", "options", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "placement", "plugins", "policy", "preemption", "preemption_enabled", "rule_hold_seconds", "rule_time_zone", "rules", "score_weights", "strict_order", "tie_breakers", "updated_at", "version") VALUES (NEW."backfill", NEW."id", NEW."name", NEW."options", _pgh_attach_context(), NOW(), \'insert\', NEW."id", NEW."placement", NEW."plugins", NEW."policy", NEW."preemption", NEW."preemption_enabled", NEW."rule_hold_seconds", NEW."rule_time_zone", NEW."rules", NEW."score_weights", NEW."strict_order", NEW."tie_breakers", NEW."updated_at", NEW."version"); RETURN NULL;', hash='2e2b9bf10946df6f452c69c873e4183be9df336d', operation='INSERT', pgid='pgtrigger_insert_insert_86abc', table='scheduler_schedulerprofile', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='schedulerprofile',
            trigger=pgtrigger.compiler.Trigger(name='update_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.* IS DISTINCT FROM NEW.*)', func='INSERT INTO "scheduler_schedulerprofileevent" ("backfill", "id", "name", "options", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "placement", "plugins", "policy", "preemption", "preemption_enabled", "rule_hold_seconds", "rule_time_zone", "rules", "score_weights", "strict_order", "tie_breakers", "updated_at", "version") VALUES (NEW."backfill", NEW."id", NEW."name", NEW."options", _pgh_attach_context(), NOW(), \'update\', NEW."id", NEW."placement", NEW."plugins", NEW."policy", NEW."preemption", NEW."preemption_enabled", NEW."rule_hold_seconds", NEW."rule_time_zone", NEW."rules", NEW."score_weights", NEW."strict_order", NEW."tie_breakers", NEW."updated_at", NEW."version"); RETURN NULL;', hash='b7cd5e7ba4e0ff4638855bd756022171a99a13c9', operation='UPDATE', pgid='pgtrigger_update_update_005ff', table='scheduler_schedulerprofile', when='AFTER')),
        ),
        migrations.AddField(
            model_name='policychoice',
            name='cluster',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='scheduler.cluster'),
        ),
        migrations.AddConstraint(
            model_name='policychoice',
            constraint=models.UniqueConstraint(fields=('cluster', 'queue_id'), name='policy_choice_once'),
        ),
    ]
