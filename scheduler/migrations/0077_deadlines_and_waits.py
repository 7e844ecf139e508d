"""Deadlines that end jobs, limits of waits, and what queues set for jobs that do not say.

Columns are added empty or with a default of the catalogue: no row is written.
"""

import pgtrigger.compiler
import pgtrigger.migrations
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0009_secrets'),
        ("scheduler", "0076_reasons_of_nodes"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name='queue',
            name='insert_insert',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='queue',
            name='update_update',
        ),
        migrations.AddField(
            model_name='job',
            name='check_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='jobrequest',
            name='deadline_action',
            field=models.CharField(choices=[('none', 'none'), ('end', 'end')], db_default='none', default='none', max_length=4),
        ),
        migrations.AddField(
            model_name='jobrequest',
            name='wait_limit_seconds',
            field=models.PositiveBigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='queue',
            name='default_assembly_seconds',
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='queue',
            name='default_wait_seconds',
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='queueevent',
            name='default_assembly_seconds',
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='queueevent',
            name='default_wait_seconds',
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name='attempt',
            name='stop_reason',
            field=models.CharField(blank=True, choices=[('cancelled', 'cancelled'), ('time_limit', 'time_limit'), ('deadline', 'deadline'), ('preempted', 'preempted'), ('drained', 'drained'), ('evicted', 'evicted'), ('stale_epoch', 'stale_epoch'), ('gang_member_failed', 'gang_member_failed'), ('quota_refused', 'quota_refused')], max_length=20),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='queue',
            trigger=pgtrigger.compiler.Trigger(name='insert_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func='INSERT INTO "scheduler_queueevent" ("cluster_id", "created_at", "default_assembly_seconds", "default_wait_seconds", "default_wall_seconds", "id", "is_default", "isolation", "max_concurrent_jobs", "max_pending_jobs", "max_wall_seconds", "name", "paused", "paused_at", "paused_by", "paused_reason", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "priority", "profile_id", "project_id", "results_days", "results_job_mib", "results_until_fetched", "scratch_mib", "slug") VALUES (NEW."cluster_id", NEW."created_at", NEW."default_assembly_seconds", NEW."default_wait_seconds", NEW."default_wall_seconds", NEW."id", NEW."is_default", NEW."isolation", NEW."max_concurrent_jobs", NEW."max_pending_jobs", NEW."max_wall_seconds", NEW."name", NEW."paused", NEW."paused_at", NEW."paused_by", NEW."paused_reason", _pgh_attach_context(), NOW(), \'insert\', NEW."id", NEW."priority", NEW."profile_id", NEW."project_id", NEW."results_days", NEW."results_job_mib", NEW."results_until_fetched", NEW."scratch_mib", NEW."slug"); RETURN NULL;', hash='760510e8dcbf8cc1233732830f984befc8306703', operation='INSERT', pgid='pgtrigger_insert_insert_15fd0', table='scheduler_queue', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='queue',
            trigger=pgtrigger.compiler.Trigger(name='update_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD."cluster_id" IS DISTINCT FROM (NEW."cluster_id") OR OLD."created_at" IS DISTINCT FROM (NEW."created_at") OR OLD."default_assembly_seconds" IS DISTINCT FROM (NEW."default_assembly_seconds") OR OLD."default_wait_seconds" IS DISTINCT FROM (NEW."default_wait_seconds") OR OLD."default_wall_seconds" IS DISTINCT FROM (NEW."default_wall_seconds") OR OLD."id" IS DISTINCT FROM (NEW."id") OR OLD."is_default" IS DISTINCT FROM (NEW."is_default") OR OLD."isolation" IS DISTINCT FROM (NEW."isolation") OR OLD."max_concurrent_jobs" IS DISTINCT FROM (NEW."max_concurrent_jobs") OR OLD."max_pending_jobs" IS DISTINCT FROM (NEW."max_pending_jobs") OR OLD."max_wall_seconds" IS DISTINCT FROM (NEW."max_wall_seconds") OR OLD."name" IS DISTINCT FROM (NEW."name") OR OLD."paused" IS DISTINCT FROM (NEW."paused") OR OLD."paused_at" IS DISTINCT FROM (NEW."paused_at") OR OLD."paused_by" IS DISTINCT FROM (NEW."paused_by") OR OLD."paused_reason" IS DISTINCT FROM (NEW."paused_reason") OR OLD."priority" IS DISTINCT FROM (NEW."priority") OR OLD."profile_id" IS DISTINCT FROM (NEW."profile_id") OR OLD."project_id" IS DISTINCT FROM (NEW."project_id") OR OLD."results_days" IS DISTINCT FROM (NEW."results_days") OR OLD."results_job_mib" IS DISTINCT FROM (NEW."results_job_mib") OR OLD."results_until_fetched" IS DISTINCT FROM (NEW."results_until_fetched") OR OLD."scratch_mib" IS DISTINCT FROM (NEW."scratch_mib") OR OLD."slug" IS DISTINCT FROM (NEW."slug"))', func='INSERT INTO "scheduler_queueevent" ("cluster_id", "created_at", "default_assembly_seconds", "default_wait_seconds", "default_wall_seconds", "id", "is_default", "isolation", "max_concurrent_jobs", "max_pending_jobs", "max_wall_seconds", "name", "paused", "paused_at", "paused_by", "paused_reason", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "priority", "profile_id", "project_id", "results_days", "results_job_mib", "results_until_fetched", "scratch_mib", "slug") VALUES (NEW."cluster_id", NEW."created_at", NEW."default_assembly_seconds", NEW."default_wait_seconds", NEW."default_wall_seconds", NEW."id", NEW."is_default", NEW."isolation", NEW."max_concurrent_jobs", NEW."max_pending_jobs", NEW."max_wall_seconds", NEW."name", NEW."paused", NEW."paused_at", NEW."paused_by", NEW."paused_reason", _pgh_attach_context(), NOW(), \'update\', NEW."id", NEW."priority", NEW."profile_id", NEW."project_id", NEW."results_days", NEW."results_job_mib", NEW."results_until_fetched", NEW."scratch_mib", NEW."slug"); RETURN NULL;', hash='2781d4f971384683111b79a55ea08b1c6b3389a9', operation='UPDATE', pgid='pgtrigger_update_update_59b97', table='scheduler_queue', when='AFTER')),
        ),
    ]
