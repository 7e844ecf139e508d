"""The circuits of providers are rows of infra now. The table stays: the release before this one still uses it."""

from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('quotas', '0012_references_of_the_ledger'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(state_operations=[migrations.DeleteModel(name='ProviderCircuit')]),
    ]
