import scheduler.core.lifecycle
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduler', '0021_rights_of_kept_answers'),
    ]

    operations = [
        migrations.AlterField(
            model_name='job',
            name='restart_policy',
            field=models.CharField(choices=[('never', 'never'), ('interrupted', 'interrupted'), ('on_failure', 'on_failure'), ('always', 'always')], default=scheduler.core.lifecycle.RestartPolicy['INTERRUPTED'], max_length=12),
        ),
        # `never` was what nobody had said, and did not keep a job that was lost from starting again: as it was
        # submitted, so it goes on.
        migrations.RunSQL(
            "UPDATE scheduler_job SET restart_policy = 'interrupted' WHERE restart_policy = 'never'"
            " AND state NOT IN ('completed', 'failed', 'cancelled')",
            migrations.RunSQL.noop,
        ),
    ]
