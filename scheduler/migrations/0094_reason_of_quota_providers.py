"""One reason more: that the provider of a quota refuses the start. Choices of forms; the table stays as it is."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduler', '0093_relaxed_constraints'),
    ]

    operations = [
        migrations.AlterField(
            model_name='job',
            name='reason_code',
            field=models.CharField(blank=True, choices=[('InvalidSpec', 'InvalidSpec'), ('NoMatchingNode', 'NoMatchingNode'), ('NodesUnavailable', 'NodesUnavailable'), ('ExceedsMaxQuota', 'ExceedsMaxQuota'), ('ExceedsBudget', 'ExceedsBudget'), ('ExceedsMaxWalltime', 'ExceedsMaxWalltime'), ('DependencyNeverSatisfied', 'DependencyNeverSatisfied'), ('ImageNotFound', 'ImageNotFound'), ('QueueStopped', 'QueueStopped'), ('HeldByAdmin', 'HeldByAdmin'), ('HeldByUser', 'HeldByUser'), ('AccountExpired', 'AccountExpired'), ('QuotaZero', 'QuotaZero'), ('BudgetSpent', 'BudgetSpent'), ('QuotaProviderAway', 'QuotaProviderAway'), ('ApprovalPending', 'ApprovalPending'), ('BeginTime', 'BeginTime'), ('Dependency', 'Dependency'), ('Backoff', 'Backoff'), ('QuotaProviderRefuses', 'QuotaProviderRefuses'), ('RateLimited', 'RateLimited'), ('WaitingForQuota', 'WaitingForQuota'), ('FairShareBehind', 'FairShareBehind'), ('WaitingForPreemption', 'WaitingForPreemption'), ('Reservation', 'Reservation'), ('JobAffinity', 'JobAffinity'), ('TopologyFragmented', 'TopologyFragmented'), ('WaitingForResources', 'WaitingForResources'), ('Priority', 'Priority'), ('NotEvaluatedYet', 'NotEvaluatedYet'), ('SchedulerBehind', 'SchedulerBehind'), ('AgentUnreachable', 'AgentUnreachable'), ('DataStale', 'DataStale')], max_length=32),
        ),
    ]
