"""How reliable and how fast each node is, and when it stopped responding: two new tables."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0081_adaptive_rules"),
    ]

    operations = [
        migrations.CreateModel(
            name="NodeScore",
            fields=[
                (
                    "node",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="score",
                        serialize=False,
                        to="scheduler.node",
                    ),
                ),
                ("reliability", models.PositiveSmallIntegerField(null=True)),
                ("performance", models.PositiveSmallIntegerField(null=True)),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("failed_starts", models.PositiveIntegerField(default=0)),
                ("lost", models.PositiveIntegerField(default=0)),
                ("infrastructure", models.PositiveIntegerField(default=0)),
                ("succeeded_elsewhere", models.PositiveIntegerField(default=0)),
                ("outages", models.PositiveIntegerField(default=0)),
                ("speed_percent", models.PositiveIntegerField(null=True)),
                ("compared_runs", models.PositiveIntegerField(default=0)),
                ("updated_at", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        name="node_scores_are_points",
                        condition=(Q(reliability=None) | Q(reliability__lte=100))
                        & (Q(performance=None) | Q(performance__lte=100)),
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="NodeOutage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("began_at", models.DateTimeField()),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="outages", to="scheduler.node"
                    ),
                ),
            ],
        ),
    ]
