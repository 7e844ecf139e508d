"""Uploaded folders, and which one a job begins with: a new table and a column without a default."""

import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0009_secrets'),
        ('scheduler', '0062_plain_labels'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='FolderUpload',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=200)),
                ('state', models.CharField(choices=[('receiving', 'on its way'), ('ready', 'ready'), ('leaving', 'to be removed'), ('removed', 'removed')], default='receiving', max_length=9)),
                ('text', models.CharField(blank=True, max_length=300)),
                ('files', models.PositiveIntegerField()),
                ('size_bytes', models.BigIntegerField()),
                ('created_at', models.DateTimeField()),
                ('seen_at', models.DateTimeField()),
                ('ready_at', models.DateTimeField(blank=True, null=True)),
                ('used_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'verbose_name': 'upload',
                'ordering': ['-created_at', 'id'],
            },
        ),
        migrations.AddField(
            model_name='jobrequest',
            name='upload',
            field=models.UUIDField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='folderupload',
            name='held_to',
            field=models.ForeignKey(blank=True, db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.project'),
        ),
        migrations.AddField(
            model_name='folderupload',
            name='user',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='uploads', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddIndex(
            model_name='folderupload',
            index=models.Index(condition=models.Q(('state__in', ['receiving', 'ready', 'leaving'])), fields=['seen_at'], name='upload_to_watch'),
        ),
        migrations.AddConstraint(
            model_name='folderupload',
            constraint=models.CheckConstraint(condition=models.Q(('files__gte', 1), ('size_bytes__gte', 0)), name='folder_upload_has_size'),
        ),
        migrations.AddConstraint(
            model_name='folderupload',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['receiving', 'ready', 'leaving', 'removed'])), name='folder_upload_state_known'),
        ),
        migrations.AddConstraint(
            model_name='folderupload',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('state', 'ready'), _negated=True), ('ready_at__isnull', False), _connector='OR'), name='folder_upload_ready_is_whole'),
        ),
    ]
