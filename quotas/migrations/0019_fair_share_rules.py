"""Rules of fair share in rows, and by which half-life each slice of use is decayed."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


def label_slices(apps, schema_editor):
    """What is stored was decayed by the settings; slices of another half-life would be read from the history."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "UPDATE quotas_shareusage SET half_life_seconds = %s, window_seconds = %s",
            [settings.MUSTER_FAIRSHARE_HALF_LIFE_SECONDS, settings.MUSTER_FAIRSHARE_WINDOW_SECONDS],
        )


class Migration(migrations.Migration):

    dependencies = [
        ('quotas', '0016_unused_time_checked'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='shareusage',
            name='half_life_seconds',
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='shareusage',
            name='window_seconds',
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.RunPython(label_slices, migrations.RunPython.noop),
        migrations.CreateModel(
            name='FairShareRules',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('from_settings', models.BooleanField(default=False)),
                ('mode', models.CharField(choices=[('exponential', 'exponential'), ('window', 'window'), ('none', 'none')], max_length=16)),
                ('half_life_seconds', models.PositiveIntegerField()),
                ('window_seconds', models.PositiveIntegerField()),
                ('gpu_weight', models.FloatField()),
                ('cpu_weight', models.FloatField()),
                ('memory_weight', models.FloatField()),
                ('dominant', models.BooleanField()),
                ('changed_at', models.DateTimeField()),
                ('reason', models.CharField(max_length=1000)),
                ('changed_by', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name_plural': 'fair share rules',
                'ordering': ['-id'],
                'constraints': [models.CheckConstraint(condition=models.Q(('mode__in', ('exponential', 'window', 'none'))), name='fair_share_mode_known'), models.CheckConstraint(condition=models.Q(('half_life_seconds__gte', 1), ('window_seconds__gte', 1)), name='fair_share_times'), models.CheckConstraint(condition=models.Q(('cpu_weight__gte', 0), ('gpu_weight__gte', 0), ('memory_weight__gte', 0), models.Q(('gpu_weight__gt', 0), ('cpu_weight__gt', 0), ('memory_weight__gt', 0), _connector='OR')), name='fair_share_weights')],
            },
        ),
    ]
