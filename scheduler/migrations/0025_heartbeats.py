"""Heartbeats leave the row of their node, which apply and settle lock; the last one of each agent is kept."""

import django.db.models.deletion
from django.db import migrations, models

#: Brief locks: there is one row for each node, and the two ALTERs rewrite nothing.
KEEP = """
INSERT INTO scheduler_nodeheartbeat (node_id, last_seen_at, lease_expires_at, clock_skew_ms)
SELECT id, coalesce(last_seen_at, lease_expires_at), lease_expires_at, clock_skew_ms
FROM scheduler_node WHERE lease_expires_at IS NOT NULL
"""
GIVE_BACK = """
UPDATE scheduler_node n SET last_seen_at = h.last_seen_at, lease_expires_at = h.lease_expires_at,
    clock_skew_ms = h.clock_skew_ms
FROM scheduler_nodeheartbeat h WHERE h.node_id = n.id
"""
#: A heartbeat is written every few seconds: room for the next version in the same page keeps the index unchanged.
ROOM = "ALTER TABLE scheduler_nodeheartbeat SET (fillfactor = 50)"


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0024_elements"),
    ]

    operations = [
        migrations.CreateModel(
            name="NodeHeartbeat",
            fields=[
                (
                    "node",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="heartbeat",
                        serialize=False,
                        to="scheduler.node",
                    ),
                ),
                ("last_seen_at", models.DateTimeField()),
                ("lease_expires_at", models.DateTimeField()),
                ("clock_skew_ms", models.IntegerField(default=0)),
            ],
        ),
        migrations.RunSQL(ROOM, migrations.RunSQL.noop),
        migrations.RunSQL(KEEP, GIVE_BACK),
        migrations.RunSQL("SET CONSTRAINTS ALL IMMEDIATE", migrations.RunSQL.noop),
        migrations.RemoveField(model_name="node", name="last_seen_at"),
        migrations.RemoveField(model_name="node", name="lease_expires_at"),
        migrations.RemoveField(model_name="node", name="clock_skew_ms"),
    ]
