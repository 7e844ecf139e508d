"""Weights of people, for turns that people take (fair queueing): a column with a default."""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0009_secrets'),
        ('auth', '0012_alter_user_first_name_max_length'),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name='user',
            name='insert_insert',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='user',
            name='update_update',
        ),
        migrations.AddField(
            model_name='user',
            name='share_weight',
            field=models.PositiveIntegerField(db_default=1, default=1),
        ),
        migrations.AddField(
            model_name='userevent',
            name='share_weight',
            field=models.PositiveIntegerField(db_default=1, default=1),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='user',
            trigger=pgtrigger.compiler.Trigger(name='insert_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func='INSERT INTO "accounts_userevent" ("access_version", "date_joined", "default_project_id", "email", "first_name", "id", "is_active", "is_demo", "is_staff", "is_superuser", "last_name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "priority_ceiling", "share_weight", "site_role", "theme", "time_zone", "username") VALUES (NEW."access_version", NEW."date_joined", NEW."default_project_id", NEW."email", NEW."first_name", NEW."id", NEW."is_active", NEW."is_demo", NEW."is_staff", NEW."is_superuser", NEW."last_name", _pgh_attach_context(), NOW(), \'insert\', NEW."id", NEW."priority_ceiling", NEW."share_weight", NEW."site_role", NEW."theme", NEW."time_zone", NEW."username"); RETURN NULL;', hash='e3c5a5da9524fafdc258faac7036fb36bbe2be8a', operation='INSERT', pgid='pgtrigger_insert_insert_3867c', table='accounts_user', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='user',
            trigger=pgtrigger.compiler.Trigger(name='update_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD."access_version" IS DISTINCT FROM (NEW."access_version") OR OLD."date_joined" IS DISTINCT FROM (NEW."date_joined") OR OLD."default_project_id" IS DISTINCT FROM (NEW."default_project_id") OR OLD."email" IS DISTINCT FROM (NEW."email") OR OLD."first_name" IS DISTINCT FROM (NEW."first_name") OR OLD."id" IS DISTINCT FROM (NEW."id") OR OLD."is_active" IS DISTINCT FROM (NEW."is_active") OR OLD."is_demo" IS DISTINCT FROM (NEW."is_demo") OR OLD."is_staff" IS DISTINCT FROM (NEW."is_staff") OR OLD."is_superuser" IS DISTINCT FROM (NEW."is_superuser") OR OLD."last_name" IS DISTINCT FROM (NEW."last_name") OR OLD."priority_ceiling" IS DISTINCT FROM (NEW."priority_ceiling") OR OLD."share_weight" IS DISTINCT FROM (NEW."share_weight") OR OLD."site_role" IS DISTINCT FROM (NEW."site_role") OR OLD."theme" IS DISTINCT FROM (NEW."theme") OR OLD."time_zone" IS DISTINCT FROM (NEW."time_zone") OR OLD."username" IS DISTINCT FROM (NEW."username"))', func='INSERT INTO "accounts_userevent" ("access_version", "date_joined", "default_project_id", "email", "first_name", "id", "is_active", "is_demo", "is_staff", "is_superuser", "last_name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "priority_ceiling", "share_weight", "site_role", "theme", "time_zone", "username") VALUES (NEW."access_version", NEW."date_joined", NEW."default_project_id", NEW."email", NEW."first_name", NEW."id", NEW."is_active", NEW."is_demo", NEW."is_staff", NEW."is_superuser", NEW."last_name", _pgh_attach_context(), NOW(), \'update\', NEW."id", NEW."priority_ceiling", NEW."share_weight", NEW."site_role", NEW."theme", NEW."time_zone", NEW."username"); RETURN NULL;', hash='ca4f118994a7fc29f409c032f68586824e2fa82f', operation='UPDATE', pgid='pgtrigger_update_update_0e890', table='accounts_user', when='AFTER')),
        ),
        migrations.AddConstraint(
            model_name='user',
            constraint=models.CheckConstraint(condition=models.Q(('share_weight__range', (1, 1000000))), name='user_share_range'),
        ),
    ]
