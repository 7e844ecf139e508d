"""Each name that jobs have, once: the place where a part of a name is looked for.

Locks requests for a moment, as their trigger is created; reads no row. Names of requests that are there already follow
in the next migration, which is run again where it was interrupted.
"""

import django.contrib.postgres.indexes
from django.db import migrations, models
from django.db.models.functions import Upper

#: A name that is known already costs a look into an index and writes nothing. In the order of names, so that two who
#: add the same ones wait for each other and never cross.
_ADD = """
CREATE FUNCTION scheduler_jobrequest_named() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO scheduler_jobname (name)
    SELECT DISTINCT added.name FROM added
    WHERE NOT EXISTS (SELECT FROM scheduler_jobname known WHERE known.name = added.name) ORDER BY 1
    ON CONFLICT (name) DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER requests_named AFTER INSERT ON scheduler_jobrequest REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION scheduler_jobrequest_named();
"""
_END = """
DROP TRIGGER requests_named ON scheduler_jobrequest;
DROP FUNCTION scheduler_jobrequest_named();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0057_unknown_tasks"),
    ]

    operations = [
        migrations.CreateModel(
            name="JobName",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=200)),
            ],
            options={
                "ordering": ["name"],
                "indexes": [
                    django.contrib.postgres.indexes.GinIndex(
                        django.contrib.postgres.indexes.OpClass(Upper("name"), name="gin_trgm_ops"),
                        name="job_name_by_part",
                    )
                ],
                "constraints": [models.UniqueConstraint(fields=("name",), name="job_name_once")],
            },
        ),
        migrations.RunSQL(_ADD, _END),
    ]
