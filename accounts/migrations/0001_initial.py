import django.contrib.auth.models
import django.contrib.auth.validators
import django.contrib.postgres.fields
import django.db.models.deletion
import django.utils.timezone
import pgtrigger.compiler
import pgtrigger.migrations
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('pghistory', '0007_auto_20250421_0444'),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditChain',
            fields=[
                ('shard', models.PositiveSmallIntegerField(primary_key=True, serialize=False)),
                ('length', models.BigIntegerField(default=0)),
                ('head', models.CharField(default='0000000000000000000000000000000000000000000000000000000000000000', max_length=64)),
            ],
        ),
        migrations.CreateModel(
            name='AuditCheck',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('checked_at', models.DateTimeField(auto_now_add=True)),
                ('ok', models.BooleanField()),
                ('rows', models.BigIntegerField(default=0)),
                ('problem', models.CharField(blank=True, max_length=300)),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='Organization',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=120)),
                ('slug', models.SlugField(max_length=80, unique=True)),
                ('parent', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='children', to='accounts.organization')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['name', 'id'],
                'constraints': [models.CheckConstraint(condition=models.Q(('parent', models.F('id')), _negated=True), name='organization_not_own_parent')],
            },
        ),
        migrations.CreateModel(
            name='OrganizationEvent',
            fields=[
                ('pgh_id', models.AutoField(primary_key=True, serialize=False)),
                ('pgh_created_at', models.DateTimeField(auto_now_add=True)),
                ('pgh_label', models.TextField(help_text='The event label.')),
                ('pgh_obj', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='events', to='accounts.organization')),
                ('pgh_context', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='pghistory.context')),
                ('id', models.BigIntegerField()),
                ('name', models.CharField(max_length=120)),
                ('slug', models.SlugField(db_index=False, max_length=80)),
                ('parent', models.ForeignKey(blank=True, db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', related_query_name='+', to='accounts.organization')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='User',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('username', models.CharField(error_messages={'unique': 'A user with that username already exists.'}, help_text='Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.', max_length=150, unique=True, validators=[django.contrib.auth.validators.UnicodeUsernameValidator()], verbose_name='username')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('email', models.EmailField(blank=True, max_length=254, verbose_name='email address')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('site_role', models.CharField(choices=[('none', 'none'), ('auditor', 'auditor'), ('operator', 'operator'), ('admin', 'admin')], default='none', max_length=16)),
                ('priority_ceiling', models.PositiveSmallIntegerField(default=75)),
                ('theme', models.CharField(choices=[('system', 'as the system'), ('light', 'light'), ('dark', 'dark')], default='system', max_length=8)),
                ('time_zone', models.CharField(default='UTC', max_length=64)),
                ('is_demo', models.BooleanField(default=False)),
                ('access_version', models.PositiveIntegerField(default=0)),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
            options={
                'verbose_name': 'user',
                'verbose_name_plural': 'users',
                'abstract': False,
                'constraints': [models.CheckConstraint(condition=models.Q(('priority_ceiling__lte', 100)), name='user_priority_ceiling_range')],
            },
            managers=[
                ('objects', django.contrib.auth.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name='ApiToken',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='api_tokens', to=settings.AUTH_USER_MODEL)),
                ('name', models.CharField(max_length=120)),
                ('prefix', models.CharField(max_length=16, unique=True)),
                ('digest', models.CharField(max_length=64)),
                ('scopes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=32), size=None)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField()),
                ('last_used_at', models.DateTimeField(blank=True, null=True)),
                ('last_used_address', models.GenericIPAddressField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'ordering': ['-created_at', '-id'],
                'constraints': [models.CheckConstraint(condition=models.Q(('scopes__len__gt', 0)), name='token_has_scopes')],
            },
        ),
        migrations.CreateModel(
            name='AuditEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('shard', models.PositiveSmallIntegerField()),
                ('number', models.BigIntegerField()),
                ('at', models.DateTimeField()),
                ('actor', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('actor_name', models.CharField(max_length=150)),
                ('on_behalf_of', models.CharField(blank=True, max_length=150)),
                ('token_prefix', models.CharField(blank=True, max_length=16)),
                ('address', models.CharField(blank=True, max_length=64)),
                ('request_id', models.CharField(blank=True, max_length=64)),
                ('action', models.CharField(max_length=64)),
                ('outcome', models.CharField(choices=[('done', 'done'), ('denied', 'denied')], default='done', max_length=8)),
                ('object_type', models.CharField(max_length=64)),
                ('object_id', models.CharField(blank=True, max_length=64)),
                ('object_label', models.CharField(blank=True, max_length=200)),
                ('before', models.JSONField(null=True)),
                ('after', models.JSONField(null=True)),
                ('reason', models.TextField(blank=True)),
                ('previous_hash', models.CharField(max_length=64)),
                ('hash', models.CharField(max_length=64)),
            ],
            options={
                'ordering': ['-id'],
                'indexes': [models.Index(fields=['object_type', 'object_id', '-id'], name='audit_by_object'), models.Index(fields=['actor', '-id'], name='audit_by_actor'), models.Index(fields=['action', '-id'], name='audit_by_action')],
                'constraints': [models.UniqueConstraint(fields=('shard', 'number'), name='audit_position_once')],
            },
        ),
        migrations.CreateModel(
            name='Project',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='projects', to='accounts.organization')),
                ('name', models.CharField(max_length=120)),
                ('slug', models.SlugField(max_length=80, unique=True)),
                ('description', models.TextField(blank=True)),
                ('active', models.BooleanField(default=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('generation', models.PositiveIntegerField(default=1)),
            ],
            options={
                'ordering': ['name', 'id'],
            },
        ),
        migrations.AddField(
            model_name='user',
            name='default_project',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='accounts.project'),
        ),
        migrations.AddField(
            model_name='apitoken',
            name='project',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project'),
        ),
        migrations.AddField(
            model_name='auditevent',
            name='project',
            field=models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='accounts.project'),
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='accounts.project')),
                ('role', models.CharField(choices=[('viewer', 'viewer'), ('member', 'member'), ('lead', 'lead')], default='member', max_length=8)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'ordering': ['project_id', 'id'],
                'constraints': [models.UniqueConstraint(fields=('user', 'project'), name='membership_once'), models.CheckConstraint(condition=models.Q(('role__in', ['viewer', 'member', 'lead'])), name='membership_role_known')],
            },
        ),
        migrations.AddField(
            model_name='project',
            name='members',
            field=models.ManyToManyField(related_name='projects', through='accounts.Membership', to=settings.AUTH_USER_MODEL),
        ),
        migrations.CreateModel(
            name='MembershipEvent',
            fields=[
                ('pgh_id', models.AutoField(primary_key=True, serialize=False)),
                ('pgh_created_at', models.DateTimeField(auto_now_add=True)),
                ('pgh_label', models.TextField(help_text='The event label.')),
                ('pgh_obj', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='events', to='accounts.membership')),
                ('pgh_context', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='pghistory.context')),
                ('id', models.BigIntegerField()),
                ('user', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', related_query_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', related_query_name='+', to='accounts.project')),
                ('role', models.CharField(choices=[('viewer', 'viewer'), ('member', 'member'), ('lead', 'lead')], default='member', max_length=8)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='ProjectEvent',
            fields=[
                ('pgh_id', models.AutoField(primary_key=True, serialize=False)),
                ('pgh_created_at', models.DateTimeField(auto_now_add=True)),
                ('pgh_label', models.TextField(help_text='The event label.')),
                ('pgh_obj', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='events', to='accounts.project')),
                ('pgh_context', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='pghistory.context')),
                ('id', models.BigIntegerField()),
                ('organization', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', related_query_name='+', to='accounts.organization')),
                ('name', models.CharField(max_length=120)),
                ('slug', models.SlugField(db_index=False, max_length=80)),
                ('description', models.TextField(blank=True)),
                ('active', models.BooleanField(default=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('generation', models.PositiveIntegerField(default=1)),
            ],
            options={
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='UserEvent',
            fields=[
                ('pgh_id', models.AutoField(primary_key=True, serialize=False)),
                ('pgh_created_at', models.DateTimeField(auto_now_add=True)),
                ('pgh_label', models.TextField(help_text='The event label.')),
                ('pgh_obj', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='events', to=settings.AUTH_USER_MODEL)),
                ('pgh_context', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='pghistory.context')),
                ('id', models.BigIntegerField()),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('username', models.CharField(error_messages={'unique': 'A user with that username already exists.'}, help_text='Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.', max_length=150, validators=[django.contrib.auth.validators.UnicodeUsernameValidator()], verbose_name='username')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('email', models.EmailField(blank=True, max_length=254, verbose_name='email address')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('site_role', models.CharField(choices=[('none', 'none'), ('auditor', 'auditor'), ('operator', 'operator'), ('admin', 'admin')], default='none', max_length=16)),
                ('default_project', models.ForeignKey(blank=True, db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', related_query_name='+', to='accounts.project')),
                ('priority_ceiling', models.PositiveSmallIntegerField(default=75)),
                ('theme', models.CharField(choices=[('system', 'as the system'), ('light', 'light'), ('dark', 'dark')], default='system', max_length=8)),
                ('time_zone', models.CharField(default='UTC', max_length=64)),
                ('is_demo', models.BooleanField(default=False)),
                ('access_version', models.PositiveIntegerField(default=0)),
            ],
            options={
                'abstract': False,
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='auditchain',
            trigger=pgtrigger.compiler.Trigger(name='audit_chain_keeps_its_heads', sql=pgtrigger.compiler.UpsertTriggerSql(func="RAISE EXCEPTION 'pgtrigger: Cannot delete rows from % table', TG_TABLE_NAME;", hash='510164e8bd21a46c86dd4c3ff323db330dc1fc95', operation='DELETE', pgid='pgtrigger_audit_chain_keeps_its_heads_c8244', table='accounts_auditchain', when='BEFORE')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='auditchain',
            trigger=pgtrigger.compiler.Trigger(name='audit_chain_only_grows', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (NEW."length" <= (OLD."length"))', func="RAISE EXCEPTION 'an audit chain only grows';", hash='c5e47582898ebff89df0b780ac53186df4bd1c6b', operation='UPDATE', pgid='pgtrigger_audit_chain_only_grows_9247e', table='accounts_auditchain', when='BEFORE')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='organization',
            trigger=pgtrigger.compiler.Trigger(name='insert_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func='INSERT INTO "accounts_organizationevent" ("created_at", "id", "name", "parent_id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "slug") VALUES (NEW."created_at", NEW."id", NEW."name", NEW."parent_id", _pgh_attach_context(), NOW(), \'insert\', NEW."id", NEW."slug"); RETURN NULL;', hash='6211e33046ac2af6a14c306f24420f93062feffc', operation='INSERT', pgid='pgtrigger_insert_insert_6d17a', table='accounts_organization', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='organization',
            trigger=pgtrigger.compiler.Trigger(name='update_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.* IS DISTINCT FROM NEW.*)', func='INSERT INTO "accounts_organizationevent" ("created_at", "id", "name", "parent_id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "slug") VALUES (NEW."created_at", NEW."id", NEW."name", NEW."parent_id", _pgh_attach_context(), NOW(), \'update\', NEW."id", NEW."slug"); RETURN NULL;', hash='4d2c497ea06e989b93dce45c69b434e9cf0a7dd2', operation='UPDATE', pgid='pgtrigger_update_update_df7c2', table='accounts_organization', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='project',
            trigger=pgtrigger.compiler.Trigger(name='insert_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func='INSERT INTO "accounts_projectevent" ("active", "created_at", "description", "generation", "id", "name", "organization_id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "slug") VALUES (NEW."active", NEW."created_at", NEW."description", NEW."generation", NEW."id", NEW."name", NEW."organization_id", _pgh_attach_context(), NOW(), \'insert\', NEW."id", NEW."slug"); RETURN NULL;', hash='c3216a8d1082c242afd6f0f1915d7231bd768310', operation='INSERT', pgid='pgtrigger_insert_insert_c28f2', table='accounts_project', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='project',
            trigger=pgtrigger.compiler.Trigger(name='update_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.* IS DISTINCT FROM NEW.*)', func='INSERT INTO "accounts_projectevent" ("active", "created_at", "description", "generation", "id", "name", "organization_id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "slug") VALUES (NEW."active", NEW."created_at", NEW."description", NEW."generation", NEW."id", NEW."name", NEW."organization_id", _pgh_attach_context(), NOW(), \'update\', NEW."id", NEW."slug"); RETURN NULL;', hash='372e6c5fe9ff3b1f6543227fe4bafb845a5f8f91', operation='UPDATE', pgid='pgtrigger_update_update_528f0', table='accounts_project', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='membership',
            trigger=pgtrigger.compiler.Trigger(name='insert_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func='INSERT INTO "accounts_membershipevent" ("created_at", "expires_at", "id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "role", "user_id") VALUES (NEW."created_at", NEW."expires_at", NEW."id", _pgh_attach_context(), NOW(), \'insert\', NEW."id", NEW."project_id", NEW."role", NEW."user_id"); RETURN NULL;', hash='cb87b284f98fc167c7ef2f115aad6ef22b7bc788', operation='INSERT', pgid='pgtrigger_insert_insert_fc05a', table='accounts_membership', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='membership',
            trigger=pgtrigger.compiler.Trigger(name='update_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.* IS DISTINCT FROM NEW.*)', func='INSERT INTO "accounts_membershipevent" ("created_at", "expires_at", "id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "role", "user_id") VALUES (NEW."created_at", NEW."expires_at", NEW."id", _pgh_attach_context(), NOW(), \'update\', NEW."id", NEW."project_id", NEW."role", NEW."user_id"); RETURN NULL;', hash='4351c6e0bff4d6f05273d49ae7164c6033feecc4', operation='UPDATE', pgid='pgtrigger_update_update_20ab5', table='accounts_membership', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='auditevent',
            trigger=pgtrigger.compiler.Trigger(name='audit_rows_never_change', sql=pgtrigger.compiler.UpsertTriggerSql(func="RAISE EXCEPTION 'pgtrigger: Cannot update or delete rows from % table', TG_TABLE_NAME;", hash='3ff883a887e86d0a727fc751f6a1085d757c0cb8', operation='UPDATE OR DELETE', pgid='pgtrigger_audit_rows_never_change_f62a4', table='accounts_auditevent', when='BEFORE')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='auditevent',
            trigger=pgtrigger.compiler.Trigger(name='audit_never_truncated', sql=pgtrigger.compiler.UpsertTriggerSql(func="RAISE EXCEPTION 'the audit trail is never truncated';", hash='8653d36ce0802f5677d5f52bd7f4188b6dc58616', level='STATEMENT', operation='TRUNCATE', pgid='pgtrigger_audit_never_truncated_b5d10', table='accounts_auditevent', when='BEFORE')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='user',
            trigger=pgtrigger.compiler.Trigger(name='insert_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func='INSERT INTO "accounts_userevent" ("access_version", "date_joined", "default_project_id", "email", "first_name", "id", "is_active", "is_demo", "is_staff", "is_superuser", "last_name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "priority_ceiling", "site_role", "theme", "time_zone", "username") VALUES (NEW."access_version", NEW."date_joined", NEW."default_project_id", NEW."email", NEW."first_name", NEW."id", NEW."is_active", NEW."is_demo", NEW."is_staff", NEW."is_superuser", NEW."last_name", _pgh_attach_context(), NOW(), \'insert\', NEW."id", NEW."priority_ceiling", NEW."site_role", NEW."theme", NEW."time_zone", NEW."username"); RETURN NULL;', hash='4f83cae2973f08a639dd93f2d0437055e172f912', operation='INSERT', pgid='pgtrigger_insert_insert_3867c', table='accounts_user', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='user',
            trigger=pgtrigger.compiler.Trigger(name='update_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD."access_version" IS DISTINCT FROM (NEW."access_version") OR OLD."date_joined" IS DISTINCT FROM (NEW."date_joined") OR OLD."default_project_id" IS DISTINCT FROM (NEW."default_project_id") OR OLD."email" IS DISTINCT FROM (NEW."email") OR OLD."first_name" IS DISTINCT FROM (NEW."first_name") OR OLD."id" IS DISTINCT FROM (NEW."id") OR OLD."is_active" IS DISTINCT FROM (NEW."is_active") OR OLD."is_demo" IS DISTINCT FROM (NEW."is_demo") OR OLD."is_staff" IS DISTINCT FROM (NEW."is_staff") OR OLD."is_superuser" IS DISTINCT FROM (NEW."is_superuser") OR OLD."last_name" IS DISTINCT FROM (NEW."last_name") OR OLD."priority_ceiling" IS DISTINCT FROM (NEW."priority_ceiling") OR OLD."site_role" IS DISTINCT FROM (NEW."site_role") OR OLD."theme" IS DISTINCT FROM (NEW."theme") OR OLD."time_zone" IS DISTINCT FROM (NEW."time_zone") OR OLD."username" IS DISTINCT FROM (NEW."username"))', func='INSERT INTO "accounts_userevent" ("access_version", "date_joined", "default_project_id", "email", "first_name", "id", "is_active", "is_demo", "is_staff", "is_superuser", "last_name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "priority_ceiling", "site_role", "theme", "time_zone", "username") VALUES (NEW."access_version", NEW."date_joined", NEW."default_project_id", NEW."email", NEW."first_name", NEW."id", NEW."is_active", NEW."is_demo", NEW."is_staff", NEW."is_superuser", NEW."last_name", _pgh_attach_context(), NOW(), \'update\', NEW."id", NEW."priority_ceiling", NEW."site_role", NEW."theme", NEW."time_zone", NEW."username"); RETURN NULL;', hash='9229916e0695920ef0f5b536417cd312f3ed1ac5', operation='UPDATE', pgid='pgtrigger_update_update_0e890', table='accounts_user', when='AFTER')),
        ),
    ]
