"""The memory of fair queueing: a new table."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("scheduler", "0070_predicted_run_times"),
    ]

    operations = [
        migrations.CreateModel(
            name='FairQueueTurn',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('queue_id', models.BigIntegerField(default=0)),
                ('by_user', models.BooleanField()),
                ('tenant_id', models.BigIntegerField()),
                ('virtual', models.BigIntegerField()),
                ('waiting', models.BooleanField()),
                ('cluster', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='scheduler.cluster')),
            ],
            options={
                'ordering': ['cluster_id', 'queue_id', 'by_user', 'tenant_id'],
                'constraints': [models.UniqueConstraint(fields=('cluster', 'queue_id', 'by_user', 'tenant_id'), name='fair_queue_turn_once'), models.CheckConstraint(condition=models.Q(('virtual__gte', 0)), name='fair_queue_turn_forward')],
            },
        ),
    ]
