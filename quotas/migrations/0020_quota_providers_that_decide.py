"""Quota providers that decide about starts: longer names, what they refused, and what they count for attempts."""

import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
import quotas.models.quota
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0010_turns_of_people'),
        ('quotas', '0019_fair_share_rules'),
    ]

    operations = [
        migrations.AlterField(
            model_name='providerstate',
            name='provider',
            field=models.CharField(choices=quotas.models.quota.provider_choices, max_length=16),
        ),
        migrations.AlterField(
            model_name='quota',
            name='provider',
            field=models.CharField(choices=quotas.models.quota.provider_choices, default='local', max_length=16),
        ),
        migrations.AlterField(
            model_name='quotaevent',
            name='provider',
            field=models.CharField(choices=quotas.models.quota.provider_choices, default='local', max_length=16),
        ),
        migrations.CreateModel(
            name='RefusedStart',
            fields=[
                ('job_number', models.PositiveBigIntegerField(primary_key=True, serialize=False)),
                ('provider', models.CharField(choices=quotas.models.quota.provider_choices, max_length=16)),
                ('generation', models.PositiveIntegerField()),
                ('text', models.CharField(max_length=300)),
                ('possible', models.BooleanField(default=True)),
                ('times', models.PositiveIntegerField(default=1)),
                ('refused_at', models.DateTimeField()),
                ('until', models.DateTimeField()),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='refused_starts', to='accounts.project')),
            ],
            options={
                'ordering': ['-refused_at'],
            },
        ),
        migrations.CreateModel(
            name='ProviderAllocation',
            fields=[
                ('attempt_id', models.PositiveBigIntegerField(primary_key=True, serialize=False)),
                ('job_number', models.PositiveBigIntegerField()),
                ('provider', models.CharField(choices=quotas.models.quota.provider_choices, max_length=16)),
                ('state', models.CharField(choices=[('asked', 'to be allocated'), ('held', 'allocated'), ('refused', 'refused'), ('released', 'released')], default='asked', max_length=8)),
                ('start', models.JSONField()),
                ('text', models.CharField(blank=True, max_length=300)),
                ('asked_at', models.DateTimeField()),
                ('answered_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('released_at', models.DateTimeField(blank=True, null=True)),
                ('tries', models.PositiveIntegerField(default=0)),
                ('next_try_at', models.DateTimeField(blank=True, null=True)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'ordering': ['-asked_at'],
                'indexes': [models.Index(condition=models.Q(('next_try_at__isnull', False)), fields=['next_try_at'], name='provider_allocation_due'), models.Index(condition=models.Q(('ended_at__isnull', True), ('state__in', ['asked', 'held', 'refused'])), fields=['attempt_id'], name='provider_allocation_open')],
                'constraints': [models.CheckConstraint(condition=models.Q(('state__in', ['asked', 'held', 'refused', 'released'])), name='provider_allocation_known'), models.CheckConstraint(condition=models.Q(models.Q(('answered_at__isnull', True), ('state', 'asked')), models.Q(('answered_at__isnull', False), ('state__in', ['held', 'refused'])), ('state', 'released'), _connector='OR'), name='provider_allocation_answered'), models.CheckConstraint(condition=models.Q(models.Q(('ended_at__isnull', False), ('released_at__isnull', False), ('state', 'released')), models.Q(models.Q(('state', 'released'), _negated=True), ('released_at__isnull', True)), _connector='OR'), name='provider_allocation_released'), models.CheckConstraint(condition=models.Q(('next_try_at__isnull', False), models.Q(models.Q(('state', 'asked'), _negated=True), models.Q(('ended_at__isnull', False), ('state', 'held'), _negated=True)), _connector='OR'), name='provider_allocation_is_told')],
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='providerallocation',
            trigger=pgtrigger.compiler.Trigger(name='provider_allocation_moves', sql=pgtrigger.compiler.UpsertTriggerSql(declare='DECLARE _is_valid_transition BOOLEAN;', func='SELECT CONCAT(OLD."state", \':\', NEW."state") = ANY(\'{asked:held,asked:refused,asked:released,held:released}\'::text[]) INTO _is_valid_transition; IF (_is_valid_transition IS FALSE AND OLD."state" IS DISTINCT FROM NEW."state") THEN RAISE EXCEPTION \'pgtrigger: Invalid transition of field "state" from "%" to "%" on table %\', OLD."state", NEW."state", TG_TABLE_NAME; ELSE RETURN NEW; END IF;', hash='41cf43025002959e4f3e47d6dfe3a797a785479e', operation='UPDATE', pgid='pgtrigger_provider_allocation_moves_0a134', table='quotas_providerallocation', when='BEFORE')),
        ),
        migrations.AddIndex(
            model_name='refusedstart',
            index=models.Index(fields=['until'], name='refused_start_until'),
        ),
        migrations.AddConstraint(
            model_name='refusedstart',
            constraint=models.CheckConstraint(condition=models.Q(('until__gt', models.F('refused_at'))), name='refused_start_ends_later'),
        ),
    ]
