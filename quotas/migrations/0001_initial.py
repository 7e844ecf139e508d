import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('pghistory', '0007_auto_20250421_0444'),
    ]

    operations = [
        migrations.CreateModel(
            name='Quota',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='quotas', to='accounts.project')),
                ('resource', models.CharField(choices=[('cpu_millis', 'CPU (thousandths of a core)'), ('memory_mib', 'memory (MiB)'), ('gpu_millis', 'GPU (thousandths of a device)'), ('storage_mib', 'storage (MiB)'), ('running_jobs', 'running jobs')], max_length=16)),
                ('nominal', models.BigIntegerField(blank=True, null=True)),
                ('soft', models.BigIntegerField(blank=True, null=True)),
                ('hard', models.BigIntegerField(blank=True, null=True)),
                ('enforce', models.BooleanField(default=True)),
                ('provider', models.CharField(choices=[('local', 'Muster'), ('k8s', 'Kubernetes'), ('slurm', 'Slurm')], default='local', max_length=8)),
                ('used', models.BigIntegerField(default=0, editable=False)),
                ('synced_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('generation', models.PositiveIntegerField(default=1, editable=False)),
            ],
            options={
                'ordering': ['project_id', 'resource'],
                'constraints': [models.UniqueConstraint(fields=('project', 'resource'), name='quota_line_once'), models.CheckConstraint(condition=models.Q(('used__gte', 0)), name='quota_used_not_negative'), models.CheckConstraint(condition=models.Q(models.Q(('nominal__isnull', True), ('nominal__gte', 0), _connector='OR'), models.Q(('soft__isnull', True), ('soft__gte', 0), _connector='OR'), models.Q(('hard__isnull', True), ('hard__gte', 0), _connector='OR')), name='quota_bounds_not_negative'), models.CheckConstraint(condition=models.Q(('soft__isnull', True), ('hard__isnull', True), ('soft__lte', models.F('hard')), _connector='OR'), name='quota_soft_below_hard'), models.CheckConstraint(condition=models.Q(('resource__in', ['cpu_millis', 'memory_mib', 'gpu_millis', 'storage_mib', 'running_jobs'])), name='quota_resource_known')],
            },
        ),
        migrations.CreateModel(
            name='QuotaEvent',
            fields=[
                ('pgh_id', models.AutoField(primary_key=True, serialize=False)),
                ('pgh_created_at', models.DateTimeField(auto_now_add=True)),
                ('pgh_label', models.TextField(help_text='The event label.')),
                ('pgh_obj', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='events', to='quotas.quota')),
                ('pgh_context', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='pghistory.context')),
                ('id', models.BigIntegerField()),
                ('project', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', related_query_name='+', to='accounts.project')),
                ('resource', models.CharField(choices=[('cpu_millis', 'CPU (thousandths of a core)'), ('memory_mib', 'memory (MiB)'), ('gpu_millis', 'GPU (thousandths of a device)'), ('storage_mib', 'storage (MiB)'), ('running_jobs', 'running jobs')], max_length=16)),
                ('nominal', models.BigIntegerField(blank=True, null=True)),
                ('soft', models.BigIntegerField(blank=True, null=True)),
                ('hard', models.BigIntegerField(blank=True, null=True)),
                ('enforce', models.BooleanField(default=True)),
                ('provider', models.CharField(choices=[('local', 'Muster'), ('k8s', 'Kubernetes'), ('slurm', 'Slurm')], default='local', max_length=8)),
                ('synced_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('generation', models.PositiveIntegerField(default=1, editable=False)),
            ],
            options={
                'abstract': False,
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='quota',
            trigger=pgtrigger.compiler.Trigger(name='quota_never_passed', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (NEW.enforce AND NEW.used > OLD.used AND NEW.used > NEW.hard)', func="RAISE check_violation USING MESSAGE = 'quota passed: ' || NEW.resource || ' of project ' || NEW.project_id, CONSTRAINT = 'quota_never_passed';", hash='6afa5435b295069c6834846713de7cdee89566d6', operation='UPDATE OF "used"', pgid='pgtrigger_quota_never_passed_d8b21', table='quotas_quota', when='BEFORE')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='quota',
            trigger=pgtrigger.compiler.Trigger(name='insert_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func='INSERT INTO "quotas_quotaevent" ("enforce", "generation", "hard", "id", "nominal", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "provider", "resource", "soft", "synced_at") VALUES (NEW."enforce", NEW."generation", NEW."hard", NEW."id", NEW."nominal", _pgh_attach_context(), NOW(), \'insert\', NEW."id", NEW."project_id", NEW."provider", NEW."resource", NEW."soft", NEW."synced_at"); RETURN NULL;', hash='03c976fdb023e6439b53f79e838671069bed67f0', operation='INSERT', pgid='pgtrigger_insert_insert_85146', table='quotas_quota', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='quota',
            trigger=pgtrigger.compiler.Trigger(name='update_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD."enforce" IS DISTINCT FROM (NEW."enforce") OR OLD."generation" IS DISTINCT FROM (NEW."generation") OR OLD."hard" IS DISTINCT FROM (NEW."hard") OR OLD."id" IS DISTINCT FROM (NEW."id") OR OLD."nominal" IS DISTINCT FROM (NEW."nominal") OR OLD."project_id" IS DISTINCT FROM (NEW."project_id") OR OLD."provider" IS DISTINCT FROM (NEW."provider") OR OLD."resource" IS DISTINCT FROM (NEW."resource") OR OLD."soft" IS DISTINCT FROM (NEW."soft") OR OLD."synced_at" IS DISTINCT FROM (NEW."synced_at"))', func='INSERT INTO "quotas_quotaevent" ("enforce", "generation", "hard", "id", "nominal", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "provider", "resource", "soft", "synced_at") VALUES (NEW."enforce", NEW."generation", NEW."hard", NEW."id", NEW."nominal", _pgh_attach_context(), NOW(), \'update\', NEW."id", NEW."project_id", NEW."provider", NEW."resource", NEW."soft", NEW."synced_at"); RETURN NULL;', hash='a6664f9b1fc2f3dd0d90f964aab034eaca041eff', operation='UPDATE', pgid='pgtrigger_update_update_ad91d', table='quotas_quota', when='AFTER')),
        ),
    ]
