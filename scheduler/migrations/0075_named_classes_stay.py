"""A priority class that a scheduler profile names in its options can be neither deleted nor renamed.

Locks: creating the trigger takes SHARE ROW EXCLUSIVE on the table of priority classes, a handful of rows; reads none.
"""

from django.db import migrations

_ADD = """
CREATE FUNCTION scheduler_priorityclass_named() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    named text;
BEGIN
    SELECT string_agg(profile.name, ', ' ORDER BY profile.name) INTO named FROM scheduler_schedulerprofile profile
    WHERE upper(profile.options->>'backfill_max_class') = upper(OLD.name);
    IF named IS NOT NULL AND (TG_OP = 'DELETE' OR upper(NEW.name) <> upper(OLD.name)) THEN
        RAISE EXCEPTION 'priority class % is named in backfill_max_class of profile %', OLD.name, named
            USING ERRCODE = 'foreign_key_violation';
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER priority_class_named BEFORE DELETE OR UPDATE OF name ON scheduler_priorityclass
    FOR EACH ROW EXECUTE FUNCTION scheduler_priorityclass_named();
"""
_END = """
DROP TRIGGER priority_class_named ON scheduler_priorityclass;
DROP FUNCTION scheduler_priorityclass_named();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0072_fair_queue_turns"),
    ]

    operations = [migrations.RunSQL(_ADD, _END)]
