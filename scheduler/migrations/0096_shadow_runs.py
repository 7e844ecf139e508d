"""Shadow runs: drafts of profiles, planned on recorded cycles."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0095_profile_versions"),
    ]

    operations = [
        migrations.CreateModel(
            name="ShadowRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("profile_version", models.PositiveIntegerField()),
                ("content", models.JSONField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("running", "is planned beside the profile in force"),
                            ("ended", "its time is over"),
                            ("stopped", "stopped by a person"),
                            ("failed", "could not be planned"),
                            ("published", "published"),
                        ],
                        default="running",
                        max_length=9,
                    ),
                ),
                ("cause", models.CharField(blank=True, max_length=500)),
                ("every", models.PositiveIntegerField(default=1)),
                ("until", models.DateTimeField()),
                ("made_at", models.DateTimeField()),
                ("made_by", models.CharField(max_length=150)),
                ("reason", models.CharField(max_length=200)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("last_cycle", models.BigIntegerField(default=0)),
                ("compared", models.PositiveIntegerField(default=0)),
                ("skipped", models.PositiveIntegerField(default=0)),
                ("starts", models.BigIntegerField(default=0)),
                ("shadow_starts", models.BigIntegerField(default=0)),
                ("plan_us", models.BigIntegerField(default=0)),
                ("shadow_us", models.BigIntegerField(default=0)),
                ("jobs_left_out", models.PositiveIntegerField(default=0)),
                (
                    "cluster",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="scheduler.cluster",
                    ),
                ),
                (
                    "profile",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="scheduler.schedulerprofile",
                    ),
                ),
                (
                    "queue",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="scheduler.queue",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["running", "ended", "stopped", "failed", "published"])
                        ),
                        name="shadow_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("ended_at", None), ("state", "running")),
                            models.Q(
                                models.Q(("state", "running"), _negated=True), ("ended_at__isnull", False)
                            ),
                            _connector="OR",
                        ),
                        name="shadow_ended_has_time",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("every__gte", 1)), name="shadow_every_positive"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("until__gt", models.F("made_at"))),
                        name="shadow_until_after_start",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("state", "running")),
                        fields=("cluster",),
                        name="shadow_one_running",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ShadowJob",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("job", models.BigIntegerField()),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("shadow_at", models.DateTimeField(blank=True, null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="jobs",
                        to="scheduler.shadowrun",
                    ),
                ),
            ],
            options={
                "ordering": ["job"],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "job"), name="shadow_job_once"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ShadowCycle",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("cycle", models.BigIntegerField()),
                ("at", models.DateTimeField()),
                ("starts", models.PositiveIntegerField()),
                ("shadow_starts", models.PositiveIntegerField()),
                ("only_real", models.PositiveIntegerField()),
                ("only_shadow", models.PositiveIntegerField()),
                ("elsewhere", models.PositiveIntegerField()),
                ("waiting", models.PositiveIntegerField()),
                ("shadow_waiting", models.PositiveIntegerField()),
                ("waited_seconds", models.BigIntegerField()),
                ("shadow_waited_seconds", models.BigIntegerField()),
                ("stops", models.PositiveIntegerField()),
                ("shadow_stops", models.PositiveIntegerField()),
                ("plan_us", models.BigIntegerField()),
                ("shadow_us", models.BigIntegerField()),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="cycles",
                        to="scheduler.shadowrun",
                    ),
                ),
            ],
            options={
                "ordering": ["-cycle"],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "cycle"), name="shadow_cycle_once"),
                ],
            },
        ),
    ]
