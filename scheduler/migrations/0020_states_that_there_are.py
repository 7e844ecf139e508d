from django.contrib.postgres.operations import AddConstraintNotValid, ValidateConstraint
from django.db import migrations, models


class Migration(migrations.Migration):

    # Of allocations and tasks there may be millions: they are looked at while others go on writing.
    atomic = False

    dependencies = [
        ('scheduler', '0019_names_in_admin'),
    ]

    operations = [
        AddConstraintNotValid(
            model_name='allocation',
            constraint=models.CheckConstraint(condition=models.Q(('cpu_millis__gte', 0), ('gpu_millis__gte', 0), ('memory_mib__gte', 0), ('storage_mib__gte', 0), ('suspended_cpu_millis__gte', 0)), name='allocation_not_negative'),
        ),
        AddConstraintNotValid(
            model_name='node',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['up', 'unknown', 'down'])), name='node_state_known'),
        ),
        AddConstraintNotValid(
            model_name='task',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['assigned', 'starting', 'running', 'stopping', 'succeeded', 'failed', 'stopped', 'lost'])), name='task_state_known'),
        ),
        ValidateConstraint(model_name='allocation', name='allocation_not_negative'),
        ValidateConstraint(model_name='node', name='node_state_known'),
        ValidateConstraint(model_name='task', name='task_state_known'),
    ]
