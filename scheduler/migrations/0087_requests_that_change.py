"""Requests of waiting jobs may change; arrays have the number of their first element, and jobs may wait for them.

Locks: nullable columns and triggers take their tables for milliseconds; no row is read or rewritten. The next migration
fills the numbers of arrays that exist and builds the indexes.
"""

from django.db import migrations, models

#: What the record of a job says about what ran, and under which number, stays as it was submitted.
_STAYS = ("uuid", "command", "script", "env", "secrets", "upload", "job_type", "array_id", "array_index",
          "created_at", "submitted_via")  # fmt: skip
_REFUSE = f"""
CREATE FUNCTION scheduler_jobrequest_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'job %: what was submitted to run does not change', OLD.number USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER request_stays BEFORE UPDATE OF {", ".join(_STAYS)}, array_number ON scheduler_jobrequest
    FOR EACH ROW WHEN (({", ".join(f"OLD.{name}" for name in _STAYS)}) IS DISTINCT FROM
        ({", ".join(f"NEW.{name}" for name in _STAYS)})
        OR (OLD.array_number IS NOT NULL AND NEW.array_number IS DISTINCT FROM OLD.array_number))
    EXECUTE FUNCTION scheduler_jobrequest_stays();
"""
_REFUSE_NO_MORE = """
DROP TRIGGER request_stays ON scheduler_jobrequest;
DROP FUNCTION scheduler_jobrequest_stays();
"""
#: A new name is looked for like the name of a new request.
_NAME = """
CREATE FUNCTION scheduler_jobrequest_renamed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO scheduler_jobname (name) VALUES (NEW.name) ON CONFLICT (name) DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER request_renamed AFTER UPDATE OF name ON scheduler_jobrequest
    FOR EACH ROW WHEN (OLD.name IS DISTINCT FROM NEW.name) EXECUTE FUNCTION scheduler_jobrequest_renamed();
"""
_NAME_NO_MORE = """
DROP TRIGGER request_renamed ON scheduler_jobrequest;
DROP FUNCTION scheduler_jobrequest_renamed();
"""
#: For elements that the release before inserts while an upgrade rolls: they come in the order of their indices.
_NUMBER = """
-- Without sequential scans: a session that has planned it for a few requests keeps that plan when they are many.
CREATE FUNCTION scheduler_jobrequest_in_array() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    NEW.array_number := coalesce((SELECT number FROM scheduler_jobrequest
        WHERE array_id = NEW.array_id ORDER BY array_index LIMIT 1), NEW.number);
    RETURN NEW;
END $$;
CREATE TRIGGER request_in_array BEFORE INSERT ON scheduler_jobrequest
    FOR EACH ROW WHEN (NEW.array_id IS NOT NULL AND NEW.array_number IS NULL)
    EXECUTE FUNCTION scheduler_jobrequest_in_array();
"""
_NUMBER_NO_MORE = """
DROP TRIGGER request_in_array ON scheduler_jobrequest;
DROP FUNCTION scheduler_jobrequest_in_array();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0085_calibrated_ranges"),
    ]

    operations = [
        migrations.AddField("jobrequest", "array_number", models.BigIntegerField(blank=True, null=True)),
        migrations.AddField("jobdependency", "on_array", models.BigIntegerField(blank=True, null=True)),
        migrations.RunSQL(_REFUSE, _REFUSE_NO_MORE),
        migrations.RunSQL(_NAME, _NAME_NO_MORE),
        migrations.RunSQL(_NUMBER, _NUMBER_NO_MORE),
    ]
