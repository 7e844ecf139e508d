"""What a job asked for goes from `scheduler_job` to a table of its own, and the rest becomes a narrow row.

One transaction. Its long part, copying the requests and building their indexes, only reads `scheduler_job`, so jobs
go on meanwhile; then the table is locked for what came since, and for the rewrite without the columns that have
moved. The rows of other tables keep pointing to `scheduler_job`. It does not reverse: to go back, restore the backup
from before it.
"""

import uuid

import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.text
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import scheduler.core.lifecycle

REQUESTED = (
    "uuid", "name", "job_type", "command", "script", "env", "working_dir", "tasks", "nodes", "tasks_per_node",
    "cpu_millis", "memory_mib", "storage_mib", "gpus", "gpu_millis", "gpu_model", "gpu_slice", "extras",
    "cpu_limit_millis", "memory_limit_mib", "numa", "time_limit_seconds", "node_selector", "tolerations", "affinity",
    "labels", "priority", "begin_at", "deadline_at", "restart_policy", "max_restarts", "preemptible",
    "depends_until_at", "depends_on_timeout", "min_tasks", "elastic", "on_task_failure", "pack", "pack_required",
    "assembly_timeout_seconds", "array_id", "array_index", "array_max_running", "created_at", "submitted_via",
)  # fmt: skip
_COLUMNS = ", ".join(("number", *REQUESTED))
_COPY = f"INSERT INTO scheduler_jobrequest ({_COLUMNS}) SELECT {_COLUMNS} FROM scheduler_job ORDER BY number"
_OUTCOME = "CASE WHEN state IN ('cancelled', 'completed', 'failed') THEN state ELSE NULL END"

#: Indexes that name a column which is going, or which every move changes.
_DROP_INDEXES = """
DROP INDEX job_in_line, job_by_state, job_by_age, job_by_gpu_model, job_by_type, job_over_by_user,
    job_over_by_project, job_over_by_queue, job_over_by_name, job_over_by_label;
DROP STATISTICS job_upper_name;
"""
#: What came while the others were copied.
_COPY_THE_REST = f"""
LOCK TABLE scheduler_job IN ACCESS EXCLUSIVE MODE;
INSERT INTO scheduler_jobrequest ({_COLUMNS}) SELECT {_COLUMNS} FROM scheduler_job job
    WHERE NOT EXISTS (SELECT FROM scheduler_jobrequest request WHERE request.number = job.number) ORDER BY number;
DELETE FROM scheduler_jobrequest request
    WHERE NOT EXISTS (SELECT FROM scheduler_job job WHERE request.number = job.number);
SELECT setval('scheduler_jobrequest_number_seq', greatest(
    (SELECT last_value FROM scheduler_job_number_seq), (SELECT coalesce(max(number), 1) FROM scheduler_job)));
"""
#: One statement, so one rewrite; constraints of the columns go with them.
_NARROW = f"""
ALTER TABLE scheduler_job {", ".join(f"DROP COLUMN {name}" for name in REQUESTED)},
    ALTER COLUMN number DROP IDENTITY,
    ADD COLUMN outcome varchar(16) GENERATED ALWAYS AS ({_OUTCOME}) STORED;
-- Only now: the jobs that are there have mostly ended, and need no room beside them.
ALTER TABLE scheduler_job SET (fillfactor = 50);
ALTER TABLE scheduler_job ADD CONSTRAINT scheduler_job_number_fk_scheduler_jobrequest_number
    FOREIGN KEY (number) REFERENCES scheduler_jobrequest (number) DEFERRABLE INITIALLY DEFERRED;
CREATE INDEX job_in_line ON scheduler_job (queue_id, number) WHERE outcome IS NULL;
CREATE INDEX job_over_by_user ON scheduler_job (user_id, outcome, number DESC) WHERE outcome IS NOT NULL;
CREATE INDEX job_over_by_project ON scheduler_job (project_id, outcome, number DESC) WHERE outcome IS NOT NULL;
CREATE INDEX job_over_by_queue ON scheduler_job (queue_id, outcome, number DESC) WHERE outcome IS NOT NULL;
"""


