"""The placement "quality" of profiles: another choice, no change of a table."""

from django.db import migrations, models

PLACEMENTS = [
    ("best_fit", "best fit: tightest node first"),
    ("spread", "spread: emptiest node first"),
    ("frag", "frag: keep idle GPUs usable for common requests"),
    ("least_loaded", "least loaded: the most idle node"),
    ("resource_balance", "resource balance: even use of CPU, memory and GPUs"),
    ("round_robin", "round robin: the node with the fewest tasks"),
    ("balanced", "balanced: fit 30, affinity 20, load 20, data locality 20, cost 10"),
    ("k8s", "k8s: fit 40, load 30, affinity 20, network 10"),
    ("multi-criteria", "multi-criteria: performance, cost, reliability, network equally"),
    ("quality", "quality: GPUs in one NUMA domain, then the tightest node"),
]


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0083_node_scores"),
    ]

    operations = [
        migrations.AlterField(
            model_name="schedulerprofile",
            name="placement",
            field=models.CharField(choices=PLACEMENTS, default="best_fit", max_length=16),
        ),
        migrations.AlterField(
            model_name="schedulerprofileevent",
            name="placement",
            field=models.CharField(choices=PLACEMENTS, default="best_fit", max_length=16),
        ),
    ]
