"""Versions of profiles, and in each recorded cycle those that were followed."""

from django.db import migrations, models

#: The state of each profile now, from which on versions are kept.
_PRESENT = """
INSERT INTO scheduler_profileversion (profile_id, profile_name, number, content, origin, made_at, made_by, reason)
SELECT id, name, version, jsonb_build_object('policy', policy, 'tie_breakers', tie_breakers, 'strict_order', strict_order,
    'placement', placement, 'backfill', backfill, 'options', options, 'score_weights', score_weights, 'plugins', plugins,
    'preemption_enabled', preemption_enabled, 'preemption', preemption, 'rules', rules,
    'rule_hold_seconds', rule_hold_seconds, 'rule_time_zone', rule_time_zone), 'found', now(), '', ''
FROM scheduler_schedulerprofile
"""


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0094_reason_of_quota_providers"),
    ]

    operations = [
        migrations.AddField(
            model_name="cycle",
            name="profiles",
            field=models.JSONField(blank=True, db_default=[], default=list),
        ),
        migrations.CreateModel(
            name="ProfileVersion",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("profile_id", models.BigIntegerField()),
                ("profile_name", models.CharField(max_length=80)),
                ("number", models.PositiveIntegerField()),
                ("content", models.JSONField()),
                (
                    "origin",
                    models.CharField(
                        choices=[
                            ("create", "profile created"),
                            ("edit", "edited"),
                            ("rollback", "rolled back"),
                            ("publish", "shadow run published"),
                            ("settings", "set by settings of the site"),
                            ("found", "state before versions were kept"),
                        ],
                        max_length=8,
                    ),
                ),
                ("origin_number", models.BigIntegerField(blank=True, null=True)),
                ("made_at", models.DateTimeField()),
                ("made_by", models.CharField(blank=True, max_length=150)),
                ("reason", models.CharField(blank=True, max_length=200)),
            ],
            options={
                "ordering": ["-id"],
                "constraints": [
                    models.UniqueConstraint(fields=("profile_id", "number"), name="profile_version_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("origin__in", ["create", "edit", "rollback", "publish", "settings", "found"])
                        ),
                        name="profile_version_origin_known",
                    ),
                ],
            },
        ),
        migrations.RunSQL(_PRESENT, migrations.RunSQL.noop),
    ]