class NarrowJob(Operation):
    """The model becomes a child of `JobRequest`: its number is the link, and these fields are inherited."""

    reversible = False

    def state_forwards(self, app_label, state):
        job = state.models[app_label, "job"]
        for name in ("number", *REQUESTED):
            del job.fields[name]
        link = models.OneToOneField(
            db_column="number", on_delete=django.db.models.deletion.CASCADE, parent_link=True, primary_key=True,
            serialize=False, to="scheduler.jobrequest",
        )  # fmt: skip
        outcome = models.GeneratedField(
            db_persist=True,
            expression=models.Case(
                models.When(state__in=["cancelled", "completed", "failed"], then=models.F("state"))
            ),
            output_field=models.CharField(max_length=16, null=True),
        )
        job.fields = {"request": link, **job.fields, "outcome": outcome}
        job.bases = ("scheduler.jobrequest",)
        kept = {"job_state_known", "job_boost_ends", "job_ended_has_time"}
        job.options["constraints"] = [one for one in job.options["constraints"] if one.name in kept]
        job.options["indexes"] = [
            models.Index(fields=["queue", "request"], name="job_in_line", condition=models.Q(outcome=None)),
            *(models.Index(fields=[of, "-request"], name=f"job_by_{of}") for of in ("user", "project", "queue")),
            *(
                models.Index(
                    fields=[of, "outcome", "-request"],
                    name=f"job_over_by_{of}",
                    condition=models.Q(outcome__isnull=False),
                )
                for of in ("user", "project", "queue")
            ),
        ]
        state._relations = None
        state.reload_model(app_label, "job")

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        for statement in (_DROP_INDEXES, _COPY_THE_REST, _NARROW):
            schema_editor.execute(statement, params=None)

    def describe(self):
        return "Move what jobs asked for out of scheduler_job"


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0025_heartbeats"),
    ]

    operations = [
        migrations.CreateModel(
            name="JobRequest",
            fields=[
                ('number', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('name', models.CharField(max_length=200)),
                ('job_type', models.CharField(default='batch', max_length=32)),
                ('command', models.TextField(blank=True)),
                ('script', models.TextField(blank=True)),
                ('env', models.JSONField(blank=True, default=dict)),
                ('working_dir', models.CharField(blank=True, max_length=1024)),
                ('tasks', models.PositiveIntegerField(default=1)),
                ('nodes', models.PositiveIntegerField(blank=True, null=True)),
                ('tasks_per_node', models.PositiveIntegerField(blank=True, null=True)),
                ('cpu_millis', models.BigIntegerField(default=1000)),
                ('memory_mib', models.BigIntegerField(default=0)),
                ('storage_mib', models.BigIntegerField(default=0)),
                ('gpus', models.PositiveIntegerField(default=0)),
                ('gpu_millis', models.PositiveIntegerField(default=0)),
                ('gpu_model', models.CharField(blank=True, max_length=80)),
                ('gpu_slice', models.CharField(blank=True, max_length=24)),
                ('extras', models.JSONField(blank=True, default=dict)),
                ('cpu_limit_millis', models.BigIntegerField(blank=True, null=True)),
                ('memory_limit_mib', models.BigIntegerField(blank=True, null=True)),
                ('numa', models.CharField(choices=[('prefer', 'prefer'), ('one', 'one')], db_default='prefer', default='prefer', max_length=8)),
                ('time_limit_seconds', models.PositiveBigIntegerField(blank=True, null=True)),
                ('node_selector', models.JSONField(blank=True, default=dict)),
                ('tolerations', models.JSONField(blank=True, default=list)),
                ('affinity', models.JSONField(blank=True, default=dict)),
                ('labels', models.JSONField(blank=True, default=dict)),
                ('priority', models.PositiveSmallIntegerField(default=50)),
                ('begin_at', models.DateTimeField(blank=True, null=True)),
                ('deadline_at', models.DateTimeField(blank=True, null=True)),
                ('restart_policy', models.CharField(choices=[('never', 'never'), ('interrupted', 'interrupted'), ('on_failure', 'on_failure'), ('always', 'always')], default=scheduler.core.lifecycle.RestartPolicy['INTERRUPTED'], max_length=12)),
                ('max_restarts', models.PositiveSmallIntegerField(default=3)),
                ('preemptible', models.BooleanField(default=True)),
                ('depends_until_at', models.DateTimeField(blank=True, null=True)),
                ('depends_on_timeout', models.CharField(choices=[('fail', 'fail'), ('start', 'start anyway')], default='fail', max_length=5)),
                ('min_tasks', models.PositiveIntegerField(blank=True, null=True)),
                ('elastic', models.BooleanField(default=False)),
                ('on_task_failure', models.CharField(choices=[('fail', 'fail'), ('requeue', 'requeue'), ('continue', 'continue')], default=scheduler.core.lifecycle.TaskFailure['FAIL'], max_length=8)),
                ('pack', models.CharField(blank=True, choices=[('node', 'node'), ('rack', 'rack'), ('zone', 'zone')], max_length=4)),
                ('pack_required', models.BooleanField(default=False)),
                ('assembly_timeout_seconds', models.PositiveIntegerField(blank=True, null=True)),
                ('array_id', models.UUIDField(blank=True, null=True)),
                ('array_index', models.PositiveIntegerField(blank=True, null=True)),
                ('array_max_running', models.PositiveIntegerField(blank=True, null=True)),
                ('created_at', models.DateTimeField()),
                ('submitted_via', models.CharField(default='api', max_length=8)),
            ],
            options={
                "ordering": ["-number"],
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("priority__lte", 100)), name="job_priority_range"),
                    models.CheckConstraint(condition=models.Q(("tasks__gte", 1)), name="job_has_tasks"),
                    models.CheckConstraint(
                        condition=models.Q(("cpu_millis__gte", 0))
                        & models.Q(("memory_mib__gte", 0))
                        & models.Q(("storage_mib__gte", 0)),
                        name="job_amounts_not_negative",
                    ),
                    models.CheckConstraint(
                        condition=(
                            models.Q(cpu_limit_millis=None)
                            | models.Q(cpu_limit_millis__gte=models.F("cpu_millis"))
                        )
                        & (
                            models.Q(memory_limit_mib=None)
                            | models.Q(memory_limit_mib__gte=models.F("memory_mib"))
                        ),
                        name="job_limits_not_below_requests",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(numa__in=("prefer", "one")), name="job_numa_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(gpu_millis=0) | (models.Q(gpus=1) & models.Q(gpu_millis__lt=1000)),
                        name="job_share_of_one_gpu",
                    ),
                    models.CheckConstraint(
                        condition=~models.Q(command="", script="")
                        & (models.Q(command="") | models.Q(script="")),
                        name="job_runs_one_thing",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(min_tasks=None)
                        | models.Q(min_tasks__range=(1, models.F("tasks"))),
                        name="job_min_tasks_within",
                    ),
                    models.UniqueConstraint(fields=("array_id", "array_index"), name="array_element_once"),
                ],
            },
        ),
        migrations.RunSQL(_COPY, migrations.RunSQL.noop),
        migrations.AddIndex(
            "jobrequest", models.Index(fields=["-created_at", "-number"], name="request_by_age")
        ),
        migrations.AddIndex(
            "jobrequest",
            models.Index(
                django.db.models.functions.text.Upper("gpu_model"),
                models.OrderBy(models.F("number"), descending=True),
                condition=~models.Q(gpu_model=""),
                name="request_by_gpu_model",
            ),
        ),
        migrations.AddIndex(
            "jobrequest",
            models.Index(
                fields=["job_type", "-number"], name="request_by_type", condition=~models.Q(job_type="batch")
            ),
        ),
        migrations.AddIndex(
            "jobrequest",
            django.contrib.postgres.indexes.GinIndex(
                django.contrib.postgres.indexes.OpClass(
                    django.db.models.functions.text.Upper("name"), name="gin_trgm_ops"
                ),
                name="request_by_name",
            ),
        ),
        migrations.AddIndex(
            "jobrequest",
            django.contrib.postgres.indexes.GinIndex(
                fields=["labels"], name="request_by_label", condition=~models.Q(labels={})
            ),
        ),
        migrations.AddIndex(
            "jobrequest",
            models.Index(
                fields=["depends_until_at"],
                name="request_waits_until",
                condition=models.Q(depends_until_at__isnull=False),
            ),
        ),
        migrations.RunSQL(
            "CREATE STATISTICS request_upper_name ON upper(name) FROM scheduler_jobrequest;"
            # Enough to tell a word that one name in 500 has from one that none has.
            " ALTER STATISTICS request_upper_name SET STATISTICS 500",
            migrations.RunSQL.noop,
        ),
        NarrowJob(),
    ]
